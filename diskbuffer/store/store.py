"""A store that is open: its slots, its columns, and the files that they are mapped from."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.index.named_values import Named
from diskbuffer.schema.schema import TAG, Column
from diskbuffer.store import directory
from diskbuffer.store.changes import Changeable
from diskbuffer.store.description import Description
from diskbuffer.store.durability import Durability
from diskbuffer.store.episode_values import EpisodeValues, ValuesNote
from diskbuffer.store.following import Following, WayBack
from diskbuffer.store.format.chunks import check_libraries
from diskbuffer.store.format.layout import CHECKSUMS, SEGMENTS, Layout
from diskbuffer.store.last_writer import State, values_left
from diskbuffer.store.segments.cleared import Cleared
from diskbuffer.store.segments.mapped import InMemory, Maps
from diskbuffer.store.segments.table import UNCHECKED, SegmentTable
from diskbuffer.store.system.files import Files, Map
from diskbuffer.store.system.overlay import Layers
from diskbuffer.store.system.writer_lock import WriterLock, session
from diskbuffer.store.tail_copy import CopyNote, Unpacked, copy_tail
from diskbuffer.store.verification import AMBIGUOUS, Verification, as_noted

Int64 = npt.NDArray[np.int64]
_MORE_SLOTS = 8  # at least, when a store grows: the metadata of all its arrays are written anew
Segment = tuple[int, tuple[int, int]]  # a slot, and whose rows it has: the stream, and the position of the first
Kept = list[tuple[Int64, Int64]]  # of each stream, slots in the order of its rows, and how many rows of each


class Store(Changeable):
    """The open files of a store, to read, or with the writer's lock to write, too. `open_store` opens one.

    `lock` guards the maps, the table and whatever the owner keeps beside them. It is held for microseconds: what takes the disk's
    time (syncing, walking the files) is done without it.

    Attributes
    ----------
    free : list of int
        Slots that hold no rows, the one evicted longest ago first.
    retired : dict of (int, (int, int)) to None
        Segments that were cleared since the last flush: slots, and whose rows they have. See `evict_when_flushed`.
    kept : list of ((n,) int64, (n,) int64), optional
        For a reader of what a power loss left: what counts of it, as `segments` returns it. Each stream's newest row is then the
        last of its episode, whatever its flag says: what came later is lost.
    shown : dict of (str, int) to InMemory
        For that reader: shards, by column and slot, that are not shown as they are on the disk.
    """

    def __init__(self, files: Files, *, writer_lock: WriterLock | None = None, way_back: WayBack | None = None) -> None:
        super().__init__()
        self.files, self.root = files, files.root
        self.writable = writer_lock is not None
        self._writer_lock = writer_lock
        layout, slots = directory.read_metadata(files)
        check_libraries(layout.schema)
        directory.refuse_links(files, layout, slots)
        self.description = Description(files, layout)
        self.table = SegmentTable(files, layout, writable=self.writable)
        self.following = Following(files, self.description, self.table, way_back, active=not self.writable)
        self.verification = Verification(files, self.description, self.table)
        self.durability = Durability(files, self.description, self.table, self.lock, writer_lock)
        check, is_sealed = self.verification.check, self.verification.is_sealed
        self.maps = Maps(files, layout, self.following.verify, check, is_sealed, writable=self.writable)
        if self.writable and (directory.strange_metadata(files, layout, slots) or not directory.is_copied(files)):
            self.description.layout = directory.grow(files, layout, slots)  # a crash came between the arrays
        self._ensure_room(slots)
        self.tails = {path: self._map_tail(path) for path in layout.packed}
        self.following.look()
        self.verification.load()
        self.kept: Kept | None = None
        self.episode_values = EpisodeValues(files, layout.salt)
        self._cleared = Cleared(files, layout, writable=self.writable)
        self._begins: Int64 | None = None  # that a reader is shown in their place
        self.shown: dict[tuple[str, int], InMemory] = {}
        self.free: list[int] = []
        self._evicted: dict[int, int] = {}  # slots of which the disk may not know that they hold no rows: the eviction's number
        self._evictions = 0
        self._copies = -1  # the number of the newest copy of the tail
        self.retired: dict[Segment, None] = {}
        self.find_free()

    @property
    def capacity(self) -> int | None:
        """How many steps are kept, the newest; None where all are."""
        return self.layout.capacity

    @property
    def metadata(self) -> list[Mapping[str, Any] | None]:
        """The user's metadata, of each writer's store; here of one."""
        return [self.layout.metadata]

    @property
    def layout(self) -> Layout:
        """The shape of the store, as it is described on the disk."""
        return self.description.layout

    def segments(self) -> Kept:
        """Return the slots of each stream, in the order of its rows, and how many rows of each count."""
        if self.kept is not None:
            return self.kept
        streams = self.table.by_stream()
        length = self.table.column("length")  # now: a writer elsewhere may have added since, and must not have evicted only
        return [(slots, length[slots]) for slots in streams]

    def heads(self, segments: Kept | None = None) -> Int64:
        """Return the position of each stream's newest row, -1 where there is none, (streams,): as `segments` returns them."""
        heads = np.full(self.layout.streams, -1, np.int64)
        for stream, (slots, lengths) in enumerate(self.segments() if segments is None else segments):
            if len(slots):
                heads[stream] = self.table.get("first_row", int(slots[-1])) + lengths[-1] - 1
        return heads

    def reread(self) -> None:
        """See what a writer in another process has done since: more slots, and slots that hold other rows now."""
        self.following.refuse_another()
        slots = self.following.reread_columns(self.maps)
        if self.kept is not None and State.read(self.files, self.layout) != self.durability.state:
            self._go_by_the_table()  # a writer has opened it since, and decided
            self.following.invalidate()
        self.maps.forget_zeros()
        if slots > self.table.slots:
            self._ensure_room(slots)
        known = self.following.invalidations
        for slot in self.following.look().tolist():
            self.maps.retire(slot)
        if self.following.invalidations != known and self.kept is None:
            # sealed files are what they were, or have another checksum
            for slot in np.flatnonzero(self.table.column("sealed") == 0).tolist():
                self.maps.retire(slot)

    def forget_rows(self) -> None:
        """Treat what was seen, and what is mapped, as unknown until the next `reread`."""
        self.following.forget()
        self.maps.retire_all()

    def show_only(self, kept: Kept, begins: Int64) -> None:
        """Show a reader what counts of what a power loss left."""
        self.kept, self._begins, self.maps.lenient = kept, begins, True

    def show(self, path: str, slot: int, shard: InMemory) -> None:
        """Show a reader other contents of a shard than the file's."""
        self.shown[path, slot] = shard
        self.maps.hold(path, slot, shard)

    def _go_by_the_table(self) -> None:
        self.kept, self._begins, self.maps.lenient, self.shown = None, None, False, {}
        for slot in range(self.table.slots):
            self.maps.retire(slot)

    def refuse_evicted(self, slots: Sequence[int] | Int64) -> None:
        """Raise an EvictedError where a slot does not hold the rows any more that were seen there: a writer knows that itself."""
        self.following.refuse_evicted(slots)

    def refuse_to_write_elsewhere(self) -> None:
        """Raise a NotAStoreError where another store may be at the path."""
        self.durability.refuse_to_write_elsewhere()

    # Slots

    def _ensure_room(self, slots: int) -> None:
        self.maps.grow(slots)
        self.table.grow(slots)  # last: it tells that there is room

    def find_free(self, *, known: bool = False) -> None:
        """See which slots hold no rows; `known` tells that the disk knows that, too."""
        self.free = np.flatnonzero(self.table.column("length") == 0).tolist()
        self._evicted = {} if known else dict.fromkeys(self.free, 0)

    def take_slot(self, stream: int, first_row: int) -> int:
        """Allot a free slot to the rows of a stream from `first_row` on, its length zero still; grow where none is free.

        Before a row counts there, `sync_names_of_derived` is due.
        """
        self.durability.refuse_to_write_elsewhere()
        if not self.free:
            slots = self.maps.sources.shape[1]
            more = slots + max(self.layout.streams, slots // 8, _MORE_SLOTS)
            self.table.grow(more, create=True)
            directory.mend(self.files, self.layout, more)
            self.description.replace(self.layout, more)
            self.maps.grow(more)
            self.free = list(range(slots, more))
        slot = self.free[0]  # the one evicted longest ago, which readers elsewhere have forgotten most likely
        if slot in self._evicted:  # else sealing has synced it
            with self._freeing():
                self.files.sync_all(list(self.table.names(f"{SEGMENTS}/length")))
        for path in self.layout.derived:  # what an eviction could not remove
            self.files.remove(self.layout.data_file(path, slot))
        self.table.allot(slot, stream, first_row)
        return self.free.pop(0)

    def evict_when_flushed(self, slot: int) -> None:
        """Give a segment's disk space back once the disk knows that it was cleared: a power loss before undoes that."""
        self.maps.retire(slot)
        self.retired[slot, self.table.identity(slot)] = None

    def evict_flushed(self, segment: Segment) -> None:
        """Give the disk space of such a segment back, if it was not evicted since; the lock must be held."""
        if segment in self.retired:
            del self.retired[segment]
            self._evict(segment[0])

    @property
    def retired_bytes(self) -> int:
        """Bytes of rows, uncompressed, that wait for that."""
        schema = self.layout.schema
        return len(self.retired) * self.layout.segment_rows * sum(schema[path].row_bytes for path in schema.recorded)

    def evict(self, slot: int) -> None:
        """Give a segment's disk space back, and that of those of its stream that were cleared before it.

        Whoever reads them now reads on, through the maps that there are.
        """
        stream, first_row = self.table.identity(slot)
        for segment in [each for each in self.retired if each[1][0] == stream and each[1][1] < first_row]:
            self.evict_flushed(segment)
        self._evict(slot)

    def _evict(self, slot: int) -> None:
        self.table.set_length(slot, 0)
        self.maps.retire(slot)
        self._evictions += 1
        self._evicted[slot] = self._evictions
        self.free.append(slot)
        with contextlib.suppress(OSError):  # a new segment's file takes the place of one that stayed
            self.remove_files(slot)

    def sync_table(self) -> None:
        """Sync the segment table. The lock need not be held."""
        with self._freeing():
            self.durability.sync_table()

    def sync(self, heads: Int64, begins: Int64, tail: CopyNote | None, values: ValuesNote | None) -> None:
        """Sync all that belongs to rows up to `heads`, and note that; see `Durability.sync`."""
        with self._freeing():
            self.durability.sync(heads, begins, tail, values)

    def copy_tail(self, parts: Iterable[Iterable[Unpacked]]) -> CopyNote | None:
        """Copy what is in the tail only, for `sync`; see `diskbuffer.store.tail_copy`."""
        last = self.durability.tail
        self._copies = max(self._copies, -1 if last is None else last.number) + 1  # never one that a flush took which failed
        return copy_tail(self.files, self.layout, self._copies, parts)

    @contextlib.contextmanager
    def _freeing(self) -> Iterator[None]:
        """Let slots that were evicted by now hold other rows, once the disk knows that: or these would pass for those."""
        evictions = self._evictions
        yield
        with self.lock:
            self._evicted = {slot: number for slot, number in self._evicted.items() if number > evictions}

    def remove_files(self, slot: int) -> None:
        """Remove a slot's files, where they are."""
        if self._writer_lock is not None and not self._writer_lock.is_in_place():
            return  # another store's may be there
        for path in self.layout.schema:
            self.files.remove(self.layout.data_file(path, slot))
            self.durability.written.discard((path, slot))

    def verify_files(self) -> None:
        """Raise a CorruptionError where a file of any segment is missing or, if it is sealed, does not match its checksum."""
        state = self.durability.state
        if state is None or not state.clean:
            raise CorruptionError(f"{self.root}: how it was left is not known; state.json is missing or damaged")
        for slots, _ in self.segments():
            for slot in slots.tolist():
                for path in self.layout.schema.recorded:
                    self.verification.verify_file(path, slot)

    # What is described

    def write_description_again(self) -> None:
        """Describe the store as it is, where an attempt to change that failed."""
        self.description.write_again(self.table.slots)

    @property
    def begins(self) -> Int64:
        """The position before which rows of each stream do not count: cleared, or more than the capacity, (streams,)."""
        return np.maximum(self._cleared.positions(), self._cleared.firsts) if self._begins is None else self._begins

    @property
    def cleared(self) -> Int64:
        """The position before which rows of each stream were cleared, (streams,)."""
        return self._cleared.positions()

    @property
    def firsts(self) -> Int64:
        """A view of the positions of the oldest steps that the capacity left, (streams,), which only grow while it is open."""
        return self._cleared.firsts

    @property
    def cleared_place(self) -> tuple[int, Int64]:
        """Where the word lies that is another one after each clear: address, and a view."""
        return self._cleared.place

    def begin_at(self, positions: Int64) -> None:
        """Exclude, for good, rows before a position, (streams,): steps are cleared."""
        with self.writing():
            self._cleared.set(np.maximum(positions, self.cleared))

    def go_back_to(self, begins: Int64) -> None:
        """Have rows before a position not count, (streams,), and those after it, whatever was cleared later."""
        self._cleared.reset(begins)

    def resize(self, capacity: int | None, lows: Int64) -> None:
        """Change the capacity, for good. `lows` are the positions of the oldest rows that there are, (streams,)."""
        with self.writing():
            if capacity is None:  # or what was evicted would be missed
                self.begin_at(lows)
                self.durability.note_gone(lows)
            self.description.change(self.table.slots, capacity=capacity)

    def add_tag(self, tag: str) -> int:
        """Return the number of a tag, from 1 on; of a new one the next."""
        with self.writing():
            if tag not in self.layout.tags:
                every = (*self.layout.tags, tag)
                self.description.change(self.table.slots, tags=every)
            return self.layout.tags.index(tag) + 1

    def values_of_episodes(self, ids: Int64) -> dict[str, Named]:
        """Return the values of episodes by name, (n,) each; those of a writer elsewhere, as they are by now."""
        with self.lock:
            if not self.writable:
                files, layout = self.files, self.layout
                try:
                    self.episode_values.look(lambda: values_left(State.read(files, layout), files), session(files))
                finally:
                    self.following.refuse_another()  # rather than what it found there
            return self.episode_values.of(ids)

    # Columns

    def tail(self, path: str) -> npt.NDArray[np.uint8]:
        """View the tail of a packed column as bytes: (streams, tail_rows, row_bytes)."""
        shape = (self.layout.streams, self.layout.tail_rows, self.layout.schema[path].row_bytes)
        return self.tails[path].array(np.uint8, shape)

    def _map_tail(self, path: str) -> Map:
        size = self.layout.streams * self.layout.tail_rows * self.layout.schema[path].row_bytes
        name = directory.tail_file(self.layout, path)
        Layers(self.files).copy_up(name)
        return self.files.map(name, size, writable=self.writable)

    def values(self, name: str, slot: int) -> npt.NDArray[Any]:
        """View one segment of a flat column, (segment_rows, ...), to read from it."""
        column = self.layout.schema[name]
        self.maps.ensure([slot], (name,))
        return self.maps.get(name, slot).array(column.np_dtype, (self.layout.segment_rows, *column.shape))

    def derived(self, name: str, slot: int) -> npt.NDArray[Any]:
        """View one segment of a derived column, (segment_rows, ...), to write to it."""
        self.refuse_closed()
        column = self.layout.schema[name]
        mapped = self.maps.writable(name, slot)
        self.durability.written.add((name, slot))
        if self.table.checksum(name, slot) != UNCHECKED:
            self.table.set_checksum(name, slot, UNCHECKED)
        return mapped.array(column.np_dtype, (self.layout.segment_rows, *column.shape))

    def noted_checksum(self, name: str, slot: int) -> int | None:
        """Return the CRC32C of a segment of a derived column as it is noted; None where it is not known."""
        checksum = self.table.checksum(name, slot)
        return checksum if checksum > AMBIGUOUS else None

    def note_checksum(self, name: str, slot: int, crc: int | None = None) -> None:
        """Note the checksum of a segment of a derived column that was written to; it is computed where no `crc` is given."""
        if crc is None:
            self.table.set_checksum(name, slot, self.verification.checksum(name, self.maps.get(name, slot)))
        else:
            self.table.set_checksum(name, slot, as_noted(crc))

    def add_column(self, name: str, column: Column) -> None:
        """Add a derived column, of zeros until something is written."""
        with self.writing():
            removed = tuple(path for path in self.layout.removed if path != name)
            schema = self.layout.schema.with_derived(name, column)
            layout = dataclasses.replace(self.layout, schema=schema, removed=removed)
            directory.remove_data(self.files, name)  # of a column that a power loss took back
            directory.mend(self.files, layout, self.table.slots)
            for path in directory.up_to_group(name, f"{CHECKSUMS}/{name}"):  # all: an attempt that failed may have made some
                self.files.sync(path)
            self.table.take_column(layout, name, create=True)
            try:
                for file in self.table.names(f"{CHECKSUMS}/{name}"):
                    self.files.sync(file)
                self.description.replace(layout, self.table.slots)  # from here on it is there
            except BaseException:
                self.table.drop_column(self.layout)
                raise
            self.maps.take_columns(layout)

    def remove_column(self, name: str) -> None:
        """Remove a derived column. The group's file comes first: without it, files of a column that is there would be missing."""
        with self.writing():
            self.description.change(
                self.table.slots,
                schema=self.layout.schema.without_derived(name),
                tags=() if name == TAG else self.layout.tags,
                removals=self.layout.removals + 1,
                removed=tuple(dict.fromkeys([*self.layout.removed, name])),
            )
            written = self.durability.written
            written.difference_update([segment for segment in written if segment[0] == name])
            self.table.drop_column(self.layout)
            self.maps.take_columns(self.layout)
            with contextlib.suppress(OSError):  # it is gone, and the next opening gives its space back
                self.finish_removing()

    def finish_removing(self) -> None:
        """Remove the files of columns that were removed, which may take a few attempts if the disk fails, and forget them."""
        for path in self.layout.removed:
            directory.remove_column(self.files, path)
        self.description.change(self.table.slots, removed=())

    # Closing

    def note_closed(self) -> None:
        """Note that everything is on the disk, and has its checksums."""
        self.durability.note_closed(self.maps)

    def begin_session(self) -> None:
        """Make readers read everything anew: rows that they saw may be others now, as the store was recovered or repaired."""
        if self._writer_lock is not None:
            self._writer_lock.note_holder()

    def keep_rows_of_readers(self) -> None:
        """Keep rows that readers saw valid: neither closing nor a kill changes them."""
        if self._writer_lock is not None:
            self._writer_lock.note_same_rows()

    def close(self) -> None:
        """Release the lock, and unmap all files, those that batches are gathered from once that is done. Twice is fine."""
        with self.lock:
            self.begin_closing()
            if self._writer_lock is not None:
                self._writer_lock.release()
            self.maps.close(self.tails.values())
            self.table.close()
            self.tails = {}
            self._cleared.close()

    def disk_bytes(self) -> int:
        """Return the bytes that the store and its marks take on the disk: holes not counted, and what they share once."""
        sizes: dict[tuple[int, int], int] = {}
        for _, stat in self.files.walk():
            sizes[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
        return sum(sizes.values())

    # Forks

    def before_fork(self) -> None:
        """Note which rows the slots hold, as every reader must: a fork is one."""
        if self.writable and not self.maps.closed:
            self.following.look()

    def after_fork(self) -> None:
        """Become a reader, with a lock of its own."""
        self.lock = threading.RLock()
        self.writable, self.following.active = False, True
        self.durability.after_fork()
        if self._writer_lock is not None:
            self._writer_lock.forget()
            self._writer_lock = None
