"""The tail: rows of packed columns that are in no shard yet, in a ring of some chunks for each stream.

A kill leaves every row whole: it is in the tail until its chunk is in a shard. After a power loss rows come from the copy that
the last flush made of them: see `diskbuffer.store.tail_copy`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store.store import Store
from diskbuffer.store.tail_copy import Unpacked
from diskbuffer.store.writing.open_segments import OpenSegments
from diskbuffer.store.writing.packer import Packer, Run

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Tail:
    """Say where rows of packed columns go, and pack complete chunks of them into the shards of open segments."""

    def __init__(self, store: Store, segments: OpenSegments, packer: Packer) -> None:
        self._store, self._layout, self._segments, self._packer = store, store.layout, segments, packer
        self._packed = packer.packed
        for path in self._packed:
            ring = self._layout.tail_rows * self._layout.schema[path].row_bytes
            column = tuple(self._layout.schema.recorded).index(path)
            segments.places.addresses[column] = (store.tails[path].address + ring * np.arange(self._layout.streams))[:, None]

    def row(self, path: str, stream: int, position: int) -> Bytes:
        """View one row's place in the tail, (row_bytes,)."""
        values: Bytes = self._store.tail(path)[stream, position % self._layout.tail_rows]
        return values

    # Room

    def room(self, heads: Int64) -> int:
        """Return how many rows fit, in the stream where they are the fewest."""
        packed = np.minimum.reduce([*self._packed.values(), heads + 1])
        return self._layout.tail_rows - int((heads + 1 - packed).max())

    def end(self, stream: int) -> int:
        """Return the position before which a stream's rows fit."""
        end = np.iinfo(np.int64).max
        for packed in self._packed.values():
            end = min(end, int(packed[stream]) + self._layout.tail_rows)
        return int(end)

    def packed_until(self, heads: Int64) -> Int64:
        """Return the positions up to which the streams' rows are in shards, in all columns, `heads` at most."""
        return np.asarray(np.minimum.reduce([heads, *self._packed.values()]))

    # Packing

    def complete_runs(self, heads: Int64) -> list[list[Run]]:
        """Find the complete chunks in the tail. The newest row's stays: what was done there is still to come."""
        runs = []
        for path, packed in self._packed.items():
            rows = self._layout.chunk_rows(path)
            for stream in np.flatnonzero(heads // rows > packed // rows).tolist():  # a few, of many environments
                runs += self._runs(path, stream, int(heads[stream]))
        return runs

    def _runs(self, path: str, stream: int, end: int) -> list[list[Run]]:
        """Find the complete chunks that lie before the position `end` and are in the tail only."""
        first, chunk_rows = int(self._packed[path][stream]), self._layout.chunk_rows(path)
        chunks = end // chunk_rows - first // chunk_rows
        return [self._chunks(path, stream, first, chunks)] if chunks > 0 else []

    def _chunks(self, path: str, stream: int, first: int, chunks: int) -> list[Run]:
        row_bytes = self._layout.schema[path].row_bytes
        ring = self._layout.tail_rows * row_bytes
        memory = (self._store.tails[path].address + stream * ring, first * row_bytes, ring)
        return self._packer.runs(path, stream, first, chunks, memory, self._segments.shards(path, stream))

    def unpacked(self, stream: int, head: int) -> list[Unpacked]:
        """Return a copy of a stream's rows up to the newest that are in the tail only; after packing, an incomplete chunk."""
        found = []
        for path, packed in self._packed.items():
            first = min(int(packed[stream]), head + 1)
            at = np.arange(first, head + 1) % self._layout.tail_rows
            found.append(Unpacked(path, stream, first, self._store.tail(path)[stream, at]))
        return found

    # What a kill left

    def restore(self, path: str, stream: int, head: int) -> None:
        """Find how far a column is packed, up to a stream's newest row, `head`, whose chunk only the tail is to have."""
        chunk_rows, rows = self._layout.chunk_rows(path), self._layout.segment_rows
        self._packed[path][stream] = done = max(head, 0) // chunk_rows * chunk_rows
        for _, segment in sorted(self._segments.of(stream).items()):
            shard, full = segment.shards[path], max(0, min(done - segment.first_row, rows)) // chunk_rows
            shard.forget(full)
            if shard.packed_chunks() < full:
                self._packed[path][stream] = segment.first_row + shard.packed_chunks() * chunk_rows
                break
        if head + 1 - self._packed[path][stream] > self._layout.tail_rows:
            raise CorruptionError(
                f"{self._store.root}/{path}: rows {self._packed[path][stream]} to {head} of stream {stream} are neither in a "
                "shard nor in the tail"
            )
