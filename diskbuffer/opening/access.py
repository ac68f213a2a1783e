"""What may be done with a buffer that is open, and the error where something may not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from diskbuffer.errors import ClosedError, InputError, LockedError, ReadOnlyError

if TYPE_CHECKING:
    from diskbuffer.opening.closing import Closing
    from diskbuffer.reading.batch_reader import BatchReader
    from diskbuffer.recording.recorder import Recorder
    from diskbuffer.recording.stream_log import StreamLog
    from diskbuffer.store.store import Store
    from diskbuffer.writers.store import MultiWriterStore


class OfBuffer:
    """What a buffer hands out. It is neither copied nor pickled: a copy would close what the buffer has open."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise an InputError: who copies or pickles this is to take the buffer."""
        raise InputError(
            f"{type(self).__name__} is a part of an open buffer, and cannot be copied or pickled; copy or pickle the buffer, and "
            "ask that for it"
        )


class Access:
    """Tell who may write to a buffer's steps and columns, now and in this process. It does not keep the buffer open."""

    def __init__(
        self,
        path: Path,
        closing: Closing,
        store: Store,
        reader: BatchReader,
        multi_writer: MultiWriterStore | None,
        recorder: Recorder | None,
    ) -> None:
        self._path, self._closing, self._store, self._reader, self._multi_writer = path, closing, store, reader, multi_writer
        self._recorder, self._process = recorder, os.getpid()
        self.to_write = "Open it with mode='a' to write"

    @property
    def own_recorder(self) -> Recorder | None:
        """What records steps; None where the buffer was opened to read, or by the process that this one is a fork of."""
        return self._recorder if self._process == os.getpid() else None

    def check_open(self) -> None:
        """Raise a ClosedError where the buffer was closed."""
        if self._closing.closed:
            raise ClosedError(f"{self._path} was closed; open it again with ReplayBuffer({str(self._path)!r})")

    def check_in_place(self) -> None:
        """Raise a NotAStoreError where another store may be at the path of the one that is open."""
        files = self._store.files if self._multi_writer is None else self._multi_writer.all_files
        files.outermost().require_place()

    def recorder(self, call: str = "this") -> Recorder:
        """Return what records steps; a ReadOnlyError or LockedError, which names what was called, where this process may not."""
        if self._closing.closed or self._recorder is None or not self._store.writable:
            self._refuse(call)
        return self._recorder

    def log(self, call: str = "this") -> StreamLog:
        """Return what steps are written to, as `recorder` does."""
        return self.recorder(call).log

    def write_columns(self, call: str = "") -> None:
        """Raise an error where this process may not write columns; see what another learner wrote to them.

        Without a `call` it is for a sampler, which asks too often to look whether the store is still at its path.
        """
        if self._multi_writer is None:
            self.recorder(call or "a sampler")
            if call:
                self.check_in_place()
            return
        with self._store.lock:
            self.check_open()
            try:
                begun = self._multi_writer.begin_writing()
            except LockedError as error:
                raise LockedError(f"{call or 'a sampler'}: {error}") from error
            if begun:  # another learner may have written to steps that are new to this one
                try:
                    self._reader.refresh()
                except BaseException:
                    self._multi_writer.columns.end_writing()
                    raise

    def must_write(self, call: str) -> None:
        """Raise an error, which names what was called, where this process may not change the store.

        Takes no lock: in a fork, those of the buffer may be held for ever.
        """
        self.check_open()
        if self._recorder is None and self._multi_writer is None:
            raise ReadOnlyError(
                f"{call} changes {self._path}, which was opened with mode='r': only its writer can, which can pause; do so there",
                advice=self.to_write,
            )
        self.recorder(call)

    def must_write_columns(self, call: str) -> None:
        """Raise an error as `must_write` does; a learner of several writers' stores may, too."""
        if self._multi_writer is None:
            self.must_write(call)

    def _refuse(self, call: str) -> NoReturn:
        self.check_open()
        if self._multi_writer is not None:
            raise ReadOnlyError(f"{self._path} has the stores of several writers; open one with writer=NAME to add steps to it")
        if self._recorder is None:
            raise ReadOnlyError(f"{call} writes to {self._path}, which was opened with mode='r'", advice=self.to_write)
        raise LockedError(
            f"{call} writes to {self._path}, which is being written to by process {self._process}, of which this one is a fork; "
            "write there, or open it here with mode='r'"
        )
