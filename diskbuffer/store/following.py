"""How a reader keeps up with a writer in another process, which may use a slot again for other rows at any time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, EvictedError
from diskbuffer.store import directory
from diskbuffer.store.description import Description
from diskbuffer.store.origin import Origin
from diskbuffer.store.segments.mapped import Maps
from diskbuffer.store.segments.table import SegmentTable
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import history, session

Int64 = npt.NDArray[np.int64]

MOVING_SECONDS = 10.0  # that a reader tries again while a writer elsewhere moves segments under it
WayBack = tuple[Files, Origin]  # the store that a kill left on its way to a mark, which is read in its place, and its note


class Following:
    """Know which rows each slot was seen to hold, and whether the directory is still the store that was opened.

    Attributes
    ----------
    active : bool
        Whether somebody else may write to the store.
    invalidations : int
        Another number whenever files of segments that are not sealed may be others now: as with `history`, and the store was
        opened for writing since.
    history : int
        Another number whenever rows that were seen may be others now, at the same positions: the store was recovered after a
        power loss since, or repaired. As long as it stays, writers have only added rows, finished each stream's newest, and
        evicted the oldest.
    """

    def __init__(
        self, files: Files, description: Description, table: SegmentTable, way_back: WayBack | None, *, active: bool
    ) -> None:
        self._files, self._description, self._table = files, description, table
        self._origin, self._way_back = Origin.read(files), way_back
        self.active = active
        self._seen: Int64 = np.empty((3, 0), np.int64)
        self._moved: set[int] = set()
        self.invalidations = self.history = 0
        self._session: tuple[int, ...] | None = None
        self._rows = ""  # what `history` of the writer's lock was
        self._described: tuple[tuple[bytes, bytes], int] | None = None  # the description as it was read, and how many slots

    def invalidate(self) -> None:
        """Mark rows that were seen as to be read anew."""
        self.invalidations, self.history = self.invalidations + 1, self.history + 1

    def look(self) -> Int64:
        """See which rows the slots hold; return those that hold others than they were seen with, or were sealed since."""
        known, self._session = self._session, session(self._files)  # before the table: what a new writer does there comes after
        if known is None or known != self._session:
            self._note_opening()
        before, self._seen = self._seen, self._identities()
        now = self._seen[:, : before.shape[1]]
        differ = now != before
        if (differ[2] & ~differ[0] & ~differ[1] & (before[2] != 0) & (now[2] != 0)).any():  # sealed files were exchanged
            self.invalidate()
        changed = np.flatnonzero(differ.any(axis=0))
        self._moved.update(changed.tolist())
        return changed

    def take_moved(self) -> set[int]:
        """Return the slots that `look` has found changed since this was last called."""
        moved, self._moved = self._moved, set()
        return moved

    def identity(self, slot: int) -> tuple[int, int]:
        """Return whose rows a slot was seen to hold: the stream, and the position of the first."""
        stream, first_row = self._seen[:2, slot].tolist()
        return stream, first_row

    def _note_opening(self) -> None:
        self.invalidations += 1
        known, self._rows = self._rows, history(self._files)
        if not known or known != self._rows:
            self.invalidate()

    def forget(self) -> None:
        """Treat what was seen as unknown until the next look."""
        self._seen[:] = -1

    def _identities(self) -> Int64:
        """Return what tells whether a slot's files were replaced: (3, slots)."""
        return np.stack([self._table.column(name).astype(np.int64) for name in ("stream", "first_row", "sealed")])

    def refuse_another(self) -> None:
        """Raise an error where another store took the place of the one that was opened, or its own earlier state did."""
        self._files.require_place()
        self._refuse_exchanged()

    def _refuse_exchanged(self) -> None:
        turned = self._way_back is not None and Origin.read(self._way_back[0]) != self._way_back[1]
        if turned or Origin.read(self._files) != self._origin:
            raise CorruptionError(
                f"{self._files.root} is not the store any more that was opened: it went back to a mark since, or was replaced; "
                "open it again"
            )

    def unchanged(self, slots: Int64) -> bool:
        """Return whether slots hold the rows that were seen in them, and nobody has opened the store for writing since."""
        self._refuse_exchanged()
        if self._described is None or directory.raw_description(self._files.anew()) != self._described[0]:
            return False
        return session(self._files) == self._session and bool((self._identities()[:2, slots] == self._seen[:2, slots]).all())

    def verify(self, slots: Sequence[int], *, damaged: bool = False) -> None:
        """Raise an EvictedError where one of some slots does not hold the rows any more that it was seen with.

        `damaged` tells that one of its files is not what it should be, as it may be of a column that was removed.
        """
        if not self.active:
            return
        self._refuse_exchanged()
        root = self._files.root
        if damaged and directory.read_metadata(self._files.anew())[0].removals != self._description.layout.removals:
            raise EvictedError(f"{root}: a column was removed by the writer; refresh, and read again")
        for slot in slots:
            if self._table.length(slot) == 0 or (self._seen[:2, slot] != self._table.identity(slot)).any():
                raise EvictedError(f"{root}: slot {slot} was evicted by the writer; refresh, and draw again")

    def refuse_evicted(self, slots: Sequence[int] | Int64) -> None:
        """Raise an EvictedError where a slot does not hold the rows any more that it was seen with, or all of them are gone."""
        if not self.active:
            return
        if not self._files.is_in_place():
            raise EvictedError(f"{self._files.root} was moved, removed or replaced; refresh, and read again")
        some = np.asarray(slots, np.int64)
        known, table = self._seen[:, some], self._table
        moved = (table.entries("stream", some) != known[0]) | (table.entries("first_row", some) != known[1])
        moved |= table.entries("length", some) == 0
        for slot in some[moved][:1].tolist():
            raise EvictedError(f"{self._files.root}: slot {slot} was evicted by the writer; refresh, and read again")

    def reread_columns(self, maps: Maps) -> int:
        """See which columns there are by now; return the number of slots."""
        contents = directory.raw_description(self._files.anew())
        if self._described is None or self._described[0] != contents:
            self._described = contents, self._take_columns(maps)
        return self._described[1]

    @property
    def is_described(self) -> bool:
        """Whether both files that describe the store were the same when they were read last."""
        return self._described is not None and self._described[0][0] == self._described[0][1]

    def _take_columns(self, maps: Maps) -> int:
        while True:
            layout, slots = directory.read_metadata(self._files.anew())
            known = self._description.layout
            anew = layout.removals != known.removals
            more = len(layout.schema) > len(known.schema)
            try:
                if anew or more:
                    self._table.take_columns(layout)
            except CorruptionError:  # their files are gone, as the writer removed one more meanwhile
                if directory.read_metadata(self._files.anew())[0].removals == layout.removals:
                    raise
                continue
            if anew or more:
                maps.take_columns(layout, anew=anew)
                known = dataclasses.replace(known, schema=layout.schema)
            changing = ("tags", "removals", "removed", "capacity")
            self._description.layout = dataclasses.replace(known, **{name: getattr(layout, name) for name in changing})
            return slots
