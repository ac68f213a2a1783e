"""Bringing rows to the disk, and then noting how far they are there: to that note a power loss goes back."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.store.description import Description
from diskbuffer.store.episode_values import ValuesNote
from diskbuffer.store.episode_values import remove_others as remove_other_values
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.last_writer import State
from diskbuffer.store.segments.cleared import CLEARED_FILE
from diskbuffer.store.segments.mapped import Maps
from diskbuffer.store.segments.table import SegmentTable
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import WriterLock
from diskbuffer.store.tail_copy import CopyNote, remove_others
from diskbuffer.store.verification import file_checksum

Int64 = npt.NDArray[np.int64]


class Durability:
    """Sync a store's files, and note how far its rows are on the disk.

    Attributes
    ----------
    state : State, optional
        The note of how the store was left, as it was read or written last.
    written : set of (str, int)
        Segments of derived columns, (column, slot), that were opened for writing.
    """

    def __init__(
        self, files: Files, description: Description, table: SegmentTable, lock: threading.RLock, writer_lock: WriterLock | None
    ) -> None:
        self._files, self._description, self._table = files, description, table
        self._lock, self._writer_lock = lock, writer_lock
        self.state: State | None = None
        self.written: set[tuple[str, int]] = set()
        self._noting = threading.Lock()
        self._gone: Int64 = np.zeros(description.layout.streams, np.int64)

    def begin(self, heads: Int64, values: ValuesNote | None) -> None:
        """Note that the store is open, and rows up to `heads`, (streams,), are on the disk, and values of episodes."""
        self._note(clean=False, synced=tuple(heads.tolist()), values=values)

    def note_gone(self, positions: Int64) -> None:
        """Note that files of rows before some positions, (streams,), may be gone: a power loss does not bring these rows back."""
        self._gone = np.maximum(self._gone, positions)
        self._note()

    @property
    def tail(self) -> CopyNote | None:
        """The copy of the tail that the last flush made."""
        return None if self.state is None else self.state.tail

    def _note(self, **changes: Any) -> None:
        with self._noting:
            known = self.state or State.nothing(self._description.layout)
            begins = np.maximum(changes.pop("begins", known.begins), self._gone)
            changes |= {"boot": self._files.boot_id(), "begins": tuple(begins.tolist())}
            self.state = dataclasses.replace(known, **changes).note(self._files)

    def refuse_to_write_elsewhere(self) -> None:
        """Raise a NotAStoreError where the store was moved or removed since it was locked: another may be in its place."""
        if self._writer_lock is not None:
            self._writer_lock.require_place()

    def sync(self, heads: Int64, begins: Int64, tail: CopyNote | None, values: ValuesNote | None) -> None:
        """Sync what was written later, the names of all files and the table to the disk, in this order; and note that.

        `heads` are the positions of the newest rows, `begins` those before which none counts, both of one moment. Their
        segments are synced already, and `tail`, which has those rows that are not there yet. `values` was taken before
        `heads`: it has none of an episode that is not on the disk.
        """
        self.refuse_to_write_elsewhere()
        with self._lock:  # they may be written to again at any time, as samplers keep them mapped
            layout, written = self._description.layout, list(self.written)
        self._files.sync_all(layout.data_file(path, slot) for path, slot in sorted(written))
        self._files.sync_all(layout.schema.recorded)
        self.sync_names_of_derived()
        self.sync_table()
        self.refuse_to_write_elsewhere()
        if values is not None:
            self._files.sync_all([values.name, os.path.dirname(values.name)])
        self._note(clean=False, synced=tuple(heads.tolist()), begins=begins, tail=tail, values=values)
        with contextlib.suppress(OSError):  # the next flush does it
            remove_others(self._files, tail)
            if values is not None:
                remove_other_values(self._files, values, older=True)

    def sync_names_of_derived(self) -> None:
        """Sync which files of derived columns there are: of no segment fewer than it has, if it is there itself.

        Or a power loss could bring back values of a slot's former rows. The lock need not be held.
        """
        layout = self._description.layout
        if layout.derived:
            self._files.sync_all(list(self._table.names(f"{SEGMENTS}/length")))
        self._files.sync_all(layout.derived)

    def sync_table(self) -> None:
        """Sync the table to the disk."""
        with self._lock:
            names = list(self._table.names())
        self._files.sync_all(names)

    def note_closed(self, maps: Maps) -> None:
        """Note that everything is on the disk, and has its checksums."""
        for path, slot in sorted(self.written):
            self._table.set_checksum(path, slot, file_checksum(self._description.layout, path, maps.get(path, slot)))
        self.sync_table()
        self._files.sync(CLEARED_FILE)  # else the note tells what was cleared
        self._note(clean=True)

    def after_fork(self) -> None:
        """In the child: nothing is written there."""
        self._writer_lock = None
