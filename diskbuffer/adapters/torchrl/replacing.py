"""One directory in the place of another, so that a crash at any moment leaves one of them, whole."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from diskbuffer.formats.unfinished import sync_directory


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def _aside(place: Path) -> Path:
    """Return where what is in a place waits until another has taken it."""
    return place.with_name(f".{place.name}.diskbuffer-replaced")


def take_back(place: Path) -> None:
    """Put back what a crash left aside, where nothing took its place."""
    if not place.exists() and _aside(place).is_dir():  # looked at first: a read-only disk refuses to rename what is not there
        _aside(place).rename(place)


def remove_leftovers(place: Path) -> None:
    """Remove what a crash left aside; for who alone writes to what is in the place."""
    remove_tree(_aside(place))


def put_in_place(new: Path, place: Path) -> None:
    """Put a directory that is whole, and on the disk, in a place beside it; what is there is removed afterwards."""
    take_back(place)
    remove_leftovers(place)
    aside = _aside(place)
    if place.exists():
        place.rename(aside)
    try:
        new.rename(place)
        sync_directory(place.parent)  # or a power loss could take the one back, and leave the other removed
    except BaseException:
        if not new.exists():
            place.rename(new)
        if aside.exists():
            aside.rename(place)
        raise
    remove_tree(aside)
