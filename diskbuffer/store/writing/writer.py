"""Where rows are written: the open segments of every stream, and its tail.

Rows go straight into memory-mapped files: flat columns into their segment, packed ones into the tail, a ring of some chunks
a stream. When the ring fills up, all complete chunks are compressed, in several threads, and appended to their shards. What
a kill leaves is therefore whole: a row is in the tail until its chunk is in a shard, and counts once `length` says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.native.memory import address_of
from diskbuffer.schema import CHECKSUM
from diskbuffer.store.directory import tail_file
from diskbuffer.store.format import codec
from diskbuffer.store.format.checksums import NOT_YET, STEP, covered, row_checksums
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.segments.shard import LiveShard, decode_chunk
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Map
from diskbuffer.store.writing.packer import Packer, Run

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Guard(NamedTuple):
    """Rows in the tail that were synced there, or are about to be, and are in no shard that was."""

    position: int  # of the first; they all belong to one chunk
    file: str  # the shard that they will be packed into


@dataclass
class OpenSegment:
    """A segment that rows are still written to, or whose last chunks are not packed yet."""

    slot: int
    first_row: int
    flats: dict[str, Map] = field(default_factory=dict)
    shards: dict[str, LiveShard] = field(default_factory=dict)


class Writer:
    """Give addresses to write rows to, and pack what was written.

    For the compiled code that records steps, segment ``n`` of a stream (its rows from ``n * segment_rows``) is found at
    ``[..., n % 2]``: at most two are open, the one with the newest row and the next.

    Attributes
    ----------
    bases : (columns, streams, 2) addresses of open segments in flat columns
    tails : (columns,) addresses of tails, 0 for flat columns
    lengths : (streams, 2, 2) addresses of lengths in the segment table, and what `length_word` needs
    limits : (streams,) the position before which rows may be written until `prepare` is due
    """

    def __init__(self, store: Store, heads: Int64, slots: list[Int64], complete: Callable[[int], None]) -> None:
        layout = store.layout
        self._store, self._layout, self._complete = store, layout, complete
        self._paths = tuple(layout.schema.recorded)
        self._open: list[dict[int, OpenSegment]] = [{} for _ in range(layout.streams)]
        self._packer = Packer(layout)
        self._packed = self._packer.packed
        self._ahead: dict[int, tuple[int, Future[OpenSegment]]] = {}  # next segments in the making, and their slots
        self.bases = np.zeros((len(self._paths), layout.streams, 2), np.int64)
        self.lengths = np.zeros((layout.streams, 2, 2), np.int64)
        self.limits = np.zeros(layout.streams, np.int64)
        self._guarded: dict[tuple[str, int], list[Guard]] = {(p, s): [] for p in layout.packed for s in range(layout.streams)}
        self._to_take_back: dict[int, int] = {}  # heads of streams in which something failed, to be done again
        self.tails = np.array([store.tails[p].address if p in store.tails else 0 for p in self._paths], np.int64)
        try:
            for stream in range(layout.streams):
                self._recover(stream, int(heads[stream]), slots[stream])
            self._pack_and_sync(heads)
            self.release(self.guard(heads))
        except BaseException:
            self.close()
            raise

    def _pack_and_sync(self, heads: Int64) -> None:
        """Leave in the tail alone what is one incomplete chunk of each stream: what is guarded lies in one file then."""
        self.pack(heads)
        for segment in self.open_segments():
            for path in self._layout.packed:
                self._store.files.sync(self._layout.data_file(path, segment.slot))

    # Opening

    def _recover(self, stream: int, head: int, slots: Int64) -> None:
        """Open again the segments that a stream's newest rows lie in, as a kill or a close left them."""
        rows, first = self._layout.segment_rows, head // self._layout.segment_rows - len(slots) + 1
        oldest_in_tail = max(0, head + 1 - self._layout.tail_rows)
        for ordinal in range(max(first, oldest_in_tail // rows), first + len(slots)):
            slot = int(slots[ordinal - first])
            if ordinal < first + len(slots) - 1 and (self._store.verification.is_sealed(slot) or self._is_compact(slot)):
                continue
            self._attach(stream, make_segment(self._store, slot, ordinal * rows, create=False))
        self.take_back(stream, head, durable=True)

    def _is_compact(self, slot: int) -> bool:
        """Tell whether a kill came between sealing's renames and its note in the table; it is sealed again then."""
        files, layout = self._store.files, self._layout
        return any(files.stat(layout.data_file(p, slot)).st_size != layout.live_bytes(p) for p in layout.packed)

    def take_back(self, stream: int, head: int, *, durable: bool = False) -> None:
        """Forget what was packed of rows behind the newest, `head`: they were not committed, as something failed.

        With `durable`, rows that go back into the tail are synced before their shard forgets them; otherwise, where the disk
        fails again, it is done before the next rows are packed.
        """
        self._to_take_back[stream] = head
        with contextlib.ExitStack() as stack:
            if not durable:
                stack.enter_context(contextlib.suppress(OSError))
            self._take_back(durable)

    def _take_back(self, durable: bool = False) -> None:
        for stream, head in list(self._to_take_back.items()):
            for path in self._layout.packed:
                self._recover_chunks(path, stream, head, durable)
            self._set_limit(stream)
            del self._to_take_back[stream]

    def _recover_chunks(self, path: str, stream: int, head: int, durable: bool) -> None:
        """Find how far a column is packed. A chunk that is not full is taken back into the tail."""
        chunk_rows, rows = self._layout.chunk_rows(path), self._layout.segment_rows
        done = max(head, 0) // chunk_rows * chunk_rows
        self._packed[path][stream] = done
        ordinals = sorted(self._open[stream])
        for n, ordinal in enumerate(ordinals):
            segment = self._open[stream][ordinal]
            shard, full = segment.shards[path], max(0, min(done - segment.first_row, rows)) // chunk_rows
            there = shard.packed_chunks()
            if there > full and segment.first_row + full * chunk_rows <= head:
                self._unpack(path, stream, segment, full)
                if durable:
                    self._store.files.sync(tail_file(self._layout, path))  # before the shard forgets it
            shard.forget(min(full, there))
            if durable and there > full:  # before its room is used again
                self._store.files.sync(shard.name)
            if there < full and any(self._open[stream][o].shards[path].packed_chunks() for o in ordinals[n + 1 :]):
                self._pack_missing(path, stream, segment, there, full)  # a power loss took these, and not those behind them
            elif there < full:
                self._packed[path][stream] = segment.first_row + there * chunk_rows
                break
        if head + 1 - self._packed[path][stream] > self._layout.tail_rows:
            raise CorruptionError(
                f"{self._store.root}/{path}: rows {self._packed[path][stream]} to {head} of stream {stream} are neither in a "
                "shard nor in the tail"
            )

    def _pack_missing(self, path: str, stream: int, segment: OpenSegment, chunk: int, until: int) -> None:
        """Pack chunks that only the tail has, though later ones are packed."""
        head = int(self._packed[path][stream])
        first = segment.first_row + chunk * self._layout.chunk_rows(path)
        memory = self._ring(path, stream, first)
        self._packer.pack([self._packer.runs(path, stream, first, until - chunk, memory, self._shards(path, stream))])
        self._packed[path][stream] = head

    def _unpack(self, path: str, stream: int, segment: OpenSegment, chunk: int) -> None:
        """Copy the rows of an incomplete chunk back into the tail."""
        chunk_rows, chunk_bytes = self._layout.chunk_rows(path), self._layout.chunk_bytes(path)
        first = segment.first_row + chunk * chunk_rows
        shard = segment.shards[path]
        raw = np.frombuffer(decode_chunk(shard.map, len(shard.entries), chunk, chunk_bytes), np.uint8)
        at = first % self._layout.tail_rows
        self._store.tail(path)[stream, at : at + chunk_rows] = raw.reshape(chunk_rows, -1)

    def _attach(self, stream: int, segment: OpenSegment) -> None:
        """Have rows written to a segment, and read from it."""
        store, slot, ordinal = self._store, segment.slot, segment.first_row // self._layout.segment_rows
        for path, mapped in segment.flats.items():
            store.maps.hold(path, slot, mapped)
            self.bases[self._paths.index(path), stream, ordinal % 2] = mapped.address
        for path, shard in segment.shards.items():
            store.maps.hold(path, slot, shard.map)
        self.lengths[stream, ordinal % 2] = store.table.length_place(slot)
        self._open[stream][ordinal] = segment

    # Writing

    def prepare(self, heads: Int64, opened: Callable[[int, int], None]) -> None:
        """Make room for two more rows in every stream: pack what is complete, open segments.

        `heads` are the positions of the newest rows. ``opened(stream, slot)`` is told of each new segment. An
        error leaves everything as it was, but for what was packed.
        """
        failed = self._has_failed()
        self._take_back()
        runs = self._complete_runs(heads)
        half = self._layout.tail_rows // 2
        if failed or not self._packer.worth_a_thread(runs) or self._room(heads) < half // 2:
            self._packer.pack(runs)
        else:
            self._packer.begin(runs)
        self._drop_packed(heads)
        for stream in range(self._layout.streams):
            self.reserve(stream, int(heads[stream]), 2, opened)
            self._make_ahead(stream, int(heads[stream]))
        np.minimum(self.limits, heads + 2 + half, out=self.limits)  # then the next half of the tail is packed

    def _has_failed(self) -> bool:
        """Tell whether the disk failed what was packed beside calls: it is tried again at once, as there may be room by now."""
        try:
            self._packer.finish()
        except OSError:
            return True
        return False

    def reserve(self, stream: int, head: int, rows: int, opened: Callable[[int, int], None]) -> None:
        """Open the segment that the row `rows` behind the newest falls into, if that is the next one."""
        size = self._layout.segment_rows
        for ordinal in range(max(0, head + 1) // size, (head + rows) // size + 1):
            if ordinal not in self._open[stream]:
                slot, segment = self._make(stream, ordinal)
                self._attach(stream, segment)
                opened(stream, slot)
        self._set_limit(stream)

    def _make(self, stream: int, ordinal: int) -> tuple[int, OpenSegment]:
        """Return a new segment, made ahead if it was."""
        first_row = ordinal * self._layout.segment_rows
        slot, making = self._ahead.pop(stream, (-1, None))
        if making is None:
            slot = self._store.take_slot(stream, first_row)
        try:
            if making is None or making.exception():  # which may be over by now
                return slot, make_segment(self._store, slot, first_row, create=True)
            return slot, making.result()
        except BaseException:
            self._store.free.append(slot)
            raise

    def _make_ahead(self, stream: int, head: int) -> None:
        """Have another thread make the files of a stream's next segment, which can take a while, from the half of this one on."""
        rows = self._layout.segment_rows
        if stream in self._ahead or head % rows < rows // 2 or head // rows + 1 in self._open[stream]:
            return
        first_row = (head // rows + 1) * rows
        with contextlib.suppress(OSError):  # there is time to try again
            slot = self._store.take_slot(stream, first_row)
            self._ahead[stream] = slot, self._packer.pool.submit(make_segment, self._store, slot, first_row, create=True)

    def _room(self, heads: Int64) -> int:
        """Return how many rows fit into the tail, in the stream where they are the fewest."""
        packed = np.minimum.reduce([*self._packed.values(), heads + 1])
        return self._layout.tail_rows - int((heads + 1 - packed).max())

    def _set_limit(self, stream: int) -> None:
        rows, layout = self._layout.segment_rows, self._layout
        last = max(self._open[stream], default=-1)
        limit = (last + 1) * rows
        for path, packed in self._packed.items():
            self._sync_guarded(path, stream)
            guards = self._guarded[path, stream]
            limit = min(limit, int(guards[0].position if guards else packed[stream]) + layout.tail_rows)
        self.limits[stream] = limit

    def put(self, path: str, stream: int, first: int, rows: npt.NDArray[Any]) -> None:
        """Write rows, (n, ...), of one open segment from position `first` on."""
        if path in self._packed:
            self._put_packed(path, stream, first, np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8))
        else:
            offset = first % self._layout.segment_rows
            self._flat(path, stream, first)[offset : offset + len(rows)] = rows

    def put_last(self, path: str, stream: int, head: int, row: npt.NDArray[Any]) -> None:
        """Write what belongs to the newest row."""
        self._take_back()
        if path in self._packed:
            tail = self._store.tail(path)[stream]
            tail[head % self._layout.tail_rows] = np.ascontiguousarray(row).reshape(-1).view(np.uint8)
        else:
            self._flat(path, stream, head)[head % self._layout.segment_rows] = row

    def vouch_last(self, stream: int, head: int, word: int) -> None:
        """Write the checksum of what was done at the newest row."""
        self._flat(CHECKSUM, stream, head)[head % self._layout.segment_rows, STEP] = word

    def vouch_for_all_newest(self, heads: Int64) -> None:
        """Do that for all streams: a step that failed may have left something there."""
        self._take_back()
        for stream in np.flatnonzero(heads >= 0).tolist():
            self.vouch_for_newest(stream, int(heads[stream]))

    def vouch_for_newest(self, stream: int, head: int, *, over: bool | None = None) -> None:
        """Write that checksum anew, of a row at which nothing was done, whatever is there; `over` if it is an episode's last."""
        layout, rows = self._layout, dict[str, npt.NDArray[Any]]()
        if over is not None:
            self._flat("is_last", stream, head)[head % layout.segment_rows] = over
            for path in ("terminated", "truncated"):  # or a row of a lead-in would be one of the next episode's
                self._flat(path, stream, head)[head % layout.segment_rows] = False
        for path in covered(layout.schema, STEP):
            if path in self._packed:
                rows[path] = self._store.tail(path)[stream, head % layout.tail_rows][None]
            else:
                at = head % layout.segment_rows
                rows[path] = self._flat(path, stream, head)[at : at + 1]  # as it is: bytes of flags may be anything
        word = row_checksums(layout.schema, layout.salt, stream, head, 1, rows, STEP)
        self.vouch_last(stream, head, int(word[0]) ^ (0 if rows["is_last"].any() else NOT_YET))

    def commit(self, stream: int, head: int) -> None:
        """Have the rows of the segment that `head` lies in count, up to it."""
        rows = self._layout.segment_rows
        self._store.table.set_length(self._open[stream][head // rows].slot, head % rows + 1)

    def _flat(self, path: str, stream: int, position: int) -> npt.NDArray[Any]:
        column, rows = self._layout.schema[path], self._layout.segment_rows
        return self._open[stream][position // rows].flats[path].array(column.np_dtype, (rows, *column.shape))

    def _put_packed(self, path: str, stream: int, first: int, rows: Bytes) -> None:
        """Pack whole chunks straight from `rows`, (n, row_bytes); the first may be begun in the tail, the last stays there."""
        self._packer.pack(self._runs_from_tail(path, stream, first))
        chunk_rows = self._layout.chunk_rows(path)
        tail, n, at = self._store.tail(path)[stream], len(rows), 0
        while at < n:
            position = first + at
            whole = (n - at - 1) // chunk_rows if position % chunk_rows == 0 else 0
            if whole:
                memory = (address_of(rows[at:]), 0, rows.nbytes)
                runs = self._packer.runs(path, stream, position, whole, memory, self._shards(path, stream))
                self._packer.pack([runs])
                at += whole * chunk_rows
            else:
                self._sync_guarded(path, stream)
                some = min(n - at, chunk_rows - position % chunk_rows)
                ring = position % self._layout.tail_rows
                tail[ring : ring + some] = rows[at : at + some]
                at += some
                if at < n:
                    self._packer.pack(self._runs_from_tail(path, stream, position + some))

    # Rows that were synced, and are in the tail only: their places are not used again before the shard is synced, too

    def guard(self, heads: Int64) -> dict[str, Int64]:
        """Guard the rows up to the newest that are in the tail only, before they are synced; return what `release` needs.

        Rows that were guarded before stay guarded until then: what they were packed into since may not be on the disk.
        """
        for path, packed in self._packed.items():
            for stream in np.flatnonzero(packed <= heads).tolist():
                position = int(packed[stream])
                segment, guards = self._open[stream][position // self._layout.segment_rows], self._guarded[path, stream]
                if not guards or guards[-1].position != position:
                    guards.append(Guard(position, self._layout.data_file(path, segment.slot)))
        for stream in range(self._layout.streams):
            self._set_limit(stream)
        return {path: packed.copy() for path, packed in self._packed.items()}

    def release(self, packed: dict[str, Int64]) -> None:
        """Guard rows no longer that had been packed at the call of `guard` that returned this: all that it saw was synced."""
        for (path, stream), guards in self._guarded.items():
            self._guarded[path, stream] = [guard for guard in guards if guard.position >= packed[path][stream]]
        for stream in range(self._layout.streams):
            self._set_limit(stream)

    def _sync_guarded(self, path: str, stream: int) -> None:
        """Sync the chunks of rows that are guarded, where they are in the shard by now; they need not be guarded any longer."""
        guards = self._guarded[path, stream]
        while guards and guards[0].position < self._packed[path][stream]:
            self._store.files.sync(guards[0].file)
            guards.pop(0)

    # Packing

    def pack(self, heads: Int64) -> None:
        """Compress every complete chunk that is still in the tail only, and append it to its shard, now."""
        self._packer.finish()
        self._take_back()
        self._packer.pack(self._complete_runs(heads))
        self._drop_packed(heads)

    def settle(self, stream: int, heads: Int64) -> None:
        """Tell that rows were put behind a stream's newest, `heads` being the newest now."""
        self._drop_packed(heads)
        self._set_limit(stream)

    def _complete_runs(self, heads: Int64) -> list[list[Run]]:
        """Find the complete chunks in the tail. The newest row's stays: what was done there is still to come."""
        return [
            runs
            for path in self._packed
            for stream in range(self._layout.streams)
            for runs in self._runs_from_tail(path, stream, int(heads[stream]))
        ]

    def _runs_from_tail(self, path: str, stream: int, end: int) -> list[list[Run]]:
        """Find the complete chunks that lie before the position `end` and are in the tail only."""
        first, chunk_rows = int(self._packed[path][stream]), self._layout.chunk_rows(path)
        chunks = end // chunk_rows - first // chunk_rows
        if chunks <= 0:
            return []
        return [self._packer.runs(path, stream, first, chunks, self._ring(path, stream, first), self._shards(path, stream))]

    def _ring(self, path: str, stream: int, first: int) -> tuple[int, int, int]:
        """Return where a stream's tail lies in memory, the byte of the row `first` if it had no end, and its size."""
        row_bytes = self._layout.schema[path].row_bytes
        ring = self._layout.tail_rows * row_bytes
        return self._store.tails[path].address + stream * ring, first * row_bytes, ring

    def _shards(self, path: str, stream: int) -> dict[int, LiveShard]:
        return {ordinal: segment.shards[path] for ordinal, segment in self._open[stream].items()}

    def _drop_packed(self, heads: Int64) -> None:
        """Let go of segments whose every row is written and packed: they wait for being sealed now.

        A row is written once there is another behind it: only then is what was done there known.
        """
        for stream in range(self._layout.streams):
            done = int(min([heads[stream], *(packed[stream] for packed in self._packed.values())]))
            for ordinal in [n for n in self._open[stream] if (n + 1) * self._layout.segment_rows <= done]:
                self._complete(self._open[stream].pop(ordinal).slot)

    def is_open(self, stream: int, position: int) -> bool:
        """Tell whether the segment that a position lies in is written to, or not packed yet."""
        return position // self._layout.segment_rows in self._open[stream]

    # Closing

    def open_segments(self) -> list[OpenSegment]:
        """Return all open segments."""
        return [segment for stream in self._open for segment in stream.values()]

    def open_slots(self) -> list[int]:
        """Return the slots of all open segments."""
        return [segment.slot for segment in self.open_segments()]

    def publish(self, heads: Int64) -> None:
        """Write incomplete chunks to their shards, filled up with zeros, for readers that do not know of the tail."""
        self.pack(heads)
        for path, stream, first, rows in self.unpacked(heads):
            segment = self._open[stream][first // self._layout.segment_rows]
            publish(self._layout, path, segment.shards[path], first - segment.first_row, rows)

    def unpacked(self, heads: Int64) -> Iterator[tuple[str, int, int, Bytes]]:
        """Yield what is in the tail only: the column, the stream, the position of the first row, and the rows as bytes.

        Where `pack` comes before, they are an incomplete chunk.
        """
        for path, packed in self._packed.items():
            for stream in np.flatnonzero(packed <= heads).tolist():
                at = np.arange(packed[stream], heads[stream] + 1)
                yield path, stream, int(packed[stream]), self._store.tail(path)[stream, at % self._layout.tail_rows]

    def close(self) -> None:
        """Stop the threads. Segments made ahead that no row came into are removed."""
        with contextlib.suppress(OSError):
            self._packer.finish()
        self._packer.close()
        for slot, making in self._ahead.values():
            making.exception()  # which waits for it
            self._store.remove_files(slot)
        self._ahead.clear()


def publish(layout: Layout, path: str, shard: LiveShard, offset: int, rows: Bytes) -> None:
    """Write the rows of an incomplete chunk, (n, row_bytes) from row `offset` of its segment on, to the spare room."""
    chunk_rows, chunk_bytes = layout.chunk_rows(path), layout.chunk_bytes(path)
    chunk = np.zeros((chunk_rows, layout.schema[path].row_bytes), np.uint8)
    chunk[: len(rows)] = rows
    out, entries = np.empty(codec.bound(chunk_bytes), np.uint8), np.zeros((1, 2), np.int64)
    size = codec.encode_chunks(address_of(chunk), 0, chunk_bytes, chunk_bytes, out, entries)
    shard.publish(offset // chunk_rows, out[:size])


def make_segment(store: Store, slot: int, first_row: int, *, create: bool) -> OpenSegment:
    """Open a slot's files for writing, new ones where `create` is set."""
    layout, files, segment = store.layout, store.files, OpenSegment(slot, first_row)
    store.durability.refuse_to_write_elsewhere()
    if create:
        store.durability.sync_names_of_derived()
    for path in layout.flat:
        name, size = layout.data_file(path, slot), layout.flat_bytes(path)
        if create:
            fd = files.create(f"{name}.new.tmp", size, reserve=True)
            try:
                files.rename(f"{name}.new.tmp", name)
                segment.flats[path] = files.map_open(fd, size, writable=True)
            finally:
                files.close(fd)
        else:
            segment.flats[path] = files.map(name, size, writable=True)
    for path in layout.packed:
        segment.shards[path] = LiveShard(files, layout, path, slot, store.table.identity(slot), create=create)
    return segment
