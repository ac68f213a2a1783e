"""Consistent copies of a store that is being written to.

Nothing writes into the files of a segment that is sealed: sealing, repair and eviction rename and unlink. So a copy shares them,
by hard links, where the file system has such. Files of segments that are complete and not sealed yet do not change either until
sealing puts others in their place, but may be written to again after a power loss, so they are copied, as are those of open
segments, the tail, the table, and columns that were written later.

Most of it is done beside the writer, which may evict and seal meanwhile. Then its lock is held, to copy what was completed
or sealed since, and to copy to memory what it writes to; whatever takes files of its own, or the disk's time, comes after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, NotAStoreError
from diskbuffer.runtime.signals import look
from diskbuffer.store import directory
from diskbuffer.store.building import Building, is_there
from diskbuffer.store.episode_values import ValuesNote
from diskbuffer.store.format import zarr_metadata
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.last_writer import State
from diskbuffer.store.origin import Origin
from diskbuffer.store.segments.cleared import CLEARED_FILE, contents_of
from diskbuffer.store.segments.shard import LiveShard
from diskbuffer.store.segments.table import UNCHECKED, SegmentTable
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files
from diskbuffer.store.tail_copy import Unpacked, copy_tail
from diskbuffer.store.verification import file_checksum
from diskbuffer.store.writing.writer import Writer

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_PASSES = 4  # over what was completed or sealed since the last, before the lock is held for the rest
_FEW = 2  # segments that are not worth another pass


def place_for(target: Path) -> Building:
    """Return where to build a snapshot that is to be at `target`; an error where it cannot be."""
    if not is_there(target):
        building = Building(target)
        if not building.taken:
            return building
    raise NotAStoreError(f"there is something at {target} already; give the path of a directory that is empty, or not there")


def build(store: Store, writer: Writer, pause: Callable[[], Int64], files: Files, number: int = 0) -> None:
    """Build a copy of a store in the directory of `files`, whole and synced, as if it had been closed.

    ``pause()`` is called with the store's lock held; it packs everything, notes all checksums, raises where the store is not
    open any more, and returns the positions of the newest rows. `number` is a mark's; as nobody writes to marks, their files may
    have holes.
    """
    with store.lock:
        layout, slots = store.layout, store.table.slots
    for path in zarr_metadata.nodes(layout, slots):
        files.make_directory(path)
    copy = _Copy(store, writer, files, reserve=not number)
    for _ in range(_PASSES):
        if copy.copy_complete() <= _FEW:
            break
    with store.lock:
        held = copy.hold(pause())
    copy.finish(held, number)


@dataclass(frozen=True)
class _Held:
    """What was copied to memory while the lock was held."""

    layout: Layout
    slots: int
    begins: Int64
    heads: Int64
    live: npt.NDArray[np.bool_]  # of slots, whether they have rows
    table: dict[str, Any]  # files
    tail: list[Unpacked]
    values: ValuesNote | None  # of the file with the values of episodes
    pieces: dict[str, tuple[int, bool, list[tuple[int, Bytes]]]]  # files: size, whether to reserve it, (offset, bytes)


class _Copy:
    def __init__(self, store: Store, writer: Writer, files: Files, *, reserve: bool) -> None:
        self._store, self._writer, self._files, self._reserve = store, writer, files, reserve
        self._have: Int64 = np.full((3, 0), -1, np.int64)  # of slots that were copied, whose rows and whether sealed
        self._copied: set[str] = set()  # files that are to be synced
        self._touched: set[int] = set()  # slots of which there may be files

    # Beside the writer

    def copy_complete(self) -> int:
        """Copy segments that are complete, and were not copied as they are now; return how many those were."""
        with self._store.lock:
            layout = self._store.layout
            now, missing, sealed = self._missing()
        for slot in missing.tolist():
            look()
            try:
                self._copy_segment(layout, slot, bool(sealed[slot]))
            except (FileNotFoundError, CorruptionError):
                continue  # it was evicted meanwhile, or the next look at it tells
            self._have[:, slot] = now[:, slot]
        return len(missing)

    def _missing(self) -> tuple[Int64, Int64, npt.NDArray[np.bool_]]:
        """Return whose rows all slots have, those to be copied, and which are sealed."""
        table = self._store.table
        now = np.stack([table.column(name).astype(np.int64) for name in ("stream", "first_row", "sealed")])
        complete = table.column("length") == self._store.layout.segment_rows
        complete[self._writer.segments.slots()] = False
        more = np.full((3, now.shape[1] - self._have.shape[1]), -1, np.int64)
        self._have = np.concatenate([self._have, more], axis=1)
        missing = np.flatnonzero(complete & (now != self._have).any(axis=0))
        sealed = np.zeros(len(complete), np.bool_)
        if len(missing) > _FEW:
            sealed = table.sealed()
        else:
            sealed[missing] = [table.is_sealed(int(slot)) for slot in missing]
        return now, missing, sealed

    def _copy_segment(self, layout: Layout, slot: int, sealed: bool) -> None:
        source = self._store.files
        self._remove(layout, slot)
        self._touched.add(slot)
        for path in layout.schema.recorded:
            name = layout.data_file(path, slot)
            if not (sealed and self._files.link(source, name, name)):
                self._files.copy(source, name, name, reserve=self._reserve and path not in layout.packed)
                self._copied.add(name)
        for path in layout.derived:
            if (path, slot) not in self._store.durability.written:
                self._copy_derived(layout, path, slot)

    def _copy_derived(self, layout: Layout, path: str, slot: int) -> None:
        name = layout.data_file(path, slot)
        if self._store.files.exists(name):
            self._files.copy(self._store.files, name, name, reserve=self._reserve)
            self._copied.add(name)

    def _remove(self, layout: Layout, slot: int) -> None:
        if slot in self._touched:
            for path in layout.schema:
                self._files.remove(layout.data_file(path, slot))
                self._copied.discard(layout.data_file(path, slot))
        self._have[:, slot] = -1

    # While the writer waits

    def hold(self, heads: Int64) -> _Held:
        """Copy what is missing still, and copy to memory what is written to; the store's lock must be held."""
        store, layout, table = self._store, self._store.layout, self._store.table
        for path in layout.derived:
            self._files.make_directory(path)
        now, missing, sealed = self._missing()
        for slot in missing.tolist():
            try:
                self._copy_segment(layout, slot, bool(sealed[slot]))
            except FileNotFoundError as error:
                raise CorruptionError(f"{error.filename} is missing; was it removed?") from error
            self._have[:, slot] = now[:, slot]
        pieces, live = dict[str, tuple[int, bool, list[tuple[int, Bytes]]]](), table.column("length") > 0
        for segment in self._writer.segments.all():
            slot, rows = segment.slot, table.length(segment.slot)
            if not live[slot]:
                continue
            self._remove(layout, slot)
            self._touched.add(slot)
            for path, mapped in segment.flats.items():
                used = mapped.array(np.uint8, (mapped.size,))[: rows * layout.schema[path].row_bytes]
                pieces[layout.data_file(path, slot)] = mapped.size, True, [(0, used.copy())]
            for path, shard in segment.shards.items():
                pieces[layout.data_file(path, slot)] = shard.map.size, False, shard.contents()
            for path in layout.derived:
                if (path, slot) not in store.durability.written:
                    self._copy_derived(layout, path, slot)
        for path, slot in list(store.durability.written):
            if live[slot]:
                mapped = store.maps.get(path, slot)
                pieces[layout.data_file(path, slot)] = mapped.size, True, [(0, mapped.array(np.uint8, (mapped.size,)).copy())]
        each = [part for stream, head in enumerate(heads.tolist()) for part in self._writer.tail.unpacked(stream, head)]
        tail = [part for part in each if len(part.rows)]
        values = note = store.episode_values.note
        if note is not None:
            values, data = ValuesNote(0, note.bytes), b"".join(store.files.read_from(note.name, 0, note.bytes))
            pieces[values.name] = note.bytes, False, [(0, np.frombuffer(data, np.uint8))]
        return _Held(layout, table.slots, store.begins, heads, live, table.contents(), tail, values, pieces)

    # Afterwards

    def finish(self, held: _Held, number: int) -> None:
        """Write what was held, make a whole store of it, and sync it."""
        files, layout = self._files, held.layout
        directory.mend(files, layout, held.slots)
        for slot in [slot for slot in self._touched if not held.live[slot]]:
            self._remove(layout, slot)
        for name, values in held.table.items():
            self._write(name, values.nbytes, True, [(0, values)])
        for name, (size, reserve, parts) in held.pieces.items():
            look()
            self._write(name, size, reserve, parts)
        words = contents_of(layout, held.begins)
        self._write(CLEARED_FILE, words.nbytes, True, [(0, words)])
        for path in layout.packed:
            size = layout.streams * layout.tail_rows * layout.schema[path].row_bytes
            self._write(directory.tail_file(layout, path), size, True, [])
        tail = copy_tail(files, layout, 0, [held.tail])
        table = SegmentTable(files, layout, writable=True)
        table.grow(held.slots)
        self._note_checksums_of_derived(held, table)
        self._publish(held, table)
        files.sync_all(sorted(self._copied))
        synced, begins = tuple(held.heads.tolist()), tuple(held.begins.tolist())
        State(files.boot_id(), True, synced, begins, layout.salt, tail=tail, values=held.values).note(files)
        Origin.new(number).note(files)
        directory.write_group(files, layout, held.slots)
        files.sync_all([*zarr_metadata.nodes(layout, held.slots), "."])

    def _write(self, name: str, size: int, reserve: bool, parts: list[tuple[int, Any]]) -> None:
        fd = self._files.create(name, size, reserve=reserve and self._reserve)
        try:
            for at, values in parts:
                if values.nbytes:
                    self._files.pwrite(fd, np.ascontiguousarray(values).reshape(-1).view(np.uint8), at)
        finally:
            self._files.close(fd)
        self._copied.add(name)

    def _note_checksums_of_derived(self, held: _Held, table: SegmentTable) -> None:
        """Note the checksums of columns' files that may be written to in the original."""
        layout = held.layout
        for path in layout.derived:
            for slot in np.flatnonzero(held.live).tolist():
                name = layout.data_file(path, slot)
                if table.checksum(path, slot) == UNCHECKED and self._files.exists(name):
                    mapped = self._files.map(name, layout.flat_bytes(path), writable=False)
                    table.set_checksum(path, slot, file_checksum(layout, path, mapped))

    def _publish(self, held: _Held, table: SegmentTable) -> None:
        """Write every row to its column, as a close does, for readers that do not know of the tail."""
        layout, stream_of, first_of = held.layout, table.column("stream"), table.column("first_row")
        for path, stream, first, rows in held.tail:
            begin = first // layout.segment_rows * layout.segment_rows
            slot = int(np.flatnonzero(held.live & (stream_of == stream) & (first_of == begin))[0])
            shard = LiveShard(self._files, layout, path, slot, (stream, begin), create=False)
            shard.publish(rows, first - begin)
