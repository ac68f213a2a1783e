"""Whether a source of files is still what it was: for a run that goes on after a kill, and for one that has read all of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

SUFFIX = ".unfinished"  # of directories in which something is made: they may lie in the source, and are no part of it
_EDGE = 32 * 1024  # bytes at a file's beginning, and at its end, that count: there formats have their headers and indexes
_MOST = 64 * 1024**2  # bytes of all files that count


def fingerprint(paths: Iterable[Path]) -> tuple[str, int]:
    """Return what is the same as long as files are, and how many bytes they have.

    It is of their names, sizes and times, and of their first and last bytes.

    Nothing outside of a directory is read: of a link in it counts where it leads, and the size and the time of what is there.

    Parameters
    ----------
    paths : iterable of pathlib.Path
        Files, and directories with all that is in them. One that is missing counts as such.
    """
    digest, size, left = hashlib.sha256(), 0, _MOST
    for path in paths:
        root = path.resolve()
        for name, file in _files(root):
            with contextlib.suppress(OSError):
                digest.update(f"{path.name}/{name}\0".encode(errors="surrogateescape"))
                if file.is_symlink():
                    digest.update(os.fsencode(os.readlink(file)) + b"\0")
                status = file.stat()
                size += status.st_size
                digest.update(f"{status.st_size} {status.st_mtime_ns}\0".encode())
                if left > 0 and stat.S_ISREG(file.lstat().st_mode):
                    edges = _edges(file, status.st_size)
                    digest.update(edges)
                    left -= len(edges)
    return digest.hexdigest(), size


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield files and links with their names below a directory, those in the uppermost directories first; or the file itself."""
    if not root.is_dir():
        yield "", root
        return
    names = []
    for directory, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not (name.startswith(".") and name.endswith(SUFFIX))]
        links = [name for name in inner if os.path.islink(os.path.join(directory, name))]
        names += [os.path.relpath(os.path.join(directory, name), root) for name in [*files, *links]]
    for name in sorted(names, key=lambda name: (name.count(os.sep), name)):
        yield name, root / name


def _edges(file: Path, size: int) -> bytes:
    with open(file, "rb") as opened:
        begin = opened.read(_EDGE)
        opened.seek(max(len(begin), size - _EDGE))
        return begin + opened.read(_EDGE)
