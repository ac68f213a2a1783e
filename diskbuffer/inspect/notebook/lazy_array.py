"""An array for xarray that reads what is indexed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray.backends import BackendArray
from xarray.core import indexing

Read = Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]]


class LazyArray(BackendArray):
    """An array whose first axis is read when it is indexed, from a function of places on it.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype
    read : callable
        Gets places, (n,) int64, and returns (n, *shape[1:]).
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], read: Read) -> None:
        self.shape, self.dtype, self._read_places = shape, dtype, read

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        if isinstance(key, indexing.VectorizedIndexer):  # points: the smallest block that has them, and the points of that
            return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)
        return self._read(key.tuple)  # as it is: xarray's way to split a slice that goes backwards fails where it is empty

    def _read(self, key: tuple[Any, ...]) -> npt.NDArray[Any]:
        places = np.arange(self.shape[0])[key[0]]
        found = self._read_places(np.atleast_1d(places))
        for axis in range(len(key) - 1, 0, -1):  # each on its own, the last first, so that numbers take no axis before it away
            found = found[(slice(None),) * axis + (key[axis],)]
        return found if np.ndim(places) else found[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyArray:
        return self  # it does not change

    def __getstate__(self) -> Any:
        raise TypeError("what is still on the disk cannot be pickled; load() it first, or open the store again there")
