"""Mend a store: put files and directories in their places."""

from __future__ import annotations

import contextlib
import re
import stat
from pathlib import Path

from diskbuffer.errors import CorruptionError
from diskbuffer.store.system.files import Files

_A_FILE = re.compile(r"c(\.[0-9]+)+|[a-z]+\.json|.*\.tmp")


def about_link(path: Path) -> str:
    """Say what is wrong with a link in a store, and what to do."""
    return (
        f"is a link in the place of a directory; remove it (`rm {path}`), or put the directory that it stands for in its place, "
        "and repair again"
    )


def make_directory(root: Path, path: str) -> None:
    """Put a directory in the place of a file; a CorruptionError where it is a link, which somebody may need."""
    if (root / path).is_symlink():
        raise CorruptionError(f"{root / path} {about_link(root / path)}")
    files = Files(root)
    files.remove(path)
    files.make_directory(path)
    files.sync(str(Path(path).parent))


def clear_places_of_files(root: Path, path: str) -> None:
    """Remove empty directories in the places of a store's files; a CorruptionError where something is in one."""
    with contextlib.suppress(FileNotFoundError):
        for entry in list((root / path).iterdir()):
            if _A_FILE.fullmatch(entry.name) and stat.S_ISDIR(entry.lstat().st_mode):
                try:
                    entry.rmdir()
                except OSError as error:
                    raise CorruptionError(
                        f"{entry} is a directory in the place of a file, with something in it; move it away, and repair again"
                    ) from error


def restore_file(root: Path, name: str, size: int) -> None:
    """Make a file anew, of what is still there of it, and zeros."""
    files, kept = Files(root), b""
    with contextlib.suppress(OSError):
        kept = files.read(name)[:size]
    files.make_directory(str(Path(name).parent))
    files.replace(name, size, kept)
