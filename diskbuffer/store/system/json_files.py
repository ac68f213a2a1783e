"""Reading the small JSON files of a store, which a stranger may have written."""

from __future__ import annotations

import json
from typing import Any

from diskbuffer.errors import CorruptionError
from diskbuffer.store.system.files import Files

MOST_BYTES = 16 * 1024**2  # what parsing takes is some thirty times that at most


def read_json(files: Files, name: str) -> Any:
    """Return what a JSON file holds; a ValueError where it is no JSON, a CorruptionError where it is far too large."""
    size = files.stat(name).st_size
    if size > MOST_BYTES:
        raise CorruptionError(f"{files.root / name}: expected {MOST_BYTES:,} bytes at most, found {size:,}; is it another file?")
    try:
        return json.loads(files.read(name))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
