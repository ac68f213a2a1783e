"""One writer at a time: a lock that the operating system drops when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
import uuid
from typing import Any

from diskbuffer.errors import CorruptionError, LockedError, NotAStoreError, ReadOnlyError
from diskbuffer.runtime.dropped import wait_for_closing
from diskbuffer.runtime.uncopied import Uncopied
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.system.files import Files

# Inside an array's directory, which no Zarr tool lists: zarr-python warns of strange files in a group's.
LOCK, _HOLDER = f"{SEGMENTS}/length/writer.lock", f"{SEGMENTS}/length/writer.json"

_PROBE_SECONDS = 0.05  # in which a process that asks whether there is a writer releases it


class WriterLock(Uncopied):
    """Hold the right to write to a store, until `release`.

    A `flock` of a file that is opened as all in a store are: the package filelock would follow links.
    """

    def __init__(self, files: Files) -> None:
        self._files, self._process = files, os.getpid()
        self._fd = -1
        self._before = ""
        try:
            self._fd = self._acquire()
        except (CorruptionError, LockedError):
            raise
        except OSError as error:
            raise _refusal(files, error) from error
        try:
            self._before = history(files)
            self.note_holder()
        except BaseException:
            self.release()
            raise

    def _acquire(self) -> int:
        """Lock the file; return its descriptor."""
        begun, has_waited = time.monotonic(), False
        while True:
            fd = self._files.open_lock(LOCK, write=True)
            try:
                if self._files.lock(fd, exclusive=True) and _is_that(self._files, fd):
                    locked, fd = fd, -1
                    return locked
            finally:
                if fd >= 0:
                    os.close(fd)
            if time.monotonic() - begun > _PROBE_SECONDS:
                if has_waited or not wait_for_closing():
                    raise self._held()
                has_waited = True
            time.sleep(0.001)

    def _held(self) -> LockedError:
        return LockedError(
            f"{self._files.root} is being written to by {describe_holder(self._files)}",
            advice="Close it there, or open it here with mode='r', to read beside it",
        )

    def note_holder(self) -> None:
        """Note which process writes, for error messages, and for readers to see that a session began: see `session`.

        Rows that readers saw may be others from now on. Where there is no room for it, none is named.
        """
        self._note(uuid.uuid4().hex)

    def note_same_rows(self) -> None:
        """Note that rows which readers saw before this lock was taken are what they were: see `history`."""
        if self._before:
            self._note(self._before)

    def _note(self, history: str) -> None:
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        holder |= {"history": history}
        if self._files.exists(_HOLDER):
            self._files.close(self._files.open(_HOLDER))  # a CorruptionError where it is a link
        try:
            self._files.replace_contents(_HOLDER, json.dumps(holder).encode(), sync=False)
        except CorruptionError:
            raise
        except OSError:
            with contextlib.suppress(OSError):
                self._files.remove(_HOLDER)

    def is_in_place(self) -> bool:
        """Return whether the store is where it was locked: not moved, removed, nor replaced by another."""
        return self._fd >= 0 and self._files.is_in_place() and _is_that(self._files, self._fd)

    def require_place(self) -> None:
        """Raise a NotAStoreError where the store was moved, removed or replaced since it was locked."""
        self._files.require_place()
        if self._fd < 0 or not _is_that(self._files, self._fd):
            raise NotAStoreError(
                f"{self._files.root} has not the lock any more that this buffer took; another process may write there. Open it "
                "again"
            )

    def moved_to(self, files: Files) -> WriterLock:
        """Return this, of a store whose directory was renamed while it was locked."""
        self._files = files
        return self

    def release(self) -> None:
        """Release the lock; twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if os.getpid() == self._process:
                with contextlib.suppress(OSError):
                    self._files.unlock(fd)  # a process that was forked from this one may have it open, too
            os.close(fd)

    def forget(self) -> None:
        """In a fork: close the descriptor, so that the lock does not outlive its holder, and do not release it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.release()


def _is_that(files: Files, fd: int) -> bool:
    """Return whether an open file is the store's lock: somebody may have removed it, or put another in its place."""
    try:
        return os.path.samestat(os.fstat(fd), files.stat(LOCK))
    except FileNotFoundError:
        return False


def _refusal(files: Files, error: OSError) -> Exception:
    """Say why a lock could not be taken, where it is not that somebody else has it."""
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ReadOnlyError(
            f"{files.place} cannot be written to ({os.strerror(error.errno)})", advice="Open it with mode='r' to read it"
        )
    return error


def is_held(files: Files, lock: str = LOCK) -> bool | None:
    """Return whether somebody writes to a store, or holds another lock; None where the file system has no locks to tell.

    A shared lock, for a moment, of the file opened for reading: a process that may only read the store can ask.
    """
    try:
        fd = files.open_lock(lock, write=False)
    except FileNotFoundError:
        return False  # nobody ever has written to it here
    except PermissionError:
        return None
    except CorruptionError:
        return False  # no file, which nobody can have locked
    try:
        return not files.lock(fd, exclusive=False)
    except OSError:
        return None
    finally:
        os.close(fd)  # which releases it


def session(files: Files) -> tuple[int, ...] | None:
    """Return what changes when somebody opens the store for writing, or has repaired it; None where it cannot be known."""
    try:
        note = files.stat(_HOLDER)
    except FileNotFoundError:
        return None if files.exists(LOCK) else ()  # of a copy: nobody ever has written to it here
    return note.st_dev, note.st_ino, note.st_mtime_ns, note.st_ctime_ns


def history(files: Files) -> str:
    """Return what changes when rows of a store may have become others, as it was recovered or repaired; "" where unknown."""
    try:
        return str(json.loads(files.read(_HOLDER))["history"])
    except (OSError, CorruptionError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def describe_holder(files: Files) -> str:
    """Name the process that has opened a store for writing last."""
    holder = read_holder(files)
    if holder is None:
        return "another process"
    if holder["pid"] == os.getpid():
        return (
            f"this process, {os.getpid()}: by another ReplayBuffer, since {holder['since']} (gc.collect() closes one that "
            "nothing else refers to)"
        )
    return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"


def read_holder(files: Files) -> dict[str, Any] | None:
    """Return the process that has opened a store for writing last, as ``pid``, ``host`` and ``since``; None where unknown."""
    try:
        holder = json.loads(files.read(_HOLDER))
        return {"pid": int(holder["pid"]), "host": str(holder["host"]), "since": str(holder["since"])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
