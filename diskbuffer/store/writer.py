"""Where rows are written: the open segments of every stream, and its tail.

Rows go straight into memory-mapped files: flat columns into their segment, packed ones into the tail, a ring of eight chunks
a stream. When the ring fills up, all complete chunks are compressed, in several threads, and appended to their shards. What
a kill leaves is therefore whole: a row is in the tail until its chunk is in a shard, and counts once `length` says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import codec
from diskbuffer.errors import CorruptionError
from diskbuffer.native import address_of
from diskbuffer.store.files import Map
from diskbuffer.store.shard import LiveShard, decode_chunk
from diskbuffer.store.store import Store

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
WORTH_A_THREAD = 4  # chunks, below which another thread costs more than it saves
ENCODED_AT_ONCE = 64  # chunks of one run, which bounds the memory


@dataclass
class OpenSegment:
    """A segment that rows are still written to, or whose last chunks are not packed yet."""

    slot: int
    first_row: int
    flats: dict[str, Map] = field(default_factory=dict)
    shards: dict[str, LiveShard] = field(default_factory=dict)

    def close(self) -> None:
        """Close the shards."""
        for shard in self.shards.values():
            shard.close()


@dataclass
class _Run:
    """Chunks of one column and segment that are packed together: from byte `first` on, in a ring of memory at `source`."""

    stream: int
    position: int  # of the first row
    shard: LiveShard
    first_chunk: int
    chunks: int
    source: int
    first: int
    ring: int
    out: Bytes
    entries: Int64
    size: int = 0


class Writer:
    """Give addresses to write rows to, and pack what was written.

    For the compiled code that records steps, segment ``n`` of a stream (its rows from ``n * segment_rows``) is found at
    ``[..., n % 2]``: at most two are open, the one with the newest row and the next.

    Attributes
    ----------
    bases : (columns, streams, 2) addresses of open segments in flat columns
    tails : (columns,) addresses of tails, 0 for flat columns
    lengths : (streams, 2) addresses of lengths in the segment table
    limits : (streams,) the position up to which rows may be written before `prepare`
    """

    def __init__(self, store: Store, heads: Int64, slots: list[Int64], complete: Callable[[int], None]) -> None:
        layout = store.layout
        self._store, self._layout, self._complete = store, layout, complete
        self._paths = tuple(layout.schema)
        self._open: list[dict[int, OpenSegment]] = [{} for _ in range(layout.streams)]
        self._packed = {path: np.zeros(layout.streams, np.int64) for path in layout.packed}
        self._threads = min(4, os.cpu_count() or 1)
        self._pool: ThreadPoolExecutor | None = None
        self.bases = np.zeros((len(self._paths), layout.streams, 2), np.int64)
        self.lengths = np.zeros((layout.streams, 2), np.int64)
        self.limits = np.zeros(layout.streams, np.int64)
        self.tails = np.array([store.tails[p].address if p in store.tails else 0 for p in self._paths], np.int64)
        for stream in range(layout.streams):
            self._recover(stream, int(heads[stream]), slots[stream])

    # Opening

    def _recover(self, stream: int, head: int, slots: Int64) -> None:
        """Open again the segments that a stream's newest rows lie in, as a kill or a close left them."""
        rows, first = self._layout.segment_rows, head // self._layout.segment_rows - len(slots) + 1
        oldest_in_tail = max(0, head + 1 - self._layout.tail_rows)
        for ordinal in range(max(first, oldest_in_tail // rows), first + len(slots)):
            slot = int(slots[ordinal - first])
            if ordinal < first + len(slots) - 1 and self._store.table.get("sealed", slot):
                continue
            self._attach(stream, ordinal, slot, create=False)
        for path in self._layout.packed:
            self._recover_chunks(path, stream, head)
        self._drop_packed(stream, head)
        self._set_limit(stream)

    def _recover_chunks(self, path: str, stream: int, head: int) -> None:
        """Find how far a column is packed. A chunk that is not full is taken back into the tail."""
        chunk_rows, rows = self._layout.chunk_rows(path), self._layout.segment_rows
        done = max(head, 0) // chunk_rows * chunk_rows
        self._packed[path][stream] = done
        for ordinal in sorted(self._open[stream]):
            segment = self._open[stream][ordinal]
            shard, full = segment.shards[path], (min(done, segment.first_row + rows) - segment.first_row) // chunk_rows
            there = shard.packed_chunks()
            if there > full:
                self._unpack(path, stream, segment, full)
            shard.forget(min(full, there))
            if there < full:
                self._packed[path][stream] = segment.first_row + there * chunk_rows
                break
        if head + 1 - self._packed[path][stream] > self._layout.tail_rows:
            raise CorruptionError(
                f"{self._store.root}/{path}: rows {self._packed[path][stream]} to {head} of stream {stream} are neither in a "
                "shard nor in the tail"
            )

    def _unpack(self, path: str, stream: int, segment: OpenSegment, chunk: int) -> None:
        """Copy the rows of an incomplete chunk back into the tail."""
        chunk_rows, chunk_bytes = self._layout.chunk_rows(path), self._layout.chunk_bytes(path)
        first = segment.first_row + chunk * chunk_rows
        shard = segment.shards[path]
        raw = np.frombuffer(decode_chunk(shard.map, len(shard.entries), chunk, chunk_bytes), np.uint8)
        at = first % self._layout.tail_rows
        self._store.tail(path)[stream, at : at + chunk_rows] = raw.reshape(chunk_rows, -1)

    def _attach(self, stream: int, ordinal: int, slot: int, *, create: bool) -> None:
        """Make a slot's files ready for writing, new ones where `create` is set."""
        store, layout = self._store, self._layout
        segment = OpenSegment(slot, ordinal * layout.segment_rows)
        try:
            for path in layout.flat:
                name, size = layout.data_file(path, slot), layout.flat_bytes(path)
                if create:
                    fd = store.files.create(name, size, reserve=True)
                    try:
                        segment.flats[path] = store.files.map_open(fd, size, writable=True)
                    finally:
                        store.files.close(fd)
                else:
                    segment.flats[path] = store.files.map(name, size, writable=True)
            for path in layout.packed:
                segment.shards[path] = LiveShard(store.files, layout, path, slot, create=create)
        except BaseException:
            segment.close()
            raise
        with store.lock:
            for path, mapped in segment.flats.items():
                store.maps.hold(path, slot, mapped)
            for path, shard in segment.shards.items():
                store.maps.hold(path, slot, shard.map)
        self._open[stream][ordinal] = segment
        for path, mapped in segment.flats.items():
            self.bases[self._paths.index(path), stream, ordinal % 2] = mapped.address
        self.lengths[stream, ordinal % 2] = store.table.length_address(slot)

    # Writing

    def prepare(self, heads: Int64, opened: Callable[[int, int], None]) -> None:
        """Make room for two more rows in every stream: pack what is complete, open segments.

        `heads` are the positions of the newest rows. ``opened(stream, slot)`` is told of each new segment. An
        error leaves everything as it was, but for what was packed.
        """
        self.pack(heads)
        for stream in range(self._layout.streams):
            self.reserve(stream, int(heads[stream]), 2, opened)

    def reserve(self, stream: int, head: int, rows: int, opened: Callable[[int, int], None]) -> None:
        """Open the segment that the row `rows` behind the newest falls into, if that is the next one."""
        ordinal = (head + rows) // self._layout.segment_rows
        for wanted in range(max(0, head + 1) // self._layout.segment_rows, ordinal + 1):
            if wanted not in self._open[stream]:
                slot = self._store.take_slot(stream, wanted * self._layout.segment_rows)
                try:
                    self._attach(stream, wanted, slot, create=True)
                except BaseException:
                    self._store.free.append(slot)
                    raise
                opened(stream, slot)
        self._set_limit(stream)

    def _set_limit(self, stream: int) -> None:
        rows, layout = self._layout.segment_rows, self._layout
        last = max(self._open[stream], default=-1)
        limit = (last + 1) * rows
        for packed in self._packed.values():
            limit = min(limit, int(packed[stream]) + layout.tail_rows)
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
        if path in self._packed:
            tail = self._store.tail(path)[stream]
            tail[head % self._layout.tail_rows] = np.ascontiguousarray(row).reshape(-1).view(np.uint8)
        else:
            self._flat(path, stream, head)[head % self._layout.segment_rows] = row

    def commit(self, stream: int, head: int) -> None:
        """Have the rows of the segment that `head` lies in count, up to it."""
        rows = self._layout.segment_rows
        self._store.table.set("length", self._open[stream][head // rows].slot, head % rows + 1)

    def _flat(self, path: str, stream: int, position: int) -> npt.NDArray[Any]:
        column, rows = self._layout.schema[path], self._layout.segment_rows
        return self._open[stream][position // rows].flats[path].array(column.np_dtype, (rows, *column.shape))

    def _put_packed(self, path: str, stream: int, first: int, rows: Bytes) -> None:
        """Pack whole chunks straight from `rows`, (n, row_bytes); the first may be begun in the tail, the last stays there."""
        self._encode(path, self._runs_from_tail(path, stream, first))
        chunk_rows = self._layout.chunk_rows(path)
        tail, n, at = self._store.tail(path)[stream], len(rows), 0
        while at < n:
            position = first + at
            whole = (n - at - 1) // chunk_rows if position % chunk_rows == 0 else 0
            if whole:
                self._encode(path, self._runs(path, stream, position, whole, address_of(rows[at:]), 0, rows.nbytes))
                at += whole * chunk_rows
            else:
                some = min(n - at, chunk_rows - position % chunk_rows)
                ring = position % self._layout.tail_rows
                tail[ring : ring + some] = rows[at : at + some]
                at += some
                if at < n:
                    self._encode(path, self._runs_from_tail(path, stream, position + some))

    # Packing

    def pack(self, heads: Int64) -> None:
        """Compress every complete chunk that is still in the tail only, and append it to its shard.

        The newest row's chunk stays: what was done there, its action and all, is still to come.
        """
        for path in self._packed:
            runs: list[_Run] = []
            for stream in range(self._layout.streams):
                runs += self._runs_from_tail(path, stream, int(heads[stream]))
            self._encode(path, runs)
        for stream in range(self._layout.streams):
            self._drop_packed(stream, int(heads[stream]))

    def settle(self, stream: int, head: int) -> None:
        """Tell that a stream's newest row is `head` now, after rows were put there."""
        self._drop_packed(stream, head)
        self._set_limit(stream)

    def _runs_from_tail(self, path: str, stream: int, end: int) -> list[_Run]:
        """Find the complete chunks that lie before the position `end` and are in the tail only."""
        first, chunk_rows = int(self._packed[path][stream]), self._layout.chunk_rows(path)
        chunks = end // chunk_rows - first // chunk_rows
        if chunks <= 0:
            return []
        row_bytes = self._layout.schema[path].row_bytes
        ring = self._layout.tail_rows * row_bytes
        tail = self._store.tails[path].address + stream * ring
        return self._runs(path, stream, first, chunks, tail, first * row_bytes, ring)

    def _runs(self, path: str, stream: int, position: int, chunks: int, source: int, first: int, ring: int) -> list[_Run]:
        """Split chunks, in a ring of memory from byte `first` on, into runs of one segment and a bounded size."""
        runs, rows, chunk_rows = [], self._layout.segment_rows, self._layout.chunk_rows(path)
        chunk_bytes = self._layout.chunk_bytes(path)
        room = codec.bound(chunk_bytes)
        while chunks > 0:
            offset = position % rows
            n = min(chunks, (rows - offset) // chunk_rows, ENCODED_AT_ONCE)
            shard = self._open[stream][position // rows].shards[path]
            out = np.empty(n * room, np.uint8)  # pages that nothing is written to cost no memory
            entries = np.empty((n, 2), np.int64)
            runs.append(_Run(stream, position, shard, offset // chunk_rows, n, source, first, ring, out, entries))
            position, first, chunks = position + n * chunk_rows, first + n * chunk_bytes, chunks - n
        return runs

    def _encode(self, path: str, runs: list[_Run]) -> None:
        chunk_bytes = self._layout.chunk_bytes(path)

        def encode(some: list[_Run]) -> None:
            for run in some:
                run.size = codec.encode_chunks(run.source, run.first, run.ring, chunk_bytes, run.out, run.entries)

        parts = min(self._threads, len(runs), sum(run.chunks for run in runs) // WORTH_A_THREAD)
        if parts > 1:
            self._pool = self._pool or ThreadPoolExecutor(self._threads - 1, "diskbuffer-pack")
            others = [self._pool.submit(encode, runs[i::parts]) for i in range(1, parts)]
            encode(runs[::parts])
            for other in others:
                other.result()
        else:
            encode(runs)
        for run in runs:
            run.shard.append(run.first_chunk, run.out[: run.size], run.entries)
            self._packed[path][run.stream] = run.position + run.chunks * self._layout.chunk_rows(path)

    def _drop_packed(self, stream: int, head: int) -> None:
        """Let go of segments whose every row is written and packed: they wait for being sealed now.

        A row is written once there is another behind it: only then is what was done there known.
        """
        done = head
        for packed in self._packed.values():
            done = min(done, int(packed[stream]))
        for ordinal in [n for n in self._open[stream] if (n + 1) * self._layout.segment_rows <= done]:
            segment = self._open[stream].pop(ordinal)
            segment.close()
            self._complete(segment.slot)

    # Closing

    def open_slots(self) -> list[int]:
        """Return the slots of all open segments."""
        return [segment.slot for stream in self._open for segment in stream.values()]

    def publish(self, heads: Int64) -> None:
        """Write incomplete chunks to their shards, filled up with zeros, for readers that do not know of the tail."""
        self.pack(heads)
        for path, packed in self._packed.items():
            chunk_rows, chunk_bytes = self._layout.chunk_rows(path), self._layout.chunk_bytes(path)
            for stream in range(self._layout.streams):
                first, rows = int(packed[stream]), int(heads[stream]) + 1 - int(packed[stream])
                if rows <= 0:
                    continue
                chunk = np.zeros((chunk_rows, self._layout.schema[path].row_bytes), np.uint8)
                at = first % self._layout.tail_rows
                chunk[:rows] = self._store.tail(path)[stream, at : at + rows]
                out, entries = np.empty(codec.bound(chunk_bytes), np.uint8), np.zeros((1, 2), np.int64)
                size = codec.encode_chunks(address_of(chunk), 0, chunk_bytes, chunk_bytes, out, entries)
                segment = self._open[stream][first // self._layout.segment_rows]
                segment.shards[path].publish((first - segment.first_row) // chunk_rows, out[:size])

    def close(self) -> None:
        """Close descriptors and threads."""
        for stream in self._open:
            for segment in stream.values():
                segment.close()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
