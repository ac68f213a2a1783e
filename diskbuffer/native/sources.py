"""The sources of the native code, and a hash of them: for `setup.py`, which runs this file alone, and for who imports it."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

_SUFFIXES = {".pyx", ".pxd", ".hpp", ".cpp"}


def native_sources(directory: Path) -> list[Path]:
    """Return the sources below a directory, in order; none in a wheel."""
    return sorted(path for path in directory.rglob("*") if path.suffix in _SUFFIXES)


def hash_of(sources: Iterable[Path]) -> str:
    """Return the SHA-256 of the names and contents of sources."""
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in sources)).hexdigest()
