"""What a flush copies of the tail: of each stream the rows that are in no shard yet.

In the tail their places are used again as soon as they are packed, and what they were packed into may not be on the disk when
the power fails. So they come from the copy then, whatever the shards and the tail have. Each flush writes a new file, and the
note of the last flush names the one that belongs to it, with its checksum.

    of each stream and column: the chunks, and int64 (chunks, 2) | ... | int64 (packed columns, streams, 3)

The chunks are those of a shard, at (offset in the file, size). The last numbers are the position of the first row, how many rows
there are, and where their chunks' entries are.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store.format import codec
from diskbuffer.store.format.chunks import decode_entry
from diskbuffer.store.format.encoding import encode_rows
from diskbuffer.store.format.layout import ENTRY_BYTES, SEGMENTS, Layout
from diskbuffer.store.system.files import Files

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]

_DIRECTORY = f"{SEGMENTS}/length"  # an array's, which no Zarr tool lists
_NAME = re.compile(r"tail\.[0-9]+")


class Unpacked(NamedTuple):
    """Rows of a stream that are in the tail only, as bytes, (n, row_bytes), and the position of the first."""

    path: str
    stream: int
    first: int
    rows: Bytes


class CopyNote(NamedTuple):
    """A copy's number, by which its file is called, and its CRC32C."""

    number: int
    checksum: int

    @property
    def name(self) -> str:
        """The file."""
        return f"{_DIRECTORY}/tail.{self.number}"


def copy_tail(files: Files, layout: Layout, number: int, parts: Iterable[Iterable[Unpacked]]) -> CopyNote | None:
    """Write a copy, and sync the file, whose name is not synced yet; return its note, None where no column is packed."""
    columns, end, checksum = {path: n for n, path in enumerate(layout.packed)}, 0, 0
    places, name = np.zeros((len(columns), layout.streams, 3), np.int64), CopyNote(number, 0).name
    fd = files.create(name, 0, reserve=False) if columns else -1

    def append(data: npt.NDArray[Any]) -> None:
        nonlocal end, checksum
        files.pwrite(fd, data.reshape(-1).view(np.uint8), end)
        end, checksum = end + data.nbytes, codec.checksum(data, checksum)

    try:
        for path, stream, first, rows in itertools.chain.from_iterable(parts):
            data, entries = encode_rows(layout.schema[path], layout.chunk_rows(path), rows, exact=True)
            entries[:, 0] += end
            append(data)
            places[columns[path], stream] = first, len(rows), end
            append(entries)
        if not columns:
            return None
        append(places)
        files.sync(name)
        return CopyNote(number, checksum)
    except BaseException:
        with contextlib.suppress(OSError):  # the next flush does it
            files.remove(name)
        raise
    finally:
        if columns:
            files.close(fd)


class StoredTail:
    """Read a copy; a CorruptionError where it is missing, or not what was written."""

    def __init__(self, files: Files, layout: Layout, note: CopyNote) -> None:
        self._layout, self._path = layout, files.root / note.name
        shape = (len(layout.packed), layout.streams, 3)
        try:
            self._map = files.map(note.name, -1, writable=False)
        except CorruptionError:
            raise self._damaged() from None
        self._data: Bytes = self._map.array(np.uint8, (self._map.size,))
        self._end = len(self._data) - 8 * int(np.prod(shape))
        if self._end < 0 or codec.checksum(self._data) != note.checksum:
            raise self._damaged()
        self._places = self._data[self._end :].copy().view(np.int64).reshape(shape)
        first, count, begin = self._places.transpose(2, 0, 1)
        if (self._places < 0).any() or (first > 2**56).any() or (count > layout.tail_rows).any() or (begin > self._end).any():
            raise self._damaged()

    def of(self, stream: int) -> list[Unpacked]:
        """Return the rows of a stream, of each packed column."""
        found = []
        for number, path in enumerate(self._layout.packed):
            (first, count, begin), column = self._places[number, stream].tolist(), self._layout.schema[path]
            rows = np.zeros((-(-count // self._layout.chunk_rows(path)), self._layout.chunk_bytes(path)), np.uint8)
            if begin + ENTRY_BYTES * len(rows) > self._end:
                raise self._damaged()
            entries = self._data[begin : begin + ENTRY_BYTES * len(rows)].copy().view(np.int64).reshape(-1, 2)
            for chunk in range(len(rows)):
                if decode_entry(self._map, entries, chunk, column, rows[chunk]):
                    raise self._damaged()
            found.append(Unpacked(path, stream, first, rows.reshape(-1, column.row_bytes)[:count]))
        return found

    def _damaged(self) -> CorruptionError:
        advice = "`diskbuffer check --repair` saves what can be saved"
        return CorruptionError(f"{self._path}, the copy of the tail that the last flush made, is damaged. {advice}")


def remove_others(files: Files, note: CopyNote | None) -> None:
    """Remove the copies of other flushes than the one that counts."""
    for name in files.names(_DIRECTORY):
        if _NAME.fullmatch(name) and (note is None or f"{_DIRECTORY}/{name}" != note.name):
            files.remove(f"{_DIRECTORY}/{name}")
