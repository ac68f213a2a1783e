"""The values of one key of a buffer, read when they are indexed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class LazyKey:
    """The values of one key, (size, ...): an array, or a Batch of arrays, once they are indexed."""

    def __init__(self, size: int, read: Callable[[Array], Any]) -> None:
        self._size, self._read = size, read

    def __len__(self) -> int:
        return self._size

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all of it."""
        return (self._size, *self[:1].shape[1:])

    @property
    def dtype(self) -> Any:
        """Of the values."""
        return self[:1].dtype

    def __getitem__(self, index: Any) -> Any:
        first, rest = (index[0], index[1:]) if isinstance(index, tuple) else (index, ())
        if isinstance(index, str):
            return LazyKey(self._size, lambda places: self._read(places)[index])
        found = self._read(np.arange(self._size)[first])
        return found[(..., *rest)] if rest else found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self[:], name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found: Array = np.asarray(self[:])
        return found if dtype is None else found.astype(dtype)

    def __eq__(self, other: object) -> Any:
        return np.asarray(self) == np.asarray(other)

    __hash__ = None  # type: ignore[assignment]
