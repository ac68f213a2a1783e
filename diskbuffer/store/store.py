"""A store that is open: slots are allotted and evicted, segments mapped, and everything synced."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.schema import Column
from diskbuffer.store import directory
from diskbuffer.store.files import Files, Map
from diskbuffer.store.lock import WriterLock
from diskbuffer.store.maps import Maps
from diskbuffer.store.segments import SegmentTable

Int64 = npt.NDArray[np.int64]


class SlotMovedError(Exception):
    """A slot holds other rows than this reader's index says: refresh it, and draw again."""


class Store:
    """The open files of a store, read-only or with the writer's lock.

    `lock` guards the maps, the table and whatever the owner keeps beside them; it is held for microseconds.
    """

    def __init__(self, root: Path, *, writable: bool, files: Files | None = None) -> None:
        self.root = root
        self.layout, slots = directory.read_metadata(root)
        self.files = files or Files(root)
        self.writable = writable
        self.lock = threading.RLock()
        self._writer_lock = WriterLock(root) if writable else None
        try:
            self.table = SegmentTable(self.files, self.layout, writable=writable)
            self.maps = Maps(self.files, self.layout, self._verify, writable=writable)
            self._written: set[str] = set()  # files of derived columns that were opened for writing
            if writable:
                self.layout, slots = directory.read_metadata(root)  # again, now that nobody else can change it
                directory.grow(self.files, self.layout, slots)  # where a kill came between the arrays
            self._have_room(slots)
            self.tails = {path: self._map_tail(path) for path in self.layout.packed}
            self._seen = self._identities()
            used = self.table.column("length") > 0
            self.free = [int(slot) for slot in np.flatnonzero(~used)]
            if writable:
                directory.remove_strays(self.files, self.layout, self.free)
        except BaseException:
            self.unlock()
            raise

    def _have_room(self, slots: int) -> None:
        self.table.grow(slots)
        self.maps.grow(slots)

    def _map_tail(self, path: str) -> Map:
        size = self.layout.streams * self.layout.tail_rows * self.layout.schema[path].row_bytes
        return self.files.map(directory.tail_file(self.layout, path), size, writable=self.writable)

    def tail(self, path: str) -> npt.NDArray[np.uint8]:
        """View the tail of a packed column as bytes: (streams, tail_rows, row_bytes)."""
        shape = (self.layout.streams, self.layout.tail_rows, self.layout.schema[path].row_bytes)
        return self.tails[path].array(np.uint8, shape)

    def reread(self) -> None:
        """See what a writer in another process has done since: more slots, and slots that hold other rows now."""
        layout, slots = directory.read_metadata(self.root)
        self.layout = dataclasses.replace(self.layout, tags=layout.tags)
        if len(layout.schema) > len(self.layout.schema):
            self.layout = layout
            self.maps.take_columns(layout)
        self.maps.forget_zeros()
        if slots > self.table.slots:
            self._have_room(slots)
        seen = self._identities()
        for slot in np.flatnonzero((seen[:, : self._seen.shape[1]] != self._seen).any(axis=0)):
            self.maps.retire(int(slot))
        self._seen = seen

    def unchanged(self, slots: Int64) -> bool:
        """Tell whether slots still hold the rows that `reread` saw."""
        return bool((self._identities()[:2, slots] == self._seen[:2, slots]).all())

    def _verify(self, slot: int) -> None:
        """Make sure that a slot still holds the rows that it was seen with: a writer elsewhere may have used it again."""
        if self.writable:
            return
        if self.table.get("length", slot) == 0 or (self._seen[:2, slot] != self._identity(slot)).any():
            raise SlotMovedError(f"{self.root}: slot {slot} was evicted by the writer; refresh")

    def _identity(self, slot: int) -> tuple[int, int]:
        return self.table.get("stream", slot), self.table.get("first_row", slot)

    def _identities(self) -> Int64:
        """Return what tells whether a slot's files were replaced: (3, slots)."""
        return np.stack([self.table.column(name).astype(np.int64) for name in ("stream", "first_row", "sealed")])

    def flags(self, path: str, slot: int, length: int) -> npt.NDArray[np.bool_]:
        """Return a copy of the first `length` values of a flag in one segment, without keeping its map."""
        size = self.layout.flat_bytes(path)
        mapped = self.files.map(self.layout.data_file(path, slot), size, writable=False)
        return mapped.array(np.bool_, (size,))[:length].copy()

    def take_slot(self, stream: int, first_row: int) -> int:
        """Allot a free slot to the rows of a stream from `first_row` on, its length zero still; grow where none is free."""
        if not self.free:
            slots = self.maps.sources.shape[1]
            more = slots + max(self.layout.streams, slots // 8)
            self.table.grow(more, create=True)
            directory.grow(self.files, self.layout, more)
            self.maps.grow(more)
            self.free = list(range(slots, more))
        slot = self.free.pop(0)  # the one evicted longest ago, which readers elsewhere have forgotten most likely
        for name, value in (
            ("stream", stream),
            ("first_row", first_row),
            ("first_step", 0),
            ("episode_start", 0),
            ("completed", 0),
            ("sealed", 0),
        ):
            self.table.set(name, slot, value)
        for path in self.layout.derived:  # what an eviction could not remove
            self.files.remove(self.layout.data_file(path, slot))
        return slot

    # Derived columns

    def add_column(self, name: str, column: Column) -> None:
        """Add a derived column, of zeros until something is written."""
        layout = dataclasses.replace(self.layout, schema=self.layout.schema.with_derived(name, column))
        directory.add_column(self.files, layout, self.table.slots, name)
        self.layout = layout
        self.maps.take_columns(layout)

    def add_tag(self, tag: str) -> int:
        """Return the number of a tag, a new one if need be."""
        if tag not in self.layout.tags:
            layout = dataclasses.replace(self.layout, tags=(*self.layout.tags, tag))
            directory.write_group(self.files, layout, self.table.slots)
            self.layout = layout
        return self.layout.tags.index(tag) + 1

    def derived(self, name: str, slot: int) -> npt.NDArray[Any]:
        """View one segment of a derived column, (segment_rows, ...), to write to it."""
        column = self.layout.schema[name]
        mapped = self.maps.writable(name, slot)
        self._written.add(self.layout.data_file(name, slot))
        return mapped.array(column.np_dtype, (self.layout.segment_rows, *column.shape))

    def values(self, name: str, slot: int) -> npt.NDArray[Any]:
        """View one segment of a flat column, (segment_rows, ...), to read from it."""
        column = self.layout.schema[name]
        self.maps.ensure([slot])
        return self.maps.get(name, slot).array(column.np_dtype, (self.layout.segment_rows, *column.shape))

    # Evicting and syncing

    def evict(self, slot: int) -> None:
        """Give a segment's disk space back. Whoever reads it now reads on, through the maps he has."""
        self.table.set("length", slot, 0)
        self.maps.retire(slot)
        self.free.append(slot)
        with contextlib.suppress(OSError):  # a new segment's file takes the place of one that stayed
            self.remove_files(slot)

    def remove_files(self, slot: int) -> None:
        """Remove a slot's files, where they are."""
        for path in self.layout.schema:
            self.files.remove(self.layout.data_file(path, slot))
            self._written.discard(self.layout.data_file(path, slot))

    def sync_slot(self, slot: int) -> None:
        """Bring one segment's files to the disk."""
        for path in self.layout.schema:
            self.files.sync(self.layout.data_file(path, slot))

    def sync_table(self) -> None:
        """Bring the segment table, the tail, what was written later, and the names of all files to the disk."""
        for name in sorted(self._written):  # they may be written to again at any time, as the sampler keeps them mapped
            self.files.sync(name)
        for name in self.table.names():
            self.files.sync(name)
        for path in self.layout.packed:
            self.files.sync(directory.tail_file(self.layout, path))
        for path in self.layout.schema:
            self.files.sync(path)
        self.files.sync(".")

    def disk_bytes(self) -> int:
        """Return the bytes that the store takes on the disk, holes not counted."""
        total = 0
        for entry in self.root.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                stat = entry.stat()
                total += stat.st_blocks * 512 if hasattr(stat, "st_blocks") else stat.st_size
        return total

    def unlock(self) -> None:
        """Let another writer in; twice is fine."""
        if self._writer_lock is not None:
            self._writer_lock.release()
