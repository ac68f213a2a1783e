"""Rows that are made of other rows when they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.formats.data import Rows


class Part:
    """Rows `first` to `last` of others."""

    def __init__(self, rows: Rows, first: int, last: int) -> None:
        self._rows, self._first = rows, first
        self.shape = (last - first, *rows.shape[1:])
        self.dtype = rows.dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        return self._rows[self._first + first : self._first + max(first, last)]


class Joined:
    """Rows, and after them others of the same dtype and shape."""

    def __init__(self, *parts: Rows) -> None:
        self._parts = parts
        self.shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        found, begin = [np.empty((0, *self.shape[1:]), self.dtype)], 0
        for part in self._parts:
            end = begin + part.shape[0]
            if first < end and last > begin:
                found.append(part[max(first, begin) - begin : min(last, end) - begin])
            begin = end
        return np.concatenate(found) if len(found) != 2 else found[1]


class Repeated:
    """One value in every row."""

    def __init__(self, value: npt.NDArray[Any], rows: int) -> None:
        self._value = value
        self.shape = (rows, *value.shape)
        self.dtype = value.dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        return np.broadcast_to(self._value, (max(0, last - first), *self._value.shape))


class Changed:
    """Rows as a function makes them of others, each of its own."""

    def __init__(
        self, rows: Rows, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._rows, self._change = rows, change
        self.shape = (rows.shape[0], *shape)
        self.dtype = dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        return self._change(self._rows[rows])
