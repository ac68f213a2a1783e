"""Rows of a file that are read one after the other, as a video can only be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError


class Tape:
    """Read slices of a file's rows. They should follow one another, and may overlap by a row: going back is to begin anew.

    Parameters
    ----------
    opened : callable
        ``opened(first)`` yields blocks of rows, the first of which begins with row number `first`.
    shape : tuple of int
        Of a row.
    dtype : numpy.dtype
    what : str
        The column and the file, for messages.
    """

    def __init__(
        self, opened: Callable[[int], Iterator[npt.NDArray[Any]]], shape: tuple[int, ...], dtype: np.dtype[Any], what: str
    ) -> None:
        self._opened, self._shape, self._dtype, self._what = opened, shape, dtype, what
        self._blocks: Iterator[npt.NDArray[Any]] | None = None
        self._held: list[npt.NDArray[Any]] = []  # rows from `_begin` to `_end`, the last ones that were read
        self._begin = self._end = 0

    def read(self, first: int, last: int) -> npt.NDArray[Any]:
        """Return the rows from `first` to before `last`; a SourceError where they are not there."""
        rows = np.empty((last - first, *self._shape), self._dtype)
        if not len(rows):
            return rows
        if self._blocks is None or not self._begin <= first <= self._end:
            self.close()
            self._blocks, self._begin, self._end = self._opened(first), first, first
        at = self._begin
        for block in self._held:
            _put(rows, first, block, at)
            at += len(block)
        while self._end < last:
            try:
                block = next(self._blocks)
            except StopIteration:
                raise SourceError(f"{self._what} ends early: expected row {self._end}, found the end") from None
            _put(rows, first, block, self._end)
            self._held.append(block)
            self._end += len(block)
            while len(self._held) > 1 and self._begin + len(self._held[0]) < last:  # a read may begin with the last row of this
                self._begin += len(self._held.pop(0))
        return rows

    def close(self) -> None:
        """Close the file."""
        if self._blocks is not None:
            close = getattr(self._blocks, "close", None)
            if close is not None:
                close()
        self._blocks, self._held, self._begin, self._end = None, [], 0, 0


def _put(rows: npt.NDArray[Any], first: int, block: npt.NDArray[Any], at: int) -> None:
    """Copy those rows of a block that begins with row `at` that are wanted, from `first` on."""
    low, high = max(first, at), min(first + len(rows), at + len(block))
    if low < high:
        rows[low - first : high - first] = block[low - at : high - at]
