"""The arrays of a buffer of Stable-Baselines3, for code that looks into them: read from the disk when they are indexed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from diskbuffer.errors import InputError
from diskbuffer.gather.arrays import Batch

Array = npt.NDArray[Any]
_AT_ONCE = 4096  # steps


class Ring(Protocol):
    """A buffer whose steps have places in a ring."""

    buffer_size: int
    n_envs: int

    def size(self) -> int:
        """How many places are filled."""

    def _batch(self, batch_inds: Any, env_indices: Any) -> Batch: ...


class RingColumn:
    """One array, (buffer_size, n_envs, ...), zeros where nothing was added yet. It cannot be written to.

    Parameters
    ----------
    ring : Ring
    take : callable
        Takes the values, (n, ...), out of a batch.
    shape : tuple of int
        Of one value.
    dtype : numpy.dtype
    mark : callable, optional
        Called with a place to which True is assigned; nothing else can be assigned.
    """

    def __init__(
        self,
        ring: Ring,
        take: Callable[[Batch], torch.Tensor],
        shape: tuple[int, ...],
        dtype: Any,
        mark: Callable[[Any], None] | None = None,
    ) -> None:
        self._ring, self._take, self._of, self._mark = ring, take, shape, mark
        self.shape, self.dtype = (ring.buffer_size, ring.n_envs, *shape), np.dtype(dtype)

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def nbytes(self) -> int:
        """What it would take in memory."""
        return int(np.prod(self.shape) * self.dtype.itemsize)

    def __getitem__(self, key: Any) -> Any:
        """Index the first two axes first, and the others of what was read."""
        first, rest = (key[:2], key[2:]) if isinstance(key, tuple) else ((key,), ())
        places, envs = np.meshgrid(np.arange(self.shape[0]), np.arange(self.shape[1]), indexing="ij", sparse=True)
        if len(first) == 2 and all(isinstance(part, np.ndarray | list | int | np.integer) for part in first):
            places, envs = np.broadcast_arrays(places[:, 0][first[0]], envs[0][first[1]])
        else:
            places, envs = (array[first] for array in np.broadcast_arrays(places, envs))
        found = self._read(places.ravel(), envs.ravel()).reshape(*places.shape, *self._of)
        return found[(..., *rest)] if rest and rest != (slice(None),) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._mark is None or not np.all(value):
            raise InputError("what was added cannot be changed")
        self._mark(key)

    def _read(self, places: Array, envs: Array) -> Array:
        values = np.zeros((len(places), *self._of), self.dtype)
        there = np.flatnonzero(places < self._ring.size())
        for begin in range(0, len(there), _AT_ONCE):
            some = there[begin : begin + _AT_ONCE]
            values[some] = self._take(self._ring._batch(places[some], envs[some])).numpy()
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found: Array = self[:]
        return found if dtype is None else found.astype(dtype)


def observations_of(ring: Ring, name: str, space: spaces.Space[Any], shapes: Any) -> Any:
    """Return the array of observations, or one for each part of dict observations; `name` is theirs in a batch."""
    if not isinstance(space, spaces.Dict):
        return RingColumn(ring, lambda batch: batch[name], shapes, space.dtype)
    return {part: RingColumn(ring, partial(_part, name, part), shapes[part], of.dtype) for part, of in space.spaces.items()}


def _part(name: str, part: str, batch: Batch) -> torch.Tensor:
    found: torch.Tensor = batch[name][part]
    return found
