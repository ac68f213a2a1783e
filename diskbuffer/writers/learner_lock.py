"""The lock of the one learner that writes columns and marks of several writers' stores."""

from __future__ import annotations

import contextlib

from diskbuffer.errors import LockedError
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import SHARED

COLUMNS = f"{SHARED}/columns"
LOCK = f"{COLUMNS}/lock"


def take(files: Files) -> int:
    """Return the descriptor that holds the lock of a directory of several writers; a LockedError where another one does."""
    files.make_directory(COLUMNS)
    fd = files.open_lock(LOCK, write=True)
    try:
        if not files.lock(fd, exclusive=True):
            raise LockedError(f"{files.root}: another reader writes columns there already, in this or another process; use it")
    except BaseException:
        files.close(fd)
        raise
    return fd


def release(files: Files, fd: int) -> None:
    """Release the lock to another process."""
    with contextlib.suppress(OSError):
        files.unlock(fd)
    files.close(fd)
