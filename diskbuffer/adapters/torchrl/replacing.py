"""One directory in the place of another, so that a crash at any moment leaves one of them, whole."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from diskbuffer.store.files import Files


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def take_back(place: Path, aside: Path) -> None:
    """Finish what a crash left: put what was put aside back where nothing took its place, or remove it."""
    if aside.is_dir():
        if place.exists():
            remove_tree(aside)
        else:
            aside.rename(place)


def put_in_place(new: Path, place: Path, aside: Path) -> None:
    """Put a directory that is whole, and on the disk, in a place; what is there is put aside, and removed afterwards.

    All three must be names in the same directory. Where the place is empty for an instant, what was there is aside.
    """
    take_back(place, aside)
    if place.exists():
        place.rename(aside)
    try:
        new.rename(place)
    except BaseException:
        if aside.exists():
            aside.rename(place)
        raise
    Files(place.parent).sync(".")  # or a power loss could take the one back, and leave the other removed
    remove_tree(aside)


def sync_tree(path: Path) -> None:
    """Bring a directory with all that is in it to the disk."""
    files = Files(path)
    files.sync_all([".", *(str(entry.relative_to(path)) for entry in path.rglob("*"))])
