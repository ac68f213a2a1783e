"""Closing what a buffer has open: once, when the buffer is closed, dropped, or cannot be opened."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from diskbuffer.errors import ClosedError, DiskBufferError, InputError
from diskbuffer.runtime import forks
from diskbuffer.runtime.dropped import close_dropped
from diskbuffer.runtime.periodic import periodic
from diskbuffer.runtime.signals import Uninterrupted

if TYPE_CHECKING:
    from diskbuffer.limiting.limiter import Limiter
    from diskbuffer.reading.batch_reader import BatchReader
    from diskbuffer.recording.stream_log import StreamLog
    from diskbuffer.store.store import Store
    from diskbuffer.writers.store import MultiWriterStore


class Closing:
    """Own what a buffer has open, and know nothing of the buffer itself.

    A buffer that is dropped is closed by a `weakref.finalize`, which keeps this alive until then. A `__del__` of the buffer may
    be too late: the garbage collector calls those of all objects in a cycle in any order, and maps are unmapped in theirs.

    Attributes
    ----------
    closed : bool
        Whether it was closed, or is being closed.
    copying : lock
        Held while a copy is made: nothing goes meanwhile, and the buffer is not closed.
    reader, multi_writer, log, limiter
        As far as they were opened.
    flush_error : Exception, optional
        Why the last attempt to sync, which nobody asked for, failed; None once one has succeeded.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._process = store, os.getpid()
        self.closed = False
        self.copying = forks.new_lock(reentrant=True)
        self.reader: BatchReader | None = None
        self.multi_writer: MultiWriterStore | None = None
        self.log: StreamLog | None = None
        self.limiter: Limiter | None = None
        self.flush_error: Exception | None = None
        self._dropped: weakref.finalize[[], Any] | None = None

    def close_when_dropped(self, buffer: object) -> None:
        """Close when nothing refers to the buffer any more, but not at the end of the process, when threads are gone."""
        self._dropped = weakref.finalize(buffer, self._close_dropped)
        self._dropped.atexit = False

    def sync(self, *, only_new: bool = False) -> None:
        """Bring everything to the disk that this process has written; with `only_new`, nothing where no steps were added."""
        if self.log is not None:
            (self.log.flush.sync_what_is_new if only_new else self.log.sync)()
        elif self.multi_writer is not None and self.multi_writer.columns.is_writing:
            self.multi_writer.sync()
        if self.limiter is not None:
            self.limiter.sync()
        self.flush_error = None

    def sync_every(self, seconds: float) -> None:
        """Have that done every so many seconds from now on, until this is closed."""
        periodic.begin(self._sync_by_itself, seconds)

    def _sync_by_itself(self) -> None:
        try:
            self.sync(only_new=True)
        except ClosedError:
            pass
        except Exception as error:  # noqa: BLE001  of the disk, above all; what still stands in the way, the next flush raises
            self.flush_error = error

    def close(self) -> None:
        """Write the newest rows to their columns, sync everything, and give back locks, threads and maps. Twice is fine.

        A Ctrl-C meanwhile is put off until that is done: who closes once more would find it closed, and not given back.
        """
        if not self.closed:
            refuse_within_a_call(self._store, "close", self.copying)
        with self.copying, Uninterrupted():
            with self._store.lock:
                if self.closed:
                    return
                self.closed = True
                self._store.begin_closing()
            periodic.end(self._sync_by_itself)
            with contextlib.ExitStack() as last_first:
                last_first.callback(self._release)
                if self._process == os.getpid():  # of a fork, the store and its lock are the other's
                    last_first.callback(self._write_and_sync)
                if self.limiter is not None:
                    self.limiter.close()

    def _write_and_sync(self) -> None:
        if self.log is not None:
            self.log.close(self._store.lock)
        elif self.multi_writer is not None and self.multi_writer.columns.is_writing:
            self.multi_writer.sync()

    def abandon(self) -> None:
        """Give back locks, threads and maps, and leave the store as a kill would."""
        self.closed = True
        periodic.end(self._sync_by_itself)
        with Uninterrupted(), contextlib.ExitStack() as last_first:
            last_first.callback(self._release)
            if self.log is not None:
                last_first.callback(self.log.abandon)
            if self.limiter is not None:
                self.limiter.close()

    def _release(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self._store.close()
        if self._dropped is not None:
            self._dropped.detach()

    def _close_dropped(self) -> None:
        close_dropped(self._close_or_warn, is_busy=self._store.holds_lock())

    def _close_or_warn(self) -> None:
        try:
            self.close()
        except (OSError, DiskBufferError) as error:
            root = self._store.root
            if self._store.files.is_in_place():  # and not gone, too
                warnings.warn(f"{root}, which nothing refers to any more, could not be closed: {error}", ResourceWarning, 2)


def refuse_within_a_call(store: Store, name: str, copying: Any = None) -> None:
    """Raise an InputError where this thread is in another call already, as in a signal's handler, and would wait for it."""
    if store.holds_lock() or (copying is not None and copying._is_owned()):
        raise InputError(
            f"{name}() was called within another call of the same thread, as by a signal's handler, and would wait for that for "
            "ever; have the handler set a flag, or raise, and call it between two steps"
        )
