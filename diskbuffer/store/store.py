"""A store that is open: slots are allotted and evicted, segments mapped, and everything synced."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import ClosedError, CorruptionError, EvictedError, LockedError, NotAStoreError
from diskbuffer.runtime import forks
from diskbuffer.schema import TAG, Column
from diskbuffer.store import directory
from diskbuffer.store.copies import marks
from diskbuffer.store.copies.marks import Origin
from diskbuffer.store.format import codec
from diskbuffer.store.format.layout import CHECKSUMS, SEGMENTS, Layout
from diskbuffer.store.last_writer import Fate, State, how_it_was_left
from diskbuffer.store.recovery import recovery
from diskbuffer.store.recovery.recovery import Kept
from diskbuffer.store.segments.mapped import Maps, Zeros, checked_map
from diskbuffer.store.segments.shard import shard_checksum
from diskbuffer.store.segments.table import NEVER, UNCHECKED, SegmentTable
from diskbuffer.store.system.files import Files, Map, files_at
from diskbuffer.store.system.overlay import Layers
from diskbuffer.store.system.writer_lock import WriterLock, describe_holder, is_held

Int64 = npt.NDArray[np.int64]


def file_checksum(layout: Layout, path: str, mapped: Map | Zeros) -> int:
    """Return what the table has as the checksum of a segment's file."""
    if path in layout.chunks_of:
        return shard_checksum(mapped, layout.chunks(path))
    found = codec.checksum(mapped.array(np.uint8, (mapped.size,)))
    return found if path not in layout.derived or found > UNCHECKED else found + 2


_PATIENCE = 60.0  # seconds that a reader waits for a writer who recovers a store


class Store:
    """The open files of a store, read-only or with the writer's lock.

    Without `recover` it is as its last writer left it, whatever that is: to be checked, and repaired. With `back_to` it goes back
    to a mark first. `lock` is the writer's, of who has it already.

    `lock` guards the maps, the table and whatever the owner keeps beside them. It is held for microseconds: what takes the disk's
    time (syncing, walking the files) is done without it.
    """

    def __init__(
        self,
        root: Path | Files,
        *,
        writable: bool,
        recover: bool = True,
        back_to: str | None = None,
        lock: WriterLock | None = None,
    ) -> None:
        self.files = files_at(root)
        self.layout, slots = directory.read_metadata(self.files)
        directory.refuse_links(self.files, self.layout, slots, SEGMENTS)
        self._way_back: tuple[Files, Origin] | None = None  # for a reader: of a store that a kill left on its way to a mark
        if not writable:
            self._follow_the_way_back()
            self.layout, slots = directory.read_metadata(self.files)
        self._origin = Origin.read(self.files)
        self.root = self.files.root
        self.writable = writable
        self.lock = threading.RLock()
        self._noting = threading.Lock()  # of the note of how far rows were synced, which takes the disk's time to write
        self._closed = False
        self._described = True  # whether the files describe the store as it is
        self._held_for_fork = False
        self._writer_lock = (lock or WriterLock(self.files)) if writable else None
        try:
            if writable:
                if back_to is not None:
                    marks.go_back(self.files, back_to)
                else:
                    marks.finish(self.files)
                marks.clear_up(self.files)
                self._origin = Origin.read(self.files)
                self.layout, slots = directory.read_metadata(self.files)
            directory.refuse_links(self.files, self.layout, slots)
            self.table = SegmentTable(self.files, self.layout, writable=writable)
            self.maps = Maps(self.files, self.layout, self._verify, self._check, self.is_sealed, writable=writable)
            self.written: set[tuple[str, int]] = set()  # segments of derived columns that were opened for writing
            if writable and (directory.strange_metadata(self.files, self.layout, slots) or not directory.is_copied(self.files)):
                self.layout = directory.grow(self.files, self.layout, slots)  # a crash came between the arrays
            self._have_room(slots)
            self.tails = {path: self._map_tail(path) for path in self.layout.packed}
            self._seen = self._identities()
            # Slots that were seen to be sealed, and what vouched for it.
            sealed = np.flatnonzero(self.table.sealed())  # all at once, which takes a hundredth of the time
            self._sealed = dict(zip(sealed.tolist(), self.table.column("sealed")[sealed].tolist(), strict=True))
            self._disbelieved: set[int] = set()
            self._state: State | None = None
            self._heads_synced = np.full(self.layout.streams, -1, np.int64)
            self.distrusted: Kept | None = None  # for a reader of what a power loss left: what counts of it
            self.unsettled: dict[int, bool] = {}  # for a reader of what was not closed: with which newest rows an episode ends
            if recover:
                self._recover()
            self.free = np.flatnonzero(self.table.column("length") == 0).tolist()
            if writable and recover:
                self._begin_no_later_than_the_newest()
                if self.layout.removed:  # a crash came in between
                    self._finish_removing()
                directory.remove_strays(self.files, self.layout, self.table.slots, self.free)
        except BaseException as error:
            marks.tell_how_to_make_room(error, self.files)
            self.unlock()
            raise
        forks.hold_still(self)

    def _recover(self) -> None:
        """Find out what counts of that which the last writer left; a CorruptionError where it is damaged."""
        if not self.writable and self._is_written_to():
            self._state = State.read(self.files, self.layout.salt)
            return  # a living writer knows what he writes
        directory.refuse_older(self.root, self.layout.salt)
        state = self._state = State.read(self.files, self.layout.salt)
        fate, synced = how_it_was_left(state, self.files, self.layout.streams)
        if fate is not Fate.LOST_POWER:
            recovery.make_sure(self, synced, settled=fate is Fate.CLOSED)
        else:
            kept = recovery.find_what_counts(self, synced)
            if self.writable:
                recovery.keep(self, kept)
            else:
                self.distrusted, self.maps.lenient = kept, True
                recovery.overlook_bad_chunks(self, kept)
        if not self.writable:
            self.unsettled = {} if fate is Fate.CLOSED else recovery.unsettled_ends(self)
        else:
            if fate is Fate.CLOSED:
                self._heads_synced = recovery.heads(self)
                self._note_state(clean=False)
            else:  # what a process that died had written may still be in the page cache alone
                recovery.settle_newest(self)
                self._vouch_for_what_is_unchecked()
                for slots, _ in self.segments():
                    for slot in slots.tolist():
                        self.sync_slot(slot, self.layout.derived if self.is_sealed(slot) else self.layout.schema)
                self.sync(recovery.heads(self), self.written_files())

    def _begin_no_later_than_the_newest(self) -> None:
        """Have the next rows count where a power loss took some that had been cleared."""
        begins = np.minimum(self.layout.begins or 0, recovery.heads(self) + 1)
        if self.layout.begins and tuple(begins.tolist()) != self.layout.begins:
            self.layout = self._describe(dataclasses.replace(self.layout, begins=tuple(begins.tolist())))

    def _follow_the_way_back(self) -> None:
        """Read the mark that a store is going back to, where its writer died on the way; wait for one who lives."""
        begun = time.monotonic()
        while (origin := Origin.read(self.files)) is not None and origin.back_to is not None:
            if not is_held(self.files):
                self._way_back = self.files, origin
                self.files = marks.find(self.files, origin.back_to)
                return
            if time.monotonic() - begun > _PATIENCE:
                raise LockedError(f"{self.files.root} is going back to a mark, which takes long; try again later")
            time.sleep(0.01)

    def _is_written_to(self) -> bool:
        """Tell whether there is a living writer; wait for one who is still looking at what the last has left, or is closing."""
        begun = time.monotonic()
        while (held := is_held(self.files)) is not False:
            state = State.read(self.files, self.layout.salt)
            if held is None:
                if state is not None and state.clean:
                    return False
                raise LockedError(
                    f"{self.root} was not closed, and whether somebody is writing to it cannot be known, as its file system has "
                    f"no locks: it was opened for writing last by {describe_holder(self.files)}. Close it there; or, if nobody "
                    "writes any more, copy it to a local disk and open the copy"
                )
            if state is not None and not state.clean and state.boot == self.files.boot_id():
                return True
            if time.monotonic() - begun > _PATIENCE:
                raise LockedError(f"{self.root} is being recovered by its writer, which takes long; try again later")
            time.sleep(0.01)
        return False

    def _note_state(self, *, clean: bool) -> None:
        heads, generation = tuple(int(n) for n in self._heads_synced), self.layout.generation
        self._state = State(self.files.boot_id(), clean, heads, self.layout.salt, generation).note(self.files)

    def segments(self) -> list[tuple[Int64, Int64]]:
        """Return the slots of each stream, in the order of its rows, and how many rows of each count."""
        if self.distrusted is not None:
            return self.distrusted
        streams = self.table.by_stream()
        length = self.table.column("length")  # now: a writer elsewhere may have added since, and must not have evicted only
        return [(slots, length[slots]) for slots in streams]

    def _have_room(self, slots: int) -> None:
        self.table.grow(slots)
        self.maps.grow(slots)

    def _map_tail(self, path: str) -> Map:
        size = self.layout.streams * self.layout.tail_rows * self.layout.schema[path].row_bytes
        name = directory.tail_file(self.layout, path)
        Layers(self.files).copy_up(name)
        return self.files.map(name, size, writable=self.writable)

    def tail(self, path: str) -> npt.NDArray[np.uint8]:
        """View the tail of a packed column as bytes: (streams, tail_rows, row_bytes)."""
        shape = (self.layout.streams, self.layout.tail_rows, self.layout.schema[path].row_bytes)
        return self.tails[path].array(np.uint8, shape)

    def _refuse_another(self) -> None:
        """Raise a CorruptionError where another store took the place of the one that was opened."""
        turned = self._way_back is not None and Origin.read(self._way_back[0]) != self._way_back[1]
        if turned or Origin.read(self.files) != self._origin:
            raise CorruptionError(
                f"{self.root} is not the store any more that was opened: it went back to a mark since, or was replaced; open it "
                "again"
            )

    def reread(self) -> None:
        """See what a writer in another process has done since: more slots, and slots that hold other rows now."""
        if not self.files.is_in_place():
            raise CorruptionError(f"{self.root} was moved, removed or replaced since it was opened; open it again")
        self._refuse_another()
        slots = self._reread_columns()
        if (self.distrusted is not None or self.unsettled) and State.read(self.files, self.layout.salt) != self._state:
            self.distrusted, self.unsettled, self.maps.lenient = None, {}, False  # a writer has opened it since, and decided
            self._disbelieved.clear()
            for n in range(self.table.slots):
                self.maps.retire(n)
        self.maps.forget_zeros()
        if slots > self.table.slots:
            self._have_room(slots)
        seen = self._identities()
        for slot in np.flatnonzero((seen[:, : self._seen.shape[1]] != self._seen).any(axis=0)):
            self.maps.retire(int(slot))
        self._seen = seen

    def _reread_columns(self) -> int:
        """See which columns there are by now; return the number of slots."""
        while True:
            layout, slots = directory.read_metadata(self.root)
            anew = layout.removals != self.layout.removals
            more = len(layout.schema) > len(self.layout.schema)
            try:
                if anew or more:
                    self.table.take_columns(layout)
            except CorruptionError:  # their files are gone, as the writer removed one more meanwhile
                if directory.read_metadata(self.root)[0].removals == layout.removals:
                    raise
                continue
            if anew or more:
                self.maps.take_columns(layout, anew=anew)
                self.layout = dataclasses.replace(self.layout, schema=layout.schema)
            changing = ("tags", "removals", "removed", "capacity", "begins")
            self.layout = dataclasses.replace(self.layout, **{name: getattr(layout, name) for name in changing})
            return slots

    def unchanged(self, slots: Int64) -> bool:
        """Tell whether slots still hold the rows that `reread` saw."""
        self._refuse_another()
        return bool((self._identities()[:2, slots] == self._seen[:2, slots]).all())

    def _verify(self, slot: int, *, damaged: bool = False) -> None:
        """Make sure that a slot still holds the rows that it was seen with: a writer elsewhere may have used it again."""
        if self.writable:
            return
        self._refuse_another()
        if damaged and directory.read_metadata(self.root)[0].removals != self.layout.removals:
            raise EvictedError(f"{self.root}: a column was removed by the writer; refresh, and read again")
        if self.table.length(slot) == 0 or (self._seen[:2, slot] != self.table.identity(slot)).any():
            raise EvictedError(f"{self.root}: slot {slot} was evicted by the writer; refresh, and draw again")

    def _identities(self) -> Int64:
        """Return what tells whether a slot's files were replaced: (3, slots)."""
        return np.stack([self.table.column(name).astype(np.int64) for name in ("stream", "first_row", "sealed")])

    def flags(self, path: str, slot: int, length: int) -> npt.NDArray[np.bool_]:
        """Return a copy of the first `length` values of a flag in one segment, without keeping its map."""
        size = self.layout.flat_bytes(path)
        mapped = self._checked(path, slot, size)
        return mapped.array(np.bool_, (size,))[:length].copy()

    # Checksums

    def is_sealed(self, slot: int) -> bool:
        """Tell whether a slot is sealed, so that its files have checksums."""
        word = 0 if slot in self._disbelieved else self.table.get("sealed", slot)
        if word and self._sealed.get(slot) != word and self.table.is_sealed(slot):
            self._sealed[slot] = word
        return bool(word) and self._sealed.get(slot) == word

    def disbelieve(self, slot: int) -> None:
        """Have a slot count as not sealed, as its files are not those that were."""
        if self.writable:
            self.table.unseal(slot)
        else:
            self._disbelieved.add(slot)

    def _check(self, path: str, slot: int, mapped: Map | Zeros) -> None:
        """Refuse a file that is not what the table vouches for. Done when it is mapped; chunks are checked when decoded."""
        if path in self.layout.derived:
            if self.distrusted is None:
                self._check_derived(path, slot, mapped)
        elif self.is_sealed(slot) and self.table.checksum(path, slot) != self._checksum(path, mapped):
            raise CorruptionError(self._mismatch(path, slot))

    def _check_derived(self, path: str, slot: int, mapped: Map | Zeros) -> None:
        """Do so for a column that may be written to elsewhere while it is looked at: then what is noted changes, too."""
        noted = self.table.checksum(path, slot)
        while noted not in (NEVER, UNCHECKED):
            if isinstance(mapped, Zeros):
                if self.files.exists(self.layout.data_file(path, slot)):
                    return  # made since by a writer elsewhere
                raise CorruptionError(f"{self.describe(path, slot)}: the file is missing; was it removed?")
            if noted == self._checksum(path, mapped):
                return
            before, noted = noted, self.table.checksum(path, slot)
            if noted == before:
                raise CorruptionError(self._mismatch(path, slot))

    def _mismatch(self, path: str, slot: int) -> str:
        return (
            f"{self.describe(path, slot)}: the checksum does not match; the file was damaged, or replaced by another. "
            "`diskbuffer check --repair` saves what can be saved"
        )

    def verify_file(self, path: str, slot: int) -> None:
        """Raise a CorruptionError where a segment's file is missing, of the wrong size, or not what the table vouches for."""
        size = -1 if path in self.layout.chunks_of else self.layout.flat_bytes(path)
        self._checked(path, slot, size)

    def _checked(self, path: str, slot: int, size: int) -> Map:
        name = self.layout.data_file(path, slot)
        return checked_map(lambda: self.files.map(name, size, writable=False), lambda found: self._check(path, slot, found))

    def verify_files(self) -> None:
        """Raise a CorruptionError where a file of any segment is missing or, if it is sealed, not what the table vouches for."""
        if self._state is None or not self._state.clean:
            raise CorruptionError(f"{self.root}: how it was left is not known; state.json is missing or damaged")
        for slots, _ in self.segments():
            for slot in slots.tolist():
                for path in self.layout.schema.recorded:
                    self.verify_file(path, slot)

    def _checksum(self, path: str, mapped: Map | Zeros) -> int:
        return file_checksum(self.layout, path, mapped)

    def describe(self, path: str, slot: int) -> str:
        """Name a segment's file, its column and its steps, for errors."""
        stream, first = self.table.identity(slot)
        return self.describe_rows(path, slot, stream, first, first + max(self.table.length(slot), 1) - 1)

    def describe_rows(self, path: str, slot: int, stream: int, first: int, last: int) -> str:
        """Name rows of a stream in a column, and the file in which they are."""
        n = self.layout.streams
        return (
            f"{self.root / self.layout.data_file(path, slot)} (column {path!r}, rows {first} to {last} of stream {stream}, "
            f"steps {first * n + stream} to {last * n + stream})"
        )

    def refuse_to_write_elsewhere(self) -> None:
        """Raise a NotAStoreError where the store was moved or removed since it was locked: another may be in its place."""
        if self._writer_lock is not None and not self._writer_lock.is_in_place():
            raise NotAStoreError(
                f"{self.root} was moved, removed or replaced while this buffer wrote to it; nothing more is written there. Open "
                "the store where it is now"
            )

    def take_slot(self, stream: int, first_row: int) -> int:
        """Allot a free slot to the rows of a stream from `first_row` on, its length zero still; grow where none is free.

        Before a row counts there, `sync_names_of_derived` is due.
        """
        self.refuse_to_write_elsewhere()
        if not self.free:
            slots = self.maps.sources.shape[1]
            more = slots + max(self.layout.streams, slots // 8)
            self.table.grow(more, create=True)
            directory.mend(self.files, self.layout, more)
            self.layout = self._describe(self.layout, more)
            self.maps.grow(more)
            self.free = list(range(slots, more))
        slot = self.free[0]  # the one evicted longest ago, which readers elsewhere have forgotten most likely
        for path in self.layout.derived:  # what an eviction could not remove
            self.files.remove(self.layout.data_file(path, slot))
        self.table.allot(slot, stream, first_row)
        return self.free.pop(0)

    def _describe(self, layout: Layout, slots: int | None = None) -> Layout:
        """Describe the store anew, for good; return the layout with the number of the description."""
        self._described = False
        layout = directory.write_group(self.files, layout, self.table.slots if slots is None else slots)
        self._described = True
        return layout

    def settle_description(self) -> None:
        """Describe the store as it is, where an attempt to change that failed, and may have left half of another description."""
        if not self._described:
            self.layout = self._describe(self.layout)

    # Derived columns

    def add_column(self, name: str, column: Column) -> None:
        """Add a derived column, of zeros until something is written."""
        removed = tuple(path for path in self.layout.removed if path != name)
        schema = self.layout.schema.with_derived(name, column)
        layout = dataclasses.replace(self.layout, schema=schema, removed=removed)
        directory.remove_data(self.files, name)  # of a column that a power loss took back
        for path in directory.mend(self.files, layout, self.table.slots):
            self.files.sync(path)
            self.files.sync(os.path.dirname(path) or ".")
        self.table.take_column(layout, name, create=True)
        for file in self.table.names(f"{CHECKSUMS}/{name}"):
            self.files.sync(file)
        self.layout = self._describe(layout)  # which settles it
        self.maps.take_columns(layout)

    def remove_column(self, name: str) -> None:
        """Remove a derived column. The group's file comes first: without it, files of a column that is there would be missing."""
        self.refuse_to_write_elsewhere()
        layout = dataclasses.replace(
            self.layout,
            schema=self.layout.schema.without_derived(name),
            tags=() if name == TAG else self.layout.tags,
            removals=self.layout.removals + 1,
            removed=tuple(dict.fromkeys([*self.layout.removed, name])),
        )
        layout = self._describe(layout)  # which settles it
        self.written = {(path, slot) for path, slot in self.written if path != name}
        self.table.drop_column(layout)
        self.maps.take_columns(layout)
        self.layout = layout
        self._finish_removing()

    def _finish_removing(self) -> None:
        """Remove the files of columns that were removed, which may take a few attempts if the disk fails, and forget them."""
        for path in self.layout.removed:
            directory.remove_column(self.files, path)
        self.layout = self._describe(dataclasses.replace(self.layout, removed=()))

    def add_tag(self, tag: str) -> int:
        """Return the number of a tag, a new one if need be."""
        if tag not in self.layout.tags:
            layout = dataclasses.replace(self.layout, tags=(*self.layout.tags, tag))
            self.layout = self._describe(layout)
        return self.layout.tags.index(tag) + 1

    def begin_at(self, positions: Int64) -> None:
        """Have no row count, for good, that lies before a position, (streams,): steps are cleared."""
        self.refuse_to_write_elsewhere()
        begins = tuple(np.maximum(positions, self.layout.begins or 0).tolist())
        self.layout = self._describe(dataclasses.replace(self.layout, begins=begins))

    def resize(self, capacity: int | None, lows: Int64) -> None:
        """Change the capacity, for good. `lows` are the positions of the oldest rows that there are, (streams,)."""
        self.refuse_to_write_elsewhere()
        layout = dataclasses.replace(self.layout, capacity=capacity)
        if capacity is None:  # or what was evicted would be missed
            layout = dataclasses.replace(layout, begins=tuple(np.maximum(lows, layout.begins or 0).tolist()))
        self.layout = self._describe(layout)

    def derived(self, name: str, slot: int) -> npt.NDArray[Any]:
        """View one segment of a derived column, (segment_rows, ...), to write to it."""
        if self._closed:
            raise ClosedError(f"{self.root} was closed while column {name!r} was written to; open it again, and go on")
        column = self.layout.schema[name]
        mapped = self.maps.writable(name, slot)
        self.written.add((name, slot))
        if self.table.checksum(name, slot) != UNCHECKED:
            self.table.set_checksum(name, slot, UNCHECKED)
        return mapped.array(column.np_dtype, (self.layout.segment_rows, *column.shape))

    def vouch_for_derived(self, name: str, slot: int) -> None:
        """Note the checksum of a segment that was written to."""
        self.table.set_checksum(name, slot, file_checksum(self.layout, name, self.maps.get(name, slot)))

    def _vouch_for_what_is_unchecked(self) -> None:
        """Note the checksums of files of derived columns that somebody had written to who died before he could."""
        for path in self.layout.derived:
            for slot in np.flatnonzero(self.table.column("length")).tolist():
                if self.table.checksum(path, slot) == UNCHECKED:
                    self.vouch_for_derived(path, slot)

    def values(self, name: str, slot: int) -> npt.NDArray[Any]:
        """View one segment of a flat column, (segment_rows, ...), to read from it."""
        column = self.layout.schema[name]
        self.maps.ensure([slot], (name,))
        return self.maps.get(name, slot).array(column.np_dtype, (self.layout.segment_rows, *column.shape))

    # Evicting and syncing

    def evict(self, slot: int) -> None:
        """Give a segment's disk space back. Whoever reads it now reads on, through the maps he has."""
        self.table.set_length(slot, 0)
        self.maps.retire(slot)
        self.free.append(slot)
        with contextlib.suppress(OSError):  # a new segment's file takes the place of one that stayed
            self.remove_files(slot)

    def remove_files(self, slot: int) -> None:
        """Remove a slot's files, where they are."""
        if self._writer_lock is not None and not self._writer_lock.is_in_place():
            return  # another store's may be there
        for path in self.layout.schema:
            self.files.remove(self.layout.data_file(path, slot))
            self.written.discard((path, slot))

    def sync_slot(self, slot: int, paths: Iterable[str] | None = None) -> None:
        """Bring one segment's files to the disk: of all columns, or of these."""
        for path in self.layout.schema if paths is None else paths:
            self.files.sync(self.layout.data_file(path, slot))

    def written_files(self) -> list[str]:
        """Return the files of derived columns that were written to."""
        return [self.layout.data_file(path, slot) for path, slot in sorted(self.written)]

    def sync(self, heads: Int64, written: Iterable[str]) -> None:
        """Bring the tail, what was written later, the names of all files and the table to the disk, in this order.

        `heads` are the positions of the newest rows, whose segments are synced already. `written` are files of derived
        columns, which may be written to again at any time, as samplers keep them mapped.
        """
        self.refuse_to_write_elsewhere()
        for name in written:
            self.files.sync(name)
        for path in self.layout.packed:
            self.files.sync(directory.tail_file(self.layout, path))
        for path in self.layout.schema.recorded:
            self.files.sync(path)
        self.sync_names_of_derived()
        self.sync_table(heads)

    def sync_names_of_derived(self) -> None:
        """Bring to the disk which files of derived columns there are: of no segment fewer than it has, if it is there itself.

        Or a power loss could bring back values of a slot's former rows. The lock need not be held.
        """
        if self.layout.derived:
            for name in self.table.names(f"{SEGMENTS}/length"):
                self.files.sync(name)
        for path in self.layout.derived:
            self.files.sync(path)

    def sync_table(self, heads: Int64) -> None:
        """Bring the table to the disk, and then the note that each stream's rows up to `heads` are there."""
        with self.lock:
            names = list(self.table.names())
        for name in names:
            self.files.sync(name)
        self.refuse_to_write_elsewhere()
        with self._noting:
            self._heads_synced = np.maximum(self._heads_synced, heads)
            self._note_state(clean=False)

    def note_closed(self) -> None:
        """Note that everything is on the disk, and has its checksums."""
        for path, slot in sorted(self.written):
            self.table.set_checksum(path, slot, self._checksum(path, self.maps.get(path, slot)))
        self.sync_table(self._heads_synced)
        with self._noting:
            self._note_state(clean=True)
        self._closed = True

    def disk_bytes(self) -> int:
        """Return the bytes that the store and its marks take on the disk: holes not counted, and what they share once."""
        found: dict[tuple[int, int], int] = {}
        for _, stat in self.files.walk():
            found[stat.st_dev, stat.st_ino] = stat.st_blocks * 512 if hasattr(stat, "st_blocks") else stat.st_size
        return sum(found.values())

    # Forks

    def before_fork(self) -> None:
        """Wait until no other thread is at it, and note what a reader must know: a fork is one."""
        self._held_for_fork = self.lock.acquire(timeout=forks.PATIENCE)
        if self.writable:
            self._seen = self._identities()

    def after_fork(self, *, child: bool) -> None:
        """Let others on; in the child, none of whom are there, be a reader."""
        if child:
            self.lock = threading.RLock()
            self.writable = False
            if self._writer_lock is not None:
                self._writer_lock.forget()
                self._writer_lock = None
        elif self._held_for_fork:
            self.lock.release()

    def holds_lock(self) -> bool:
        """Tell whether this thread has the store's lock."""
        return self.lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    def unlock(self) -> None:
        """Let another writer in; twice is fine."""
        if self._writer_lock is not None:
            self._writer_lock.release()
