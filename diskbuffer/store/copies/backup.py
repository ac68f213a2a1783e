"""A copy of a store that is made by a reader, while a writer in another process goes on.

Nobody can be asked to wait, so what is copied is what a kill would leave, and it is recovered in the same way when it is opened.
For that, everything is read in the order opposite to that in which it is written: first the table, by which rows count; then the
tail; then the files into which rows go from there, of each the index before the chunks. Files are held first, by links or by
maps, which takes microseconds each: what the writer evicts or seals after that is still to be had.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, EvictedError
from diskbuffer.runtime.signals import look
from diskbuffer.store import directory
from diskbuffer.store.episode_values import copy_values, what_counts
from diskbuffer.store.format import zarr_metadata
from diskbuffer.store.format.chunks import decode_entry
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.last_writer import State, values_left
from diskbuffer.store.opening import open_store
from diskbuffer.store.origin import Origin
from diskbuffer.store.segments.cleared import CLEARED_FILE, contents_of
from diskbuffer.store.segments.shard import EMPTY, index_of
from diskbuffer.store.segments.table import NEVER, SegmentTable
from diskbuffer.store.system.files import Files, Map
from diskbuffer.store.tail_copy import StoredTail
from diskbuffer.store.verification import file_checksum

Int64 = npt.NDArray[np.int64]

_TRIES = 20
_BLOCK = 64 * 1024  # bytes


def back_up(source: Files, files: Files) -> None:
    """Copy the store in a directory to another, as a kill at some instant since this was called would have left it.

    Whoever opens it first must do so for writing. Files of sealed segments are shared, as in a snapshot. Steps that the writer
    evicts in the first instants may be missing.

    Raises
    ------
    EvictedError
        The writer evicts faster than files can be held.
    """
    for _ in range(_TRIES):
        try:
            _Backup(source, files).make()
            return
        except EvictedError as error:
            torn = error
        for name in {*files.directories()} - {SEGMENTS}:  # by which what is being made is known
            files.remove_directory(name)
        for name in files.directories(SEGMENTS):
            files.remove_directory(f"{SEGMENTS}/{name}")
    raise EvictedError(f"{torn}. That happened {_TRIES} times; let the store's writer make the snapshot")


@dataclass(frozen=True)
class _HeldSegment:
    """A segment's files: those that are not linked are mapped, so that they stay."""

    slot: int
    rows: int
    no_reset: bool
    maps: dict[str, Map]


class _Backup:
    def __init__(self, source: Files, files: Files) -> None:
        self._source, self._files = source, files
        layout, _ = directory.read_metadata(source)
        origin = Origin.read(source)
        self._state = State.read(source, layout)  # before all that it tells of
        self._store = open_store(source, writable=False)
        if Origin.read(source) != origin:
            raise EvictedError(f"{source.root}: it went back to a mark while it was opened to be copied")
        self._layout = self._store.layout
        self._slots = self._store.table.slots

    def make(self) -> None:
        layout, files = self._layout, self._files
        for path in zarr_metadata.nodes(layout, self._slots):
            files.make_directory(path)
        self._copy_values()
        table, segments = self._copy_table()
        for path in layout.packed:
            name = directory.tail_file(layout, path)
            files.copy(self._source, name, name, reserve=True)
        self._copy_what_was_flushed()
        held = [self._hold_stream(table, slots) for slots in segments]
        for slot in range(self._slots):
            table.set_length(slot, 0)
        for some in held:
            for segment in some:
                self._take(table, segment)
            if some:
                self._put_back_newest(table, some[-1])
        directory.mend(files, layout, self._slots)
        self._note()

    def _copy_table(self) -> tuple[SegmentTable, list[Int64]]:
        """Copy the table; return it, and the slots of each stream in the order of its rows."""
        for name, values in self._store.table.contents().items():
            self._write(name, values.view(np.uint8))
        self._write(CLEARED_FILE, contents_of(self._layout, self._store.begins).view(np.uint8))  # after the lengths
        if directory.read_metadata(self._source)[1] != self._slots:  # what is sealed in the copy may be newest there, and linked
            raise EvictedError(f"{self._source.root}: the segment table grew while it was copied")
        table = SegmentTable(self._files, self._layout, writable=True)
        table.grow(self._slots)
        try:
            return table, table.by_stream()
        except CorruptionError as error:  # torn; or damaged, and so it is every time
            raise EvictedError(str(error)) from error

    def _copy_values(self) -> None:
        """Copy the values of episodes, before the table: of none that is not in it."""
        noted, unflushed = values_left(self._state, self._source)
        try:
            note = what_counts(self._source, noted, unflushed=unflushed)
            if note is not None:
                copy_values(self._source, note, self._files)
        except FileNotFoundError as error:
            raise EvictedError(f"{self._source.root}: the values of episodes were written anew while they were copied") from error

    def _copy_what_was_flushed(self) -> None:
        """Copy what the last flush copied of the tail."""
        if self._state is not None and (tail := self._state.tail) is not None:
            try:
                self._files.copy(self._source, tail.name, tail.name, reserve=False)
                StoredTail(self._files, self._layout, tail)
            except (FileNotFoundError, CorruptionError) as error:
                raise EvictedError(f"{self._source.root}: it was flushed while it was copied") from error

    def _write(self, name: str, values: npt.NDArray[np.uint8]) -> None:
        fd = self._files.create(name, values.nbytes, reserve=True)
        try:
            self._files.pwrite(fd, np.ascontiguousarray(values).reshape(-1), 0)
        finally:
            self._files.close(fd)

    def _hold_stream(self, table: SegmentTable, slots: Int64) -> list[_HeldSegment]:
        """Hold the files of a stream's segments, but for the oldest, where these were evicted by then."""
        live = () if not len(slots) or table.is_sealed(int(slots[-1])) else self._layout.packed
        newest = [self._hold(table, int(slot)) for slot in slots[-1:]]  # first, as it may be complete soon, and sealed
        segments = [self._hold(table, int(slot)) for slot in slots[:-1]] + newest
        present = [held for held in segments if held is not None]
        if slots.size and (not present or None in segments[-len(present) :]):
            raise EvictedError(f"{self._source.root}: segments were evicted while the store was copied")
        if present and any(
            mapped.size != self._layout.live_bytes(path) for path, mapped in present[-1].maps.items() if path in live
        ):
            raise EvictedError(f"{self._source.root}: the newest segment was sealed while the store was copied")
        if present and table.get("first_row", present[0].slot) > 0 and table.before(present[0].slot) is None:
            raise EvictedError(f"{self._source.root}: what came before the oldest row was not noted yet")
        return present

    def _hold(self, table: SegmentTable, slot: int) -> _HeldSegment | None:
        """Hold a segment's files; None where other rows are in its slot by now."""
        look()
        layout, source, now = self._layout, self._source, self._store.table
        sealed, maps = table.is_sealed(slot), dict[str, Map]()
        try:
            for path in layout.schema:
                name = layout.data_file(path, slot)
                if path in layout.derived and not source.exists(name):
                    continue
                if path in layout.derived or not (sealed and self._files.link(source, name, name)):
                    maps[path] = source.map(name, -1, writable=False)
        except (FileNotFoundError, CorruptionError):
            self._refuse_changes()
            if now.identity(slot) == table.identity(slot) and now.length(slot):
                raise  # it is missing, and nobody evicted it
            return None
        if now.identity(slot) != table.identity(slot) or not now.length(slot):
            return None
        return _HeldSegment(slot, table.length(slot), table.no_reset(slot), maps)

    def _take(self, table: SegmentTable, held: _HeldSegment) -> None:
        """Copy a segment's files that are not shared, and have its rows count."""
        look()
        layout, slot = self._layout, held.slot
        table.set_length(slot, held.rows, no_reset=held.no_reset)
        for note in table.strange_notes(slot):  # numbers and their hash were copied while the writer set them
            table.forget_note(note, slot)
        for path, mapped in held.maps.items():
            name, contents = layout.data_file(path, slot), mapped.array(np.uint8, (mapped.size,))
            if path in layout.packed:
                self._copy_shard(path, name, contents)
            else:
                self._write(name, contents)
        for path in layout.derived:  # which the writer may be writing to
            checksum = NEVER
            if path in held.maps:
                mapped = self._files.map(layout.data_file(path, slot), layout.flat_bytes(path), writable=False)
                checksum = file_checksum(layout, path, mapped)
            table.set_checksum(path, slot, checksum)

    def _copy_shard(self, path: str, name: str, contents: npt.NDArray[np.uint8]) -> None:
        """Copy a shard to which chunks are appended: the entry of one is written to the index, at the end, after it."""
        begin = len(contents) - self._layout.index_bytes(path)
        index = contents[begin:].copy()
        fd = self._files.create(name, len(contents), reserve=False)
        try:
            for at in range(0, begin, _BLOCK):
                block = contents[at : min(at + _BLOCK, begin)]
                if block.any():  # a shard that is not full is mostly a hole
                    self._files.pwrite(fd, block, at)
            self._files.pwrite(fd, index, begin)
        finally:
            self._files.close(fd)

    def _put_back_newest(self, table: SegmentTable, held: _HeldSegment) -> None:
        """Put the chunk of a stream's newest row, which only the tail is to have, there from the shard.

        Where the shard has it, the writer has gone on, and may have used its places in the tail again before that was copied.
        """
        layout, last = self._layout, held.rows - 1
        stream, first = (int(table.get(name, held.slot)) for name in ("stream", "first_row"))
        for path in layout.packed:
            mapped = self._files.map(layout.data_file(path, held.slot), -1, writable=False)
            entries, rows = index_of(mapped, layout.chunks(path)), layout.chunk_rows(path)
            chunk, column = last // rows, layout.schema[path]
            if (entries[chunk] == EMPTY).any():
                continue
            raw = np.empty((rows, column.row_bytes), np.uint8)
            if decode_entry(mapped, entries, chunk, column, raw.reshape(-1)):
                raise EvictedError(f"{self._source.root}: a chunk was packed while the store was copied")
            size = layout.tail_rows * column.row_bytes
            tail = self._files.map(directory.tail_file(layout, path), layout.streams * size, writable=True)
            ring = tail.array(np.uint8, (layout.streams, layout.tail_rows, column.row_bytes))[stream]
            ring[(first + np.arange(chunk * rows, last + 1)) % layout.tail_rows] = raw[: last + 1 - chunk * rows]

    def _refuse_changes(self) -> None:
        """Raise an EvictedError where steps or columns were taken away since this began, of which some may be in the copy."""
        self._store.following.refuse_another()
        now, _ = directory.read_metadata(self._source)
        if now.removals != self._layout.removals:
            raise EvictedError(f"{self._source.root}: its columns were changed while it was copied")

    def _note(self) -> None:
        """Describe the copy, and note how it was left."""
        self._refuse_changes()
        state = State.read(self._source, self._layout)
        if self._state is not None and self._state.clean and state != self._state:  # it was opened, and perhaps closed again
            raise EvictedError(f"{self._source.root}: a writer came while it was copied, and put rows back into the tail")
        if self._state is not None:
            self._state.note(self._files)
        Origin.new(0).note(self._files)
        directory.write_group(self._files, self._layout, self._slots)
