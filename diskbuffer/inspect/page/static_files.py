"""The page's own files, read once into memory: nothing that a browser asks for is ever looked up on the disk."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """Return contents and media type of each file, by its name below ``static``."""
    found: dict[str, tuple[bytes, str]] = {}

    def read(directory: Traversable, prefix: str) -> None:
        for entry in directory.iterdir():
            if entry.is_dir():
                read(entry, f"{prefix}{entry.name}/")
            else:
                suffix = "." + entry.name.rpartition(".")[2]
                if suffix in TYPES:
                    found[prefix + entry.name] = entry.read_bytes(), TYPES[suffix]

    read(files(__package__) / "static", "")
    return found
