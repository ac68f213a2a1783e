"""One writer at a time: a lock that the operating system drops when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import time
from pathlib import Path

import filelock

from diskbuffer.errors import CorruptionError, LockedError, ReadOnlyError
from diskbuffer.store.files import Files
from diskbuffer.store.layout import SEGMENTS

if sys.platform != "win32":
    import fcntl

# Inside an array's directory, which no Zarr tool lists: zarr-python warns of strange files in a group's.
_LOCK, _HOLDER = f"{SEGMENTS}/length/writer.lock", f"{SEGMENTS}/length/writer.json"


_PATIENCE = 0.05  # seconds, in which who asks whether there is a writer lets go of it


class WriterLock:
    """Hold the right to write to a store, until `release`."""

    def __init__(self, root: Path) -> None:
        self._lock = filelock.FileLock(root / _LOCK, thread_local=False)
        files = Files(root)
        try:
            for name in (_LOCK, _HOLDER):
                with contextlib.suppress(FileNotFoundError):
                    files.close(files.open(name))  # a CorruptionError where it is a link to somewhere else
            self._lock.acquire(timeout=_PATIENCE)
        except filelock.Timeout:
            raise LockedError(
                f"{root} is being written to by {_describe(root)}. Close it there, or open it here with mode='r', to read "
                "beside it"
            ) from None
        except CorruptionError:
            raise
        except (OSError, NotImplementedError) as error:
            raise _refusal(root, error) from error
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        (root / _HOLDER).write_text(json.dumps(holder))

    def is_in_place(self) -> bool:
        """Tell whether the store is where it was locked: not removed, nor replaced by another."""
        fd = self._lock._context.lock_file_fd
        if fd is None:
            return False
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self._lock.lock_file))
        except OSError:
            return False

    def release(self) -> None:
        """Let others write; twice is fine."""
        self._lock.release()

    def forget(self) -> None:
        """In a fork: close the descriptor, so that the lock does not outlive its holder, and do not let go of it for him."""
        context = self._lock._context
        fd, context.lock_file_fd = context.lock_file_fd, None
        if fd is not None:  # newer releases of filelock have done so by now
            with contextlib.suppress(OSError):
                os.close(fd)


def _refusal(root: Path, error: Exception) -> Exception:
    """Say why a lock could not be taken, where it is not that somebody else has it."""
    number = getattr(error, "errno", None)
    if number in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ReadOnlyError(f"{root} cannot be written to ({os.strerror(number)}); open it with mode='r' to read it")
    if isinstance(error, NotImplementedError) or number in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
        return LockedError(
            f"{root} is on a file system without locks ({error}), where two writers could not be told apart; keep it on a local "
            "disk, or open it with mode='r' to read it"
        )
    return error


def is_held(root: Path) -> bool:
    """Tell whether somebody writes to a store."""
    if sys.platform == "win32":
        return False
    try:
        fd = Files(root).open(_LOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)  # which lets go of it
    return False


def _describe(root: Path) -> str:
    try:
        holder = json.loads(Files(root).read(_HOLDER))
        if holder["pid"] == os.getpid():
            return f"this process, {os.getpid()}: by another ReplayBuffer, since {holder['since']}"
        return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
