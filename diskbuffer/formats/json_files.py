"""Files of JSON, which are whole whenever they are there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from diskbuffer.formats import strict_json


def write_json(path: Path, value: Any, **style: Any) -> None:
    """Write a file of JSON, or replace it: whoever reads, and whoever goes on after a kill, finds the old one or the new one.

    Parameters
    ----------
    path : pathlib.Path
        Meanwhile there is ``.NAME.new`` beside it.
    value : Any
        What JSON holds. Numbers that are NaN or infinite become null.
    **style
        As `json.dumps` takes it.
    """
    new = path.with_name(f".{path.name}.new")
    new.write_text(strict_json.dumps(value, **style), "utf-8")
    os.replace(new, path)
