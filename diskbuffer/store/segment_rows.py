"""Rows of one segment in one column: mapped where it is flat, decoded chunk by chunk where it is packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store.format import codec
from diskbuffer.store.format.chunks import decode_entry
from diskbuffer.store.segments.shard import EMPTY, index_of
from diskbuffer.store.store import Store

Int64 = npt.NDArray[np.int64]
_TRIES = 3  # of a chunk that the writer may be replacing


class SegmentRows:
    """Read rows of a segment; the store's lock must be held.

    Parameters
    ----------
    store : Store
    column : str
    slot : int
    rows : (int, int)
        The stream, and the position of the segment's first row.
    """

    def __init__(self, store: Store, column: str, slot: int, rows: tuple[int, int]) -> None:
        self._store, self._column, self._slot = store, column, slot
        self._stream, self._first = rows

    def read(self, offsets: Int64) -> npt.NDArray[Any]:
        """Return rows by their place in the segment, (n, *shape). An EvictedError where a writer has evicted it since."""
        if self._column not in self._store.layout.chunks_of:
            return self._store.values(self._column, self._slot)[offsets]
        column, size = self._store.layout.schema[self._column], self._store.layout.chunk_rows(self._column)
        self._store.maps.ensure([self._slot], (self._column,))
        rows = np.empty((len(offsets), column.row_bytes), np.uint8)
        chunks = offsets // size
        for chunk in sorted(set(chunks.tolist())):
            here = np.flatnonzero(chunks == chunk)
            rows[here] = self._chunk(chunk, offsets[here])
        return rows.view(column.np_dtype).reshape(-1, *column.shape)

    def _chunk(self, chunk: int, offsets: Int64) -> npt.NDArray[np.uint8]:
        """Return rows of one chunk, (n, row_bytes): of the shard, or of the tail while it is not there."""
        layout = self._store.layout
        size = layout.chunk_rows(self._column)
        mapped = self._store.maps.get(self._column, self._slot)
        entries = index_of(mapped, layout.chunks(self._column))
        raw = np.empty(layout.chunk_bytes(self._column), np.uint8)
        wrong = 0
        for _ in range(_TRIES):
            if (entries[chunk] == EMPTY).any():
                rows = self._tail(offsets)
                if (entries[chunk] == EMPTY).any():  # or its place in the tail may be another row's by now
                    return rows
            wrong = decode_entry(mapped, entries, chunk, layout.schema[self._column], raw)
            if not wrong:
                return raw.reshape(size, -1)[offsets % size]
        self._store.following.verify([self._slot], damaged=True)
        where = self._store.verification.describe(self._column, self._slot)
        raise CorruptionError(f"{where}: chunk {chunk}: {codec.REASONS[wrong]}. `diskbuffer check` tells what else is damaged")

    def _tail(self, offsets: Int64) -> npt.NDArray[np.uint8]:
        places = (self._first + offsets) % self._store.layout.tail_rows
        rows: npt.NDArray[np.uint8] = self._store.tail(self._column)[self._stream, places]
        return rows
