"""A shard: the chunks of one segment of a packed column, in one file, found through the index at its end.

A live shard is sparse and as large as it can get, its index all ones. A chunk is appended, then its entry written: before
and after, the file is a valid shard. Sealing writes the same chunks, recompressed, to a new file of just their size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store.format import codec
from diskbuffer.store.format.checksums import fold
from diskbuffer.store.format.encoding import encode_rows
from diskbuffer.store.format.layout import ENTRY_BYTES, IDENTITY_BYTES, SPARE_CHUNKS, Layout
from diskbuffer.store.segments.mapped import InMemory
from diskbuffer.store.system.files import Files, Map

Int64 = npt.NDArray[np.int64]
EMPTY = -1  # an entry's offset and size where there is no chunk: all ones
RECODED_AT_ONCE = 64  # chunks, when sealing: the memory it takes, and how long it goes without the GIL


class LiveShard:
    """Append chunks to the shard of an open segment.

    No descriptor is kept: a store of many environments has thousands of shards that are open, and a process 1,024 descriptors.
    """

    def __init__(self, files: Files, layout: Layout, path: str, slot: int, rows: tuple[int, int], *, create: bool) -> None:
        self._files = files
        self._column, self._chunk_rows = layout.schema[path], layout.chunk_rows(path)
        self._index_at = layout.live_bytes(path) - layout.index_bytes(path)
        self._spare_at = self._index_at - IDENTITY_BYTES - SPARE_CHUNKS * codec.bound(layout.chunk_bytes(path))
        self.name = layout.data_file(path, slot)
        if create:
            temporary = f"{self.name}.new.tmp"  # or a reader of the whole array could see a file without its index
            fd = files.create(temporary, layout.live_bytes(path), reserve=False)
            try:
                files.pwrite(fd, identity(layout, path, rows), self._index_at - IDENTITY_BYTES)
                files.pwrite(fd, np.full((layout.chunks(path), 2), EMPTY, np.int64), self._index_at)
                files.rename(temporary, self.name)
                self.map = files.map_open(fd, layout.live_bytes(path), writable=False, random=True)
            finally:
                files.close(fd)
        else:
            files.close(files.open(self.name))  # before it is mapped: see `diskbuffer.store.system.overlay`
            self.map = files.map(self.name, layout.live_bytes(path), writable=False, random=True)
            if (identity_of(self.map, layout.chunks(path)) != identity(layout, path, rows)).any():
                raise CorruptionError(f"{files.root}/{self.name}: holds other rows than it should; was it replaced?")
        self.entries = index_of(self.map, layout.chunks(path))
        self._find_end()

    def _find_end(self) -> None:
        """Find where the next chunk goes: after all that the index knows, but for one in the spare room."""
        appended = self.entries[(self.entries[:, 0] != EMPTY) & (self.entries[:, 0] < self._spare_at)]
        self._end = int(appended.sum(axis=1).max(initial=0))
        if not 0 <= self._end <= self._spare_at:
            raise CorruptionError(f"{self._files.root}/{self.name}: its index points outside of the file")

    def packed_chunks(self) -> int:
        """Count the chunks that are there, from the first on."""
        missing = np.flatnonzero((self.entries == EMPTY).any(axis=1))
        return int(missing[0]) if len(missing) else len(self.entries)

    def chunk(self, number: int) -> npt.NDArray[np.uint8]:
        """View a chunk that is there."""
        at, size = self.entries[number].tolist()
        if not 0 <= at <= at + size <= self._index_at:
            raise CorruptionError(f"{self._files.root}/{self.name}: its index points outside of the file")
        return self.map.array(np.uint8, (self.map.size,))[at : at + size]

    def append(self, first: int, data: npt.NDArray[np.uint8], entries: Int64) -> None:
        """Append chunks `first` and following, encoded one after the other in `data`; then their entries, set to where."""
        if self._end + len(data) > self._spare_at:
            raise CorruptionError(f"{self._files.root}/{self.name}: there is no room for the chunks that should fit")
        entries[:, 0] += self._end
        self._write((data, self._end), (entries, self._index_at + first * ENTRY_BYTES))
        self._end += len(data)

    def publish(self, rows: npt.NDArray[np.uint8], offset: int) -> None:
        """Put rows of an incomplete chunk, (n, row_bytes), from row `offset` of the segment on, into the spare room.

        So a closed store can be read without knowing of the tail.
        """
        data, entry = encode_rows(self._column, self._chunk_rows, rows, exact=True)
        entry[:, 0] = self._spare_at
        self._write((data, self._spare_at), (entry, self._index_at + offset // self._chunk_rows * ENTRY_BYTES))

    def forget(self, first: int) -> None:
        """Empty the entries of chunk `first` and all after it."""
        if first < len(self.entries) and (self.entries[first:] != EMPTY).any():
            empty = np.full((len(self.entries) - first, 2), EMPTY, np.int64)
            self._write((empty, self._index_at + first * ENTRY_BYTES))
        self._find_end()  # in any case: a write that fails may have been done, in part or whole

    def contents(self) -> list[tuple[int, npt.NDArray[np.uint8]]]:
        """Return a copy of what is not a hole: (offset, bytes) of the chunks, and of what is behind them."""
        whole, behind = self.map.array(np.uint8, (self.map.size,)), self._index_at - IDENTITY_BYTES
        return [(0, whole[: self._end].copy()), (behind, whole[behind:].copy())]

    def _write(self, *parts: tuple[npt.NDArray[Any], int]) -> None:
        """Write arrays to their places, one after the other."""
        fd = self._files.open(self.name)
        try:
            for data, at in parts:
                self._files.pwrite(fd, data, at)
        finally:
            self._files.close(fd)


def index_of(shard: Map, chunks: int) -> Int64:
    """View a shard's index: (chunks, 2), offset and size."""
    size = chunks * ENTRY_BYTES
    if shard.size < size:
        raise CorruptionError(f"a shard of {shard.size} bytes is too short for its index of {size}")
    return shard.array(np.uint8, (shard.size,))[shard.size - size :].view(np.int64).reshape(chunks, 2)


def with_rows(layout: Layout, path: str, shard: Map, first: int, rows: npt.NDArray[np.uint8]) -> InMemory:
    """Return a live shard without its holes, in memory, with rows, (n, row_bytes), as chunk `first` and those that follow."""
    data, encoded = encode_rows(layout.schema[path], layout.chunk_rows(path), rows, exact=True)
    entries = np.full((layout.chunks(path), 2), EMPTY, np.int64)
    kept = entries[:first] = index_of(shard, len(entries))[:first]
    end = int(kept[(kept >= 0).all(axis=1)].sum(axis=1).max(initial=0))
    entries[first : first + len(encoded)] = encoded + [end, 0]
    contents = np.zeros(-(-(end + len(data)) // ENTRY_BYTES) * ENTRY_BYTES, np.uint8)  # keeps the entries aligned
    held = shard.array(np.uint8, (shard.size,))[: min(end, shard.size)]
    contents[: len(held)], contents[end : end + len(data)] = held, data
    behind = np.concatenate([identity_of(shard, len(entries)), entries.ravel()])
    return InMemory(np.concatenate([contents, behind.view(np.uint8)]))


def write_live(
    files: Files, layout: Layout, path: str, slot: int, rows: tuple[int, int], chunks: Sequence[npt.NDArray[np.uint8]]
) -> None:
    """Put a live shard that has some chunks, as they are encoded, in the place of a slot's file; a crash leaves one of them."""
    name, temporary = layout.data_file(path, slot), f"{layout.data_file(path, slot)}.new.tmp"
    index_at, end = layout.live_bytes(path) - layout.index_bytes(path), 0
    entries = np.full((layout.chunks(path), 2), EMPTY, np.int64)
    fd = files.create(temporary, layout.live_bytes(path), reserve=False)
    try:
        for n, chunk in enumerate(chunks):
            files.pwrite(fd, chunk, end)
            entries[n], end = (end, len(chunk)), end + len(chunk)
        files.pwrite(fd, identity(layout, path, rows), index_at - IDENTITY_BYTES)
        files.pwrite(fd, entries, index_at)
    finally:
        files.close(fd)
    files.sync(temporary)
    files.rename(temporary, name)
    files.sync(path)


def identity(layout: Layout, path: str, rows: tuple[int, int], content: int = 0) -> Int64:
    """Return what stands before a shard's index, to tell whose rows it has, (4,): `rows` is (stream, first row).

    `content` is the checksum of a sealed shard's chunks.
    """
    column = list(layout.schema).index(path)
    return np.array([*fold(layout.salt, column, *rows).view(np.int64), *rows, content], np.int64)


def identity_of(shard: Map, chunks: int) -> Int64:
    """View a shard's identity, (4,)."""
    begin = shard.size - chunks * ENTRY_BYTES - IDENTITY_BYTES
    if begin < 0:
        raise CorruptionError(f"a shard of {shard.size} bytes is too short to tell whose rows it has")
    return shard.array(np.uint8, (shard.size,))[begin : begin + IDENTITY_BYTES].view(np.int64)


def shard_checksum(shard: Map, chunks: int) -> int:
    """Return the checksum of a sealed shard's identity and index; chunks have their own."""
    begin = max(0, shard.size - chunks * ENTRY_BYTES - IDENTITY_BYTES)
    return codec.checksum(shard.array(np.uint8, (shard.size,))[begin:])


class Recode(Protocol):
    """Compress chunks again, as `diskbuffer.store.writing.compression.Compression.recode` does."""

    def __call__(self, shard: int, entries: Int64, out: npt.NDArray[np.uint8], moved: Int64) -> int: ...  # noqa: D102


def write_sealed(
    files: Files,
    layout: Layout,
    path: str,
    slot: int,
    rows: tuple[int, int],
    temporary: str,
    recoder: Callable[[int, Int64], Recode],
    rest: Callable[[float], None],
) -> int:
    """Write a complete live shard's chunks, recompressed, and their index to the file `temporary`, which is to be synced.

    `rows` is (stream, first row). ``recoder(shard, entries)`` is told where the live shard is mapped and its chunks are, and
    returns what compresses them. ``rest(seconds)`` is called after every so many seconds of work. Returns `shard_checksum`.
    """
    chunks, chunk_bytes = layout.chunks(path), layout.chunk_bytes(path)
    live = files.map(layout.data_file(path, slot), -1, writable=False)
    if (identity_of(live, chunks)[:3] != identity(layout, path, rows)[:3]).any():
        raise CorruptionError(f"{files.root}/{layout.data_file(path, slot)}: holds other rows than it should; was it replaced?")
    entries = index_of(live, chunks).copy()
    limit = live.size - chunks * ENTRY_BYTES
    if (entries < 0).any() or (entries > limit).any() or (entries.sum(axis=1) > limit).any():
        raise CorruptionError(f"{files.root}/{layout.data_file(path, slot)}: its index points outside of the file")
    recode = recoder(live.address, entries)
    out = np.empty(min(chunks, RECODED_AT_ONCE) * codec.bound(chunk_bytes), np.uint8)
    sealed = np.zeros((chunks, 2), np.int64)
    fd, end, content = files.create(temporary, 0, reserve=False), 0, 0
    try:
        for first in range(0, chunks, RECODED_AT_ONCE):
            some, begin = sealed[first : first + RECODED_AT_ONCE], time.perf_counter()
            size = recode(live.address, entries[first : first + RECODED_AT_ONCE], out, some)
            if size < 0:
                raise CorruptionError(
                    f"{files.root}/{layout.data_file(path, slot)}: chunk {first - 1 - size} cannot be decoded; "
                    "the segment stays as it is"
                )
            files.pwrite(fd, out[:size], end)
            content = codec.checksum(out[:size], content)
            some[:, 0] += end
            end += size
            rest(time.perf_counter() - begin)
        padded = -(-end // ENTRY_BYTES) * ENTRY_BYTES  # keeps the entries aligned
        behind = np.concatenate([identity(layout, path, rows, content), sealed.ravel()])
        files.pwrite(fd, behind, padded)
        files.begin_sync(fd)
    finally:
        files.close(fd)
    return codec.checksum(behind)
