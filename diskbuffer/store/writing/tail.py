"""The tail: rows of packed columns that are in no shard yet, in a ring of some chunks for each stream.

A kill leaves every row whole: it is in the tail until its chunk is in a shard. So that a power loss does, too, the place of a row
that was synced in the tail is not used again before the shard is synced that it was packed into: the row is guarded until then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.native.arrays import address_of
from diskbuffer.schema.schema import is_observation
from diskbuffer.store.directory import tail_file
from diskbuffer.store.format import codec, pictures
from diskbuffer.store.format.encoding import encode_chunks
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.segments.shard import LiveShard, decode_chunk
from diskbuffer.store.store import Store
from diskbuffer.store.writing.open_segments import OpenSegment, OpenSegments
from diskbuffer.store.writing.packer import Packer, Run

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Guard(NamedTuple):
    """Rows in the tail that were synced there, or are about to be, and are in no shard that was."""

    position: int  # of the first; they all belong to one chunk
    file: str  # the shard that they will be packed into


class Tail:
    """Say where rows of packed columns go, and pack complete chunks of them into the shards of open segments."""

    def __init__(self, store: Store, segments: OpenSegments, packer: Packer) -> None:
        self._store, self._layout, self._segments, self._packer = store, store.layout, segments, packer
        self._packed = packer.packed
        streams = range(self._layout.streams)
        self._guarded: dict[tuple[str, int], list[Guard]] = {(path, s): [] for path in self._layout.packed for s in streams}
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
        for path, packed in self._packed.items():
            self._sync_guarded(path, stream)
            guards = self._guarded[path, stream]
            end = min(end, int(guards[0].position if guards else packed[stream]) + self._layout.tail_rows)
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

    def unpacked(self, heads: Int64) -> Iterator[tuple[str, int, int, Bytes]]:
        """Yield what is in the tail only: the column, the stream, the position of the first row, and the rows as bytes.

        After packing, they are an incomplete chunk.
        """
        for path, packed in self._packed.items():
            for stream in np.flatnonzero(packed <= heads).tolist():
                at = np.arange(packed[stream], heads[stream] + 1)
                yield path, stream, int(packed[stream]), self._store.tail(path)[stream, at % self._layout.tail_rows]

    # Guarding

    def guard(self, heads: Int64) -> dict[str, Int64]:
        """Guard the rows up to the newest that are in the tail only, before they are synced; return what `release` needs.

        Rows that were guarded before stay guarded until then: what they were packed into since may not be on the disk.
        """
        for path, packed in self._packed.items():
            for stream in np.flatnonzero(packed <= heads).tolist():
                position = int(packed[stream])
                segment, guards = self._segments.at(stream, position), self._guarded[path, stream]
                if not guards or guards[-1].position != position:
                    guards.append(Guard(position, self._layout.data_file(path, segment.slot)))
        return {path: packed.copy() for path, packed in self._packed.items()}

    def release(self, packed: dict[str, Int64]) -> None:
        """Guard rows no longer that had been packed at the call of `guard` that returned this: all that it saw was synced."""
        for (path, stream), guards in self._guarded.items():
            self._guarded[path, stream] = [guard for guard in guards if guard.position >= packed[path][stream]]

    def _sync_guarded(self, path: str, stream: int) -> None:
        """Sync the chunks of rows that are guarded, where they are in the shard by now; they need not be guarded any longer."""
        guards = self._guarded[path, stream]
        while guards and guards[0].position < self._packed[path][stream]:
            self._store.files.sync(guards[0].file)
            guards.pop(0)

    # What a kill left

    def unpack(self, path: str, stream: int, head: int) -> bool:
        """Copy the rows of the chunk with a stream's newest row, `head`, back into the tail, if it is in a shard.

        Returns whether the newest row is another now, as its picture has lost something: it was packed already, and is the newest
        again after a power loss. Its checksum is then to be written anew before `restore` is called.
        """
        chunk_rows, column = self._layout.chunk_rows(path), self._layout.schema[path]
        first = max(head, 0) // chunk_rows * chunk_rows
        if head < 0 or not self._segments.has(stream, first):
            return False
        segment = self._segments.at(stream, first)
        shard, chunk = segment.shards[path], (first - segment.first_row) // chunk_rows
        if shard.packed_chunks() <= chunk:
            return False
        at, tail = first % self._layout.tail_rows, self._store.tail(path)[stream]
        if not column.is_lossy:
            tail[at : at + chunk_rows] = decode_chunk(shard.map, shard.entries, chunk, column, chunk_rows)
            if not is_observation(path):  # what was done at the newest row does not count
                self.row(path, stream, head)[:] = 0
            return False
        checksum = pictures.sum_of_given(shard.chunk(chunk))
        if codec.checksum(tail[at]) != checksum:
            tail[at] = decode_chunk(shard.map, shard.entries, chunk, column, 1)[0]
        return codec.checksum(tail[at]) != checksum

    def restore(self, path: str, stream: int, head: int) -> None:
        """Find how far a column is packed, up to a stream's newest row, `head`, after `unpack`.

        A chunk that is not full is forgotten by its shard, once its rows are synced in the tail.
        """
        chunk_rows, rows = self._layout.chunk_rows(path), self._layout.segment_rows
        done = max(head, 0) // chunk_rows * chunk_rows
        self._packed[path][stream] = done
        segments = self._segments.of(stream)
        ordinals = sorted(segments)
        for n, ordinal in enumerate(ordinals):
            segment = segments[ordinal]
            shard, full = segment.shards[path], max(0, min(done - segment.first_row, rows)) // chunk_rows
            packed = shard.packed_chunks()
            if packed > full and segment.first_row + full * chunk_rows <= head:
                self._store.files.sync(tail_file(self._layout, path))  # before the shard forgets it
            shard.forget(min(full, packed))
            if packed > full:  # before its room is used again
                self._store.files.sync(shard.name)
            if packed < full and any(segments[later].shards[path].packed_chunks() for later in ordinals[n + 1 :]):
                self._pack_missing(path, stream, segment, packed, full)  # a power loss took these, and not those after them
            elif packed < full:
                self._packed[path][stream] = segment.first_row + packed * chunk_rows
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
        self._packer.pack([self._chunks(path, stream, first, until - chunk)])
        self._packed[path][stream] = head


def publish(layout: Layout, path: str, shard: LiveShard, offset: int, rows: Bytes) -> None:
    """Write the rows of an incomplete chunk, (n, row_bytes) from row `offset` of its segment on, to the spare room."""
    chunk_rows, chunk_bytes = layout.chunk_rows(path), layout.chunk_bytes(path)
    chunk = np.zeros((chunk_rows, layout.schema[path].row_bytes), np.uint8)
    chunk[: len(rows)] = rows
    out, entries = np.empty(codec.bound(chunk_bytes), np.uint8), np.zeros((1, 2), np.int64)
    size = encode_chunks(layout.schema[path], address_of(chunk), 0, chunk_bytes, chunk_bytes, out, entries, exact=True)
    shard.publish(offset // chunk_rows, out[:size])
