"""Files of JSON objects: read from anyone, and written so that they are whole whenever they are there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from diskbuffer.errors import SourceError
from diskbuffer.formats import strict_json


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file of JSON; a SourceError where there is something else, and what `open` raises."""
    return json_object(path.read_bytes(), str(path))


def json_object(text: bytes, where: str) -> dict[str, Any]:
    """Return the object that JSON is; a SourceError, with the file's name, where it is something else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where} is damaged: it is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise SourceError(f"{where} is damaged: expected an object, found {type(content).__name__}")
    return content


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
