"""The arrays of a buffer of Stable-Baselines3, for code that looks into them: read from the disk when they are indexed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from diskbuffer.adapters.sb3.stored import obs_path
from diskbuffer.errors import InputError
from diskbuffer.plugin import Batch

Array = npt.NDArray[Any]
_AT_ONCE = 4096  # steps
_WRITING = ("byteswap", "fill", "itemset", "partition", "put", "resize", "setfield", "setflags", "sort")  # methods of arrays


class Ring(Protocol):
    """A buffer whose steps have places in a ring."""

    buffer_size: int
    n_envs: int

    def size(self) -> int:
        """How many places are filled."""

    def _batch(self, batch_inds: Any, env_indices: Any, *, columns: Sequence[str] | None = None) -> Batch: ...


class RingColumn(np.lib.mixins.NDArrayOperatorsMixin):
    """One array, (buffer_size, n_envs, ...), zeros where nothing was added yet. It cannot be written to.

    Indexing reads what is indexed; everything else that arrays have (arithmetic, comparisons, methods such as ``mean``,
    functions of numpy) reads all of it, and works on that.

    Parameters
    ----------
    ring : Ring
    columns : sequence of str
        Of the store: those that it takes, which alone are read.
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
        columns: Sequence[str],
        take: Callable[[Batch], torch.Tensor],
        shape: tuple[int, ...],
        dtype: Any,
        mark: Callable[[Any], None] | None = None,
    ) -> None:
        self._ring, self._columns, self._take, self._of, self._mark = ring, columns, take, shape, mark
        self.shape, self.dtype = (ring.buffer_size, ring.n_envs, *shape), np.dtype(dtype)

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """What it would take in memory."""
        return int(self.size * self.dtype.itemsize)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of shape {self.shape}, {self.dtype}: read from the disk when it is indexed>"

    # Reading

    def __getitem__(self, key: Any) -> Any:
        parts = _parted(key)
        if parts is None:
            return self._pick(key)
        first, rest = parts
        places, envs = _steps(first, self.shape[0], self.shape[1])
        found = self._read(places.ravel(), envs.ravel()).reshape((*places.shape, *self._of))
        return found[(..., *rest) if rest and any(part != slice(None) for part in rest) else ()]

    def _pick(self, key: Any) -> Any:
        """Index number by number, in every way that numpy knows; steps are read once each."""
        steps = np.arange(self.shape[0] * self.shape[1]).reshape(*self.shape[:2], *(1,) * len(self._of))
        within = np.arange(math.prod(self._of)).reshape(self._of)
        chosen, numbers = (np.broadcast_to(each, self.shape)[key] for each in (steps, within))
        each, back = np.unique(chosen, return_inverse=True)
        values = self._read(*np.divmod(each, self.shape[1])).reshape(len(each), -1)
        return values[back.reshape(np.shape(chosen)), numbers]

    def _read(self, places: Array, envs: Array) -> Array:
        filled = self._ring.size()
        if 0 < len(places) <= _AT_ONCE and (filled == len(self) or places.max() < filled):
            return self._take(self._ring._batch(places, envs, columns=self._columns)).numpy().astype(self.dtype, copy=False)
        values = np.zeros((len(places), *self._of), self.dtype)
        there = np.flatnonzero(places < filled)
        for begin in range(0, len(there), _AT_ONCE):
            some = there[begin : begin + _AT_ONCE]
            values[some] = self._take(self._ring._batch(places[some], envs[some], columns=self._columns)).numpy()
        return values

    def __iter__(self) -> Iterator[Any]:
        for begin in range(0, len(self), _AT_ONCE):
            yield from self[begin : begin + _AT_ONCE]

    def __contains__(self, value: Any) -> bool:
        return value in self[:]

    def __bool__(self) -> bool:
        return bool(self[:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(f"{self!r} is not in memory: copy=False is impossible; leave it out")
        found: Array = self[:]
        return found if dtype is None else found.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "at" or any(isinstance(each, RingColumn) for each in kwargs.get("out", ())):
            _refuse()
        return getattr(ufunc, method)(*(each[:] if isinstance(each, RingColumn) else each for each in inputs), **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in _WRITING:
            _refuse()
        return getattr(self[:], name)

    # Writing

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._mark is None or not np.all(value):
            _refuse()
        else:
            self._mark(key)


def _refuse() -> None:
    raise InputError("what was added cannot be changed; copy it to change the copy: numpy.array(buffer.rewards)")


def _parted(key: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Part a key in those of the first two axes and the others; None where numpy would not take one after the other."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(part is None or part is Ellipsis or isinstance(part, bool | np.bool_) for part in parts):
        return None
    arrays = [np.ndim(part) > 0 and np.asarray(part).dtype == np.bool_ for part in parts]
    if any(arrays[:2]):
        if len(parts) > 1:
            return None
        return (parts, ()) if np.ndim(parts[0]) < 3 else None
    rest = parts[2:]
    return (parts[:2], rest) if all(isinstance(part, slice | int | np.integer) for part in rest) else None


def _steps(key: tuple[Any, ...], places: int, envs: int) -> tuple[Array, Array]:
    """Return which place and which environment a key of the first two axes means."""
    if len(key) == 2 and all(part.__class__ is np.ndarray and part.dtype == np.int64 for part in key):
        first, second = key
        if first.shape == second.shape and first.size and _is_within(first, places) and _is_within(second, envs):
            return first, second
    if len(key) == 2 and all(isinstance(part, np.ndarray | list | int | np.integer) for part in key):
        return np.broadcast_arrays(*(_at(part, size) for part, size in zip(key, (places, envs), strict=True)))  # type: ignore[return-value]
    grid = np.broadcast_arrays(np.arange(places)[:, None], np.arange(envs))
    return np.asarray(grid[0][key]), np.asarray(grid[1][key])


def _is_within(index: Array, size: int) -> bool:
    """Tell whether integers index an axis, counted from its beginning."""
    return bool(index.view(np.uint64).max() < size)


def _at(index: Any, size: int) -> Array:
    """Return integers that index an axis, none of them negative; an IndexError where one is outside."""
    found = np.asarray(index)
    if found.size == 0:
        return found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    if found.min() < -size or found.max() >= size:
        bad = found.min() if found.min() < -size else found.max()
        raise IndexError(f"index {bad} is out of bounds for an axis of size {size}")
    return np.where(found < 0, found + size, found)


def observations_of(ring: Ring, name: str, space: spaces.Space[Any], shapes: Any) -> Any:
    """Return the array of observations, or one for each part of dict observations; `name` is theirs in a batch."""
    if not isinstance(space, spaces.Dict):
        return RingColumn(ring, (obs_path(None),), lambda batch: batch[name], shapes, space.dtype)
    return {
        part: RingColumn(ring, (obs_path(part),), partial(_part, name, part), shapes[part], of.dtype)
        for part, of in space.spaces.items()
    }


def _part(name: str, part: str, batch: Batch) -> torch.Tensor:
    found: torch.Tensor = batch[name][part]
    return found
