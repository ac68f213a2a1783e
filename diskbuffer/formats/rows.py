"""Rows that are made of other rows, and read when they are sliced: a range of some, several one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import SchemaError, SourceError
from diskbuffer.plugin import Rows

BLOCK = 8 * 1024**2  # bytes of rows that are read at a time, where nothing else says how many
MAPPED = 32 * 1024**2  # bytes of rows that are read from a store, or written to one, before its memory maps are let go


class RowRange:
    """The rows from `first` to before `last` of others."""

    def __init__(self, rows: Rows, first: int, last: int) -> None:
        self._rows, self._first = rows, first
        self.shape = (last - first, *rows.shape[1:])
        self.dtype = rows.dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        return self._rows[self._first + first : self._first + max(first, last)]


class Joined:
    """Rows of several, one after the other; all of one dtype and shape."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = [part for part in parts if part.shape[0]] or list(parts[:1])
        self._ends = np.cumsum([part.shape[0] for part in self._parts])
        self.shape = (int(self._ends[-1]), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        blocks = []
        number = int(np.searchsorted(self._ends, first, side="right"))
        while first < last:
            start = int(self._ends[number]) - self._parts[number].shape[0]
            end = min(last, int(self._ends[number]))
            blocks.append(np.asarray(self._parts[number][first - start : end - start]))
            first, number = end, number + 1
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate(blocks) if blocks else np.zeros((0, *self.shape[1:]), self.dtype)


class Shaped:
    """Rows of others, each of another shape with as many items."""

    def __init__(self, rows: Rows, shape: tuple[int, ...]) -> None:
        self._rows = rows
        self.shape = (rows.shape[0], *shape)
        self.dtype = rows.dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        values = np.asarray(self._rows[rows])
        return values.reshape(len(values), *self.shape[1:])


class Repeated:
    """One value in every row."""

    def __init__(self, value: npt.NDArray[Any], rows: int) -> None:
        self._value = value
        self.shape = (rows, *value.shape)
        self.dtype = value.dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        return np.broadcast_to(self._value, (max(0, last - first), *self._value.shape))


def zeros(like: Rows, n: int = 1) -> npt.NDArray[Any]:
    """Return `n` rows of zeros, of a dtype and shape as others."""
    return np.zeros((n, *like.shape[1:]), like.dtype)


def with_final(rows: Rows, steps: int) -> Rows:
    """Return the T + 1 observations of an episode of T steps; the last one stands for a final one that is not known."""
    return rows if rows.shape[0] > steps else Joined([rows, RowRange(rows, steps - 1, steps)])


def rows_at_a_time(*columns: Rows, most: int = 65536) -> int:
    """Return how many rows of some columns to read at a time."""
    return max(1, min(most, BLOCK // max(1, sum(math.prod(rows.shape[1:]) * rows.dtype.itemsize for rows in columns))))


def column_of(rows: Rows, path: Path, name: str) -> Column:
    """Return what a store's column of such rows is; a SourceError that names them where there is none."""
    if not rows.shape:
        raise SourceError(f"{path}: {name} is a single value, and should have a row of each step")
    try:
        return Column(tuple(rows.shape[1:]), rows.dtype)
    except SchemaError as error:
        raise SourceError(f"{path}: {name} cannot be a column: {error}") from None


def without_nan(flags: npt.NDArray[Any], where: str, first: int = 0) -> npt.NDArray[Any]:
    """Return flags, (n,), of the rows from `first` on; a SourceError where one is NaN, which would count as true."""
    if flags.dtype.kind == "f" and (wrong := np.flatnonzero(np.isnan(flags))).size:
        raise SourceError(f"{where} should be a number or a truth value in each row, found NaN in row {first + wrong[0]:,}")
    return flags
