"""The rows of a segment, read with suspicion: which of them are what was written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.schema.schema import CHECKSUM
from diskbuffer.store.format import codec, pictures
from diskbuffer.store.format.checksums import STEP, TIME, Summed, UInt32, covered, row_checksums
from diskbuffer.store.format.chunks import decode_entry, verify_picture
from diskbuffer.store.segments import shard
from diskbuffer.store.segments.shard import EMPTY, identity_of, index_of
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Map

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_AT_ONCE, _FEWEST = 1024 * 1024, 256  # bytes of rows, which bounds the memory, but so many rows


class Inspected:
    """A segment that is being inspected; the lock of a store that is written to must be held.

    Parameters
    ----------
    store : Store
    slot : int
    rows : int
        How many of its rows to look at.
    decode : bool
        Whether to decode every chunk. If not, rows of packed columns that are in the shard are taken for good: their chunks have
        checksums, which are verified whenever they are decoded.
    identity : (int, int), optional
        The stream and the position of the first row that it should have; else as the table has it.

    Attributes
    ----------
    damage : dict of str to str
        Columns whose file is missing, of the wrong size, or not this segment's as it says itself, and what is wrong with it. Rows
        of the latter can be read, and may match their checksums.
    chunks : dict of str to int
        Of packed columns, how many chunks are there, from the first on, one after the other.
    bad_chunks : dict of str to dict of int to str
        Chunks that are there and cannot be decoded, and why. Only with `decode`.
    """

    def __init__(self, store: Store, slot: int, rows: int, *, decode: bool, identity: tuple[int, int] | None = None) -> None:
        self._store, self._layout, self._decode = store, store.layout, decode
        self.slot, self.length = slot, rows
        self.stream, self.first = identity or store.table.identity(slot)
        self.damage: dict[str, str] = {}
        self.chunks: dict[str, int] = {}
        self.bad_chunks: dict[str, dict[int, str]] = {}
        self._maps: dict[str, Map] = {}
        for path in self._layout.schema.recorded:
            try:
                self._open(path)
            except CorruptionError as error:
                self.damage[path] = str(error)
        self._words = self._flat(CHECKSUM).view(np.uint32) if CHECKSUM in self._maps else None

    def _open(self, path: str) -> None:
        layout = self._layout
        name, packed = layout.data_file(path, self.slot), path in layout.chunks_of
        shown: Map | None = self._store.shown.get((path, self.slot))
        mapped = shown or self._store.files.map(name, -1 if packed else layout.flat_bytes(path), writable=False)
        if packed:
            self._look_at_chunks(path, mapped)
        self._maps[path] = mapped
        if packed and not self._is_of_this_segment(path, mapped):
            where = self._store.verification.describe(path, self.slot)
            raise CorruptionError(f"{where}: the file holds other rows; was it replaced?")

    def _is_of_this_segment(self, path: str, mapped: Map) -> bool:
        expected = shard.identity(self._layout, path, (self.stream, self.first))
        fields = 4 if mapped.size == self._layout.live_bytes(path) else 3  # the last has the checksum of what is sealed
        return bool((identity_of(mapped, self._layout.chunks(path)) == expected)[:fields].all())

    def _look_at_chunks(self, path: str, mapped: Map) -> None:
        entries = index_of(mapped, self._layout.chunks(path))
        set_, complete = (entries != EMPTY).any(axis=1), (entries != EMPTY).all(axis=1)
        self.chunks[path] = int(np.append(complete, False).argmin())
        self.bad_chunks[path] = {}
        if self._decode:
            self.bad_chunks[path] |= dict.fromkeys(np.flatnonzero(set_ & ~complete).tolist(), codec.REASONS[codec.BAD_ENTRY])
            column, lossy = self._layout.schema[path], path in self._layout.lossy
            raw = np.empty(self._layout.chunk_bytes(path), np.uint8)
            for chunk in np.flatnonzero(complete).tolist():
                wrong = verify_picture(mapped, entries, chunk) if lossy else decode_entry(mapped, entries, chunk, column, raw)
                if wrong:
                    self.bad_chunks[path][chunk] = codec.REASONS[wrong]

    def look_at_pictures(self) -> None:
        """Find the chunks of columns compressed with a loss that are as they were written, and no pictures all the same.

        Only with `decode`. It takes a hundred times as long as verifying their checksums.
        """
        for path in self._layout.lossy:
            if path not in self._maps:
                continue
            raw = np.empty(self._layout.chunk_bytes(path), np.uint8)
            entries = index_of(self._maps[path], self._layout.chunks(path))
            for chunk in np.flatnonzero((entries != EMPTY).all(axis=1)).tolist():
                wrong = decode_entry(self._maps[path], entries, chunk, self._layout.schema[path], raw)
                if wrong and chunk not in self.bad_chunks[path]:
                    self.bad_chunks[path][chunk] = codec.REASONS[wrong]

    def _flat(self, path: str) -> Bytes:
        rows = self._layout.segment_rows
        values: Bytes = self._maps[path].array(np.uint8, (rows, self._layout.schema[path].row_bytes))[: self.length]
        return values

    def row_bytes(self, path: str) -> int:
        """Return the bytes of a row in a column."""
        return self._layout.schema[path].row_bytes

    def is_readable(self, path: str) -> bool:
        """Return whether a column's file is there, whatever it says."""
        return path in self._maps

    def word(self, row: int, word: int) -> int | None:
        """Return a word of a row's checksum, if the file is there."""
        return None if self._words is None else int(self._words[row, word])

    def times(self) -> UInt32:
        """Return when the step of each row was added, (length,); zeros where the file is not there."""
        return np.zeros(self.length, np.uint32) if self._words is None else self._words[:, TIME].copy()

    def verified(self, word: int, *, newest: bool = False) -> Bools:
        """Return which rows match a word of their checksum, (length,).

        `newest` tells that the last of them is its stream's newest row: whatever was done there does not count.
        """
        paths, good = covered(self._layout.schema, word), np.zeros(self.length, np.bool_)
        if self._words is None or not all(path in self._maps for path in paths):
            return good
        packed = [path for path in paths if path in self._layout.chunks_of]
        begin = 0
        if packed and not self._decode:
            begin = min([self.length, *(self.chunks[path] * self._layout.chunk_rows(path) for path in packed)])
            good[:begin] = True
        at_once = max(_FEWEST, _AT_ONCE // max(1, sum(self.row_bytes(path) for path in paths)))
        for at in range(begin, self.length, at_once):
            n = min(at_once, self.length - at)
            rows = {path: self._rows_or_sums(path, at, n) for path in paths}
            computed = self._checksums(word, at, n, rows)
            words = self._words[at : at + n, word]
            good[at : at + n] = computed == words
        good[-1:] |= newest and word == STEP
        return good

    def _checksums(self, word: int, at: int, n: int, rows: Mapping[str, Bytes | Summed]) -> UInt32:
        return row_checksums(self._layout.schema, self._layout.salt, self.stream, self.first + at, n, rows, word)

    def sums(self, path: str, at: int, n: int) -> Summed:
        """Return the checksums of rows as they were given, in a column that is compressed with a loss."""
        checksums = np.zeros(n, np.uint32)
        for row in range(at, at + n):
            chunk = self.picture(path, row) if self._decode else None
            checksums[row - at] = codec.checksum(self._in_tail(path, row, 1)) if chunk is None else pictures.sum_of_given(chunk)
        return Summed(checksums, self.row_bytes(path))

    def picture(self, path: str, row: int) -> Bytes | None:
        """Return a row's chunk in a column that is compressed with a loss; None where it is not there, or bad."""
        mapped = self._maps[path]
        if row >= self.chunks[path] or row in self.bad_chunks[path]:
            return None
        at, size = index_of(mapped, self._layout.chunks(path))[row].tolist()
        chunk: Bytes = mapped.array(np.uint8, (mapped.size,))[at : at + size]
        return chunk

    def _rows_or_sums(self, path: str, at: int, n: int) -> Bytes | Summed:
        return self.sums(path, at, n) if path in self._layout.lossy else self.rows(path, at, n)

    def _in_tail(self, path: str, at: int, n: int) -> Bytes:
        positions = (self.first + np.arange(at, at + n)) % self._layout.tail_rows
        rows: Bytes = self._store.tail(path)[self.stream, positions]
        return rows

    def rows(self, path: str, at: int, n: int) -> Bytes:
        """Return rows as bytes; those of bad chunks, and those that are in the tail, as the tail has them."""
        if path not in self._layout.chunks_of:
            return self._flat(path)[at : at + n]
        column = self._layout.schema[path]
        rows = self._in_tail(path, at, n)
        if not self._decode:
            return rows
        chunk_rows, mapped = self._layout.chunk_rows(path), self._maps[path]
        raw = np.empty(self._layout.chunk_bytes(path), np.uint8)
        entries = index_of(mapped, self._layout.chunks(path))
        for chunk in range(at // chunk_rows, min(-(-(at + n) // chunk_rows), self.chunks[path])):
            if chunk in self.bad_chunks[path]:
                continue
            decode_entry(mapped, entries, chunk, column, raw)
            first, until = max(at, chunk * chunk_rows), min(at + n, (chunk + 1) * chunk_rows)
            frames = raw.reshape(chunk_rows, column.row_bytes)
            rows[first - at : until - at] = frames[first - chunk * chunk_rows : until - chunk * chunk_rows]
        return rows
