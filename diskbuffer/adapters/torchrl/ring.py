"""Which step of the store is in which place of a storage: arithmetic, as TorchRL's writers go around a ring of places."""

from __future__ import annotations

import copy
import math
from types import EllipsisType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer import ReplayBuffer
from diskbuffer.adapters.place_column import pack, placements_of
from diskbuffer.errors import InputError

Int64 = npt.NDArray[np.int64]
NO_INT64 = np.zeros(0, np.int64)


class Ring:
    """The places of a storage.

    Parameters
    ----------
    size : int
        Along the first axis.
    lanes : tuple of int
        The other axes: environments side by side, of which each has a step in every place.

    Attributes
    ----------
    filled : int
        How many places are, from the first on.
    newest : int
        The place that was written to last; -1 before the first.
    lane_count : int
    axes : int
        How many axes of its own a step has, in the batch size of tensordicts.
    """

    def __init__(self, size: int, lanes: tuple[int, ...]) -> None:
        self.size, self.lanes = size, lanes
        self.lane_count = math.prod(lanes)
        self._ever = np.zeros(self.lane_count, np.int64)  # steps that each lane had ever had, when `newest` was
        self._moved = np.zeros(self.lane_count, np.int64)  # places that its oldest steps are behind their slots
        self.filled, self.newest, self.axes = 0, -1, 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all places."""
        return self.size, *self.lanes

    @property
    def next(self) -> int:
        """The place that is written to next."""
        return (self.newest + 1) % max(self.size, 1)

    def next_places(self, n: int) -> Int64:
        """Return those that are written to next, (n,)."""
        first = self.next
        places = np.arange(first, first + n)
        return places if first + n <= self.size else places % self.size

    def newest_places(self, n: int) -> Int64:
        """Return those that were written to last, (n,), the oldest first."""
        return (self.next - n + np.arange(n)) % self.size

    def slots(self, places: Int64) -> Int64:
        """Return what is stored with steps that are written to places, by which a storage finds them again."""
        return pack(places, self.axes)

    def put(self, n: int) -> None:
        """Note that so many steps were written to the next places of every lane."""
        self.newest, self.filled = (self.newest + n) % self.size, min(self.filled + n, self.size)
        self._ever = self._ever + n

    def as_it_is(self) -> Self:
        """Return a copy, which tells later, too, which steps are in the places now."""
        return copy.copy(self)

    def is_at(self, other: Ring) -> bool:
        """Return whether no step was written, or dropped, in between."""
        return self.filled == other.filled and np.array_equal(self._ever, other._ever)

    def is_behind(self, buffer: ReplayBuffer) -> bool:
        """Return whether a buffer knows that steps were written, or dropped, since the ring was loaded or written to."""
        stored, ever = buffer.counts()
        return not np.array_equal(self._ever, ever) or bool((stored < self.filled).any())

    def load(self, buffer: ReplayBuffer) -> None:
        """Find out where the ring is, by what the newest and the oldest step of each lane tell.

        A kill while steps of several lanes were written may have left more of them in some: their oldest steps are now behind the
        places that they were written to.
        """
        stored, self._ever = buffer.counts()
        self.filled, lanes = min(int(stored.min()), self.size), np.arange(self.lane_count)
        if not self.filled:
            return
        places, extra = placements_of(buffer, buffer.steps(np.zeros(self.lane_count, np.int64), lanes))
        last = int(self._ever.argmin())
        self.newest, self.axes = int(places[last]), int(extra[last])
        oldest = placements_of(buffer, buffer.steps(np.full(self.lane_count, self.filled - 1), lanes)).places
        self._moved = (oldest - (self.next - self.filled)) % self.size

    # Which steps are where

    def span(self, index: Any) -> range | None:
        """Return the places of a slice along the first axis alone; None where an index is something else."""
        if isinstance(index, EllipsisType):
            index = slice(None)
        return range(*index.indices(self.filled)) if isinstance(index, slice) else None

    def places_at(self, index: Any) -> Int64:
        """Return the places, filled or not, that an index along the first axis chooses, (n,)."""
        index = slice(None) if index is Ellipsis else plain(index)
        if isinstance(index, slice):
            return np.arange(*index.indices(self.size))
        places = np.asarray(index)
        places = np.flatnonzero(places) if places.dtype == np.bool_ else np.array(places, np.int64, ndmin=1)
        places[places < 0] += self.size
        return places

    def chosen(self, index: Any) -> tuple[Int64, Int64]:
        """Return the places, and the lanes, that numpy's index chooses of what is filled, of the shape that it gives them.

        An IndexError where one is not filled.
        """
        parts = index if isinstance(index, tuple) else (index,)
        shape = (self.filled, *self.lanes)
        if len(parts) not in (1, len(shape)) or any(np.asarray(part).dtype.kind not in "iu" for part in parts):
            return np.divmod(np.arange(self.filled * self.lane_count).reshape(shape)[index], self.lane_count)
        places, *others = (_within(np.asarray(part, np.int64), n) for part, n in zip(parts, shape, strict=False))
        if not self.lanes:
            return places, np.zeros(places.shape, np.int64)
        lanes = np.arange(self.lane_count).reshape(self.lanes)
        if not others:
            places = places.reshape(*places.shape, *(1,) * lanes.ndim)
        broadcast = np.broadcast_arrays(places, lanes[tuple(others)] if others else lanes)
        return broadcast[0], broadcast[1]

    def of_all_lanes(self, places: Int64) -> tuple[Int64, Int64]:
        """Return places, (n,), and lanes, of which a place's lie one behind the other: (n * lanes,) both."""
        return np.repeat(places, self.lane_count), np.tile(np.arange(self.lane_count), len(places))

    def ids(self, buffer: ReplayBuffer, places: Int64, lanes: Int64) -> Int64:
        """Return the ids of the steps that are in places, of any shape; the ring must be where the buffer is."""
        return buffer.steps(((self.newest - places) % self.size).ravel(), np.ravel(lanes)).reshape(np.shape(places))

    def names_of_then(self, buffer: ReplayBuffer, places: Int64, lanes: Int64) -> Int64:
        """Return the ids of the steps that were in places, (n,), when the ring was here; an InputError where one is gone."""
        stored, ever = buffer.counts()
        ages = (self.newest - places) % self.size + (ever - self._ever)[lanes]
        if (ages >= stored[lanes]).any():
            raise InputError("some of these steps were evicted, or dropped, since the storage was indexed; index it again")
        return buffer.steps(ages, lanes)

    def places_of(self, buffer: ReplayBuffer, ids: Int64) -> Int64:
        """Return the place of each step, (n,); -1 of those that are in none any more."""
        written, lanes = placements_of(buffer, ids).places, ids % self.lane_count
        result = np.full(len(ids), -1)
        for places in (written, written - self._moved[lanes]):
            left = np.flatnonzero((result < 0) & (places % self.size < self.filled))
            places = places[left] % self.size
            is_there = self.ids(buffer, places, lanes[left]) == ids[left]
            result[left[is_there]] = places[is_there]
            if not self._moved.any():
                break
        return result


def plain(index: Any) -> Any:
    """Return an index that numpy takes."""
    if isinstance(index, tuple):
        return tuple(map(plain, index))
    if isinstance(index, torch.Tensor):
        return index.numpy(force=True)
    if isinstance(index, list | range):
        return np.asarray(index) if len(index) else NO_INT64
    return index


def has_slice(index: Any) -> bool:
    """Return whether an index is of a slice of the storage, or has one."""
    return isinstance(index, slice) or index is Ellipsis or (isinstance(index, tuple) and any(map(has_slice, index)))


def is_one(index: Any) -> bool:
    """Return whether an index is of a single place."""
    return isinstance(index, int | np.integer) or (isinstance(index, torch.Tensor | np.ndarray) and index.ndim == 0)


def _within(at: Int64, n: int) -> Int64:
    """Return indices of so many places, none of them negative; an IndexError where one is outside."""
    if not at.size or at.view(np.uint64).max() < n:
        return at
    if not (-n <= at.min() and at.max() < n):
        outside = at.min() if at.min() < -n else at.max()
        raise IndexError(f"index {outside} is out of bounds: {n} places are filled")
    return np.where(at < 0, at + n, at)
