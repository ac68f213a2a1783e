"""An array of int64 that grows at its end and is cut at its front, for compiled code to read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class GrowingArray:
    """A growing array of int64 that also loses values at its front. Its address changes when it grows."""

    def __init__(self, values: Int64 | None = None) -> None:
        self._set_memory(np.empty(16, np.int64))
        self._from = self._to = 0
        if values is not None:
            self.extend(values)

    def _set_memory(self, array: Int64) -> None:
        self._array, self._address = array, int(array.ctypes.data)

    @property
    def values(self) -> Int64:
        """What it holds, a view."""
        return self._array[self._from : self._to]

    @property
    def address(self) -> int:
        """Where that lies in memory."""
        return self._address + self._from * 8

    @property
    def room(self) -> int:
        """How many more values fit into the memory behind these."""
        return len(self._array) - self._to

    def end_at(self, address: int) -> None:
        """Have the values end at an address: compiled code has put some there."""
        self._to = (address - self._address) // 8

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return self._array.nbytes

    def __len__(self) -> int:
        return self._to - self._from

    def as_it_is(self) -> GrowingArray:
        """Return one with the same values, in the same memory, which stays as it is when this one grows, or is cut."""
        view = GrowingArray.__new__(GrowingArray)
        view._array, view._address, view._from, view._to = self._array, self._address, self._from, self._to
        return view

    def extend(self, values: Int64) -> None:
        """Put values at the end."""
        if self._to + len(values) > len(self._array):
            kept = self.values
            self._set_memory(np.empty(2 * (len(kept) + len(values)) + 16, np.int64))
            self._array[: len(kept)] = kept
            self._from, self._to = 0, len(kept)
        self._array[self._to : self._to + len(values)] = values
        self._to += len(values)

    def drop(self, n: int) -> None:
        """Drop the first `n` values."""
        self._from += n
