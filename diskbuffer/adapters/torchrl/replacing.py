"""One directory in the place of another, so that a crash at any moment leaves one of them, whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from diskbuffer.formats.unfinished import sync_directory

_PATIENCE = 60.0  # seconds, for a process that replaces a directory


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Hold a directory, wherever it is moved meanwhile, as far as the file system has locks: who dies lets go of it."""
    begun, fd = time.monotonic(), os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        while time.monotonic() - begun < _PATIENCE:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.002)
                continue
            except OSError:  # there are no such locks
                pass
            break
        yield
    finally:
        os.close(fd)


def take_back(place: Path, aside: Path) -> None:
    """Finish what a crash left: put what was put aside back where nothing took its place, or remove it.

    Where it was no crash, but another process is at it, that is waited for.
    """
    with contextlib.suppress(FileNotFoundError), _held(aside):
        if place.exists():
            remove_tree(aside)
        elif aside.is_dir():
            aside.rename(place)


def put_in_place(new: Path, place: Path, aside: Path) -> None:
    """Put a directory that is whole, and on the disk, in a place; what is there is put aside, and removed afterwards.

    All three must be names in the same directory. Where the place is empty for an instant, what was there is aside.
    """
    take_back(place, aside)
    with _held(place) if place.exists() else contextlib.nullcontext():  # or who opens it now would take it back
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
