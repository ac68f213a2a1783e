"""Reading the small JSON files of a store, which a stranger may have written."""

from __future__ import annotations

import json
from typing import Any

from diskbuffer.store.system.files import Files

MOST_BYTES = 16 * 1024**2  # what parsing takes is some thirty times that at most


def read_json(files: Files, name: str) -> Any:
    """Return what a JSON file holds; a ValueError where it is no JSON, a CorruptionError where it is far too large."""
    return parse_json(files.read(name, MOST_BYTES))


def parse_json(data: bytes) -> Any:
    """Return what a file's bytes hold; a ValueError where they are no JSON."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
