"""The rows of a store as a Zarr reader finds them, compared with what we say is stored."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

import diskbuffer as db

Array = npt.NDArray[Any]
Read = Callable[[Path, str], Array]  # the whole array at a path in a store


def arrays_of(root: Path) -> dict[str, Any]:
    """Return the metadata of every array below a group, by path."""
    files = {str(file.parent.relative_to(root)): json.loads(file.read_bytes()) for file in root.rglob("zarr.json")}
    return {path: metadata for path, metadata in files.items() if metadata["node_type"] == "array"}


def with_zarr_python(root: Path, path: str) -> Array:
    array = zarr.open_group(str(root), mode="r")[path]
    assert isinstance(array, zarr.Array)
    return np.asarray(array[...])


def packed_columns(root: Path) -> set[str]:
    return {path for path, metadata in arrays_of(root).items() if metadata["codecs"][0]["name"] == "sharding_indexed"}


class Rows:
    """The rows of each stream, as one Zarr reader finds them."""

    def __init__(self, root: Path, read: Read) -> None:
        self._root, self._read = root, read
        self._length = read(root, "_segments/length")[:, 0]  # first: it is written last
        self._stream, self._first = read(root, "_segments/stream"), read(root, "_segments/first_row")
        cleared = read(root, "_segments/cleared")
        self._begins = np.maximum(cleared[int(cleared[2, 0]) >> 32 & 1], cleared[3])  # as docs/format-1.md says
        self.attributes = json.loads((root / "zarr.json").read_bytes())["attributes"]["diskbuffer"]
        self.segment_rows = int(self.attributes["segment_rows"])

    def positions(self, stream: int) -> Array:
        """Positions of the rows that are there and count, ascending."""
        slots = self._slots(stream)
        first, length = self._first[slots], self._length[slots]
        found = [np.arange(begin, begin + n) for begin, n in zip(first, length, strict=True)]
        there: Array = np.concatenate([np.empty(0, np.int64), *found])
        visible: Array = there[there >= self._begins[stream]]
        return visible

    def _slots(self, stream: int) -> Array:
        slots = np.flatnonzero((self._length > 0) & (self._stream == stream))
        return slots[np.argsort(self._first[slots])]

    def in_column(self, path: str, stream: int, positions: Array) -> Array:
        slots = self._slots(stream)
        slot = slots[np.searchsorted(self._first[slots], positions, side="right") - 1]
        return np.asarray(self._read(self._root, path)[slot * self.segment_rows + positions % self.segment_rows])

    def in_tail(self, path: str, stream: int, positions: Array) -> Array:
        tail = self._read(self._root, f"_tail/{path}")[stream]
        return np.asarray(tail[positions % len(tail)])


def expected_rows(buffer: db.ReplayBuffer, path: str) -> dict[int, dict[int, Array]]:
    """Return what we say is in the rows of each stream: of observations those after steps, too."""
    found: dict[int, dict[int, Array]] = {stream: {} for stream in range(buffer.n_envs)}
    index = buffer._reader.index
    streams, positions, *_ = index.locate(np.arange(len(buffer)))
    if len(buffer) == 0:
        return found
    batch = buffer.at(positions * buffer.n_envs + streams)
    for name, shift in ((path, 0), ("next_" + path, 1)):
        value: Any = batch
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            for stream, position, row in zip(streams, positions, value.numpy(), strict=True):
                found[int(stream)][int(position) + shift] = row
    return found


def check(root: Path, buffer: db.ReplayBuffer, read: Read, *, closed: bool) -> int:
    """Compare all rows of all columns; return how many there are. Nothing must be added meanwhile."""
    read = functools.cache(read)
    rows, n = Rows(root, read), 0
    columns = buffer.columns
    packed = packed_columns(root)
    for path, column in columns.items():
        if path == "is_last":
            continue
        for stream, expected in expected_rows(buffer, path).items():
            n += len(expected)
            at = np.array(sorted(expected), np.int64)
            values = np.array([expected[p] for p in at.tolist()]).reshape(-1, *column.shape)
            there = rows.positions(stream)
            assert np.isin(at, there).all()
            if len(at) == 0:
                continue
            found, head = rows.in_column(path, stream, at), int(there[-1])
            assert found.dtype == column.np_dtype
            if closed or path not in packed:
                np.testing.assert_array_equal(found, values, err_msg=f"{path} of stream {stream}")
                continue
            tail_rows = arrays_of(root)[f"_tail/{path}"]["shape"][1]
            right, missing = (
                np.array([(a == b).all() for a, b in zip(found, other, strict=True)]) for other in (values, np.zeros_like(values))
            )
            assert (right | missing).all(), f"{path} of stream {stream}: a chunk that is there has other bytes"
            assert right[at <= head - tail_rows].all(), f"{path} of stream {stream}: neither in the column nor in the tail"
            np.testing.assert_array_equal(rows.in_tail(path, stream, at[~right]), values[~right])
    for stream in range(buffer.n_envs):  # an episode's last row is no step, and the only such
        there = rows.positions(stream)
        last = there[rows.in_column("is_last", stream, there)] if len(there) else there
        steps = set(expected_rows(buffer, "terminated")[stream])
        assert not steps & set(last.tolist())
        assert steps | set(last.tolist()) | set(there[-1:].tolist()) == set(there.tolist())
    return n
