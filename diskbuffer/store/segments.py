"""The segment table: which rows lie in which slot. Memory-mapped Zarr arrays, indexed by slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store.files import Files, Map
from diskbuffer.store.layout import CHECKSUMS, SEGMENTS, TABLE, TABLE_SLOTS, Layout

Int64 = npt.NDArray[np.int64]


class SegmentTable:
    """Read and write the table. A row counts only where its ``length`` is above zero."""

    def __init__(self, files: Files, layout: Layout, *, writable: bool) -> None:
        self._files = files
        self._writable = writable
        self._layout = layout
        self._dtypes = {f"{SEGMENTS}/{name}": dtype for name, dtype in TABLE.items()}
        self._dtypes |= {f"{CHECKSUMS}/{path}": "uint32" for path in layout.flat}
        self._parts: dict[str, list[tuple[Map, npt.NDArray[Any]]]] = {name: [] for name in self._dtypes}
        self.slots = 0

    def grow(self, slots: int, *, create: bool = False) -> None:
        """Have room for `slots` slots. Chunk files of the table that are not there are made only with `create`."""
        for name, dtype in self._dtypes.items():
            parts = self._parts[name]
            while len(parts) * TABLE_SLOTS < slots:
                file, size = f"{name}/c.{len(parts)}", TABLE_SLOTS * np.dtype(dtype).itemsize
                if create:
                    self._files.close(self._files.create(file, size, reserve=True))
                mapped = self._files.map(file, size, writable=self._writable)
                parts.append((mapped, mapped.array(dtype, (TABLE_SLOTS,))))
        self.slots = slots

    def get(self, name: str, slot: int) -> int:
        """Return one value of the table."""
        return int(self._parts[f"{SEGMENTS}/{name}"][slot // TABLE_SLOTS][1][slot % TABLE_SLOTS])

    def set(self, name: str, slot: int, value: int) -> None:
        """Set one value of the table, with one aligned store."""
        self._parts[f"{SEGMENTS}/{name}"][slot // TABLE_SLOTS][1][slot % TABLE_SLOTS] = value

    def set_checksum(self, path: str, slot: int, value: int) -> None:
        """Note the checksum of a sealed segment in a flat column."""
        self._parts[f"{CHECKSUMS}/{path}"][slot // TABLE_SLOTS][1][slot % TABLE_SLOTS] = value

    def length_address(self, slot: int) -> int:
        """Return where a slot's length lies in memory."""
        mapped, _ = self._parts[f"{SEGMENTS}/length"][slot // TABLE_SLOTS]
        return mapped.address + slot % TABLE_SLOTS * 8

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a copy of one column, for all slots."""
        return np.concatenate([part for _, part in self._parts[f"{SEGMENTS}/{name}"]])[: self.slots]

    def names(self) -> Iterator[str]:
        """Yield the files' names, for syncing."""
        for name, parts in self._parts.items():
            yield from (f"{name}/c.{i}" for i in range(len(parts)))

    def by_stream(self) -> list[Int64]:
        """Return the slots of each stream in the order of its rows; a CorruptionError where rows are missing between them."""
        rows = self._layout.segment_rows
        length, stream, first = (self.column(name) for name in ("length", "stream", "first_row"))
        again = self.column("length")  # a slot that was emptied, or emptied and filled, while we read it, does not count
        used = (length > 0) & (again >= length)
        bad = used & ((length > rows) | (stream < 0) | (stream >= self._layout.streams) | (first < 0) | (first % rows != 0))
        if bad.any():
            slot = int(np.flatnonzero(bad)[0])
            raise CorruptionError(
                f"{self._files.root}/{SEGMENTS}: slot {slot} claims {length[slot]} rows from {first[slot]} of stream "
                f"{stream[slot]}, in a store of {self._layout.streams} streams and {rows} rows a segment"
            )
        found = []
        for s in range(self._layout.streams):
            mine = np.flatnonzero(used & (stream == s))
            mine = mine[np.argsort(first[mine], kind="stable")]
            gaps = np.diff(first[mine]) != rows
            short = length[mine[:-1]] != rows
            if (gaps | short).any():
                slot = int(mine[int(np.flatnonzero(gaps | short)[0])])
                raise CorruptionError(
                    f"{self._files.root}/{SEGMENTS}: after slot {slot}, rows of stream {s} are missing or there twice"
                )
            found.append(mine.astype(np.int64))
        return found
