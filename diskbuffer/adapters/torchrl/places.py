"""Which step of the store is in which place of a storage.

Steps are only ever added to a store. Where places are written to in a ring, as TorchRL's writers do, arithmetic tells which step
is where, and nothing is held in RAM. From the first write to another place on, a table does, 16 bytes a place: a place that is
written to again has another step from then on, and its old one is evicted when its time comes; where that is too early,
`ready_for` tells which to write once more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer import ReplayBuffer
from diskbuffer.adapters.place_column import Told, pack, told_by
from diskbuffer.errors import InputError

Int64 = npt.NDArray[np.int64]
_AT_ONCE = 65_536  # places that are looked at together


class Ring(NamedTuple):
    """Where a ring was at some time, which is enough to find its steps later, too.

    Attributes
    ----------
    size : int
        Places of each lane.
    filled : int
        How many of them are.
    newest : int
        The place that was written to last; -1 before the first.
    ever : (lanes,) int64
        Steps of each lane that the store had ever had.
    """

    size: int
    filled: int
    newest: int
    ever: Int64

    def names(self, buffer: ReplayBuffer, places: Int64, lanes: Int64) -> Int64:
        """Return the names, as the store has them, of the steps that were in places; an InputError where one was evicted."""
        there, ever = buffer.counts()
        ages = (self.newest - places) % self.size + (ever - self.ever)[lanes]
        if (ages >= there[lanes]).any():
            raise InputError("some of these steps were evicted, or dropped, since the storage was indexed; index it again")
        return buffer.steps(ages, lanes)

    def since(self, before: Ring) -> int | None:
        """Count the steps of each lane since an earlier time; None where this is not how that one went on."""
        steps = int(self.ever[0] - before.ever[0])
        goes_on = (
            steps >= 0
            and (before.size, min(before.filled + steps, self.size)) == (self.size, self.filled)  # else it was emptied
            and (before.newest + steps) % self.size == self.newest
            and ((self.ever - before.ever) == steps).all()
        )
        return steps if goes_on else None

    def new_since(self, before: Ring | None) -> int:
        """Count the steps of each lane that are there, and were not at an earlier time: all, if this is not how that went on."""
        steps = None if before is None else self.since(before)
        return self.filled if steps is None else min(steps, self.filled)

    def newest_places(self, steps: int) -> Iterator[Int64]:
        """Yield the places of the newest steps of each lane, the oldest of them first, blocks of (n,)."""
        together = max(_AT_ONCE // len(self.ever), 1)
        for first in range(0, steps, together):
            yield (self.newest + 1 - steps + np.arange(first, min(first + together, steps))) % self.size


class _Table:
    """Which step is in which place, where these were not written to in a ring.

    Attributes
    ----------
    names : (size, lanes) int64
        -1 where there is none.
    written : (size,) int64
        When, counted in steps of a lane.
    count : int
        Steps of a lane so far.
    oldest : int
        No step that is in use was written before.
    in_a_row : int
        How many were written to places one behind the other, the newest the last of them.
    """

    def __init__(self, size: int, lanes: int) -> None:
        self.names, self.written = np.full((size, lanes), -1, np.int64), np.zeros(size, np.int64)
        self.count = self.oldest = self.in_a_row = 0

    def filled(self, known: int, together: int) -> int:
        """Return how many places are filled, from the first on: `known` at least. `together` are looked at, then more."""
        while known < len(self.names):
            empty = np.flatnonzero((self.names[known : known + together] < 0).any(axis=1))
            if len(empty):
                return known + int(empty[0])
            known, together = min(known + together, len(self.names)), _AT_ONCE
        return known


class Places:
    """The places of a storage.

    Parameters
    ----------
    size : int
        Along the first axis.
    lanes : tuple of int
        The other axes.

    Attributes
    ----------
    filled : int
        How many places are, from the first on.
    newest : int
        The place that was written to last; -1 before the first.
    axes : int
        How many axes of its own a step has, in the batch size of tensordicts.
    """

    def __init__(self, size: int, lanes: tuple[int, ...]) -> None:
        self.size, self.lanes = size, lanes
        self._n = math.prod(lanes)
        self._ever = np.zeros(self._n, np.int64)
        self.filled, self.newest, self.axes = 0, -1, 0
        self._table: _Table | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all places."""
        return self.size, *self.lanes

    @property
    def ever(self) -> int:
        """How many steps there had ever been, of all lanes together, when these places were loaded or written to last."""
        return int(self._ever.sum())

    @property
    def in_order(self) -> bool:
        """Whether they were written to in a ring, so that steps of an episode lie one behind the other."""
        return self._table is None

    @property
    def ring(self) -> Ring:
        """Where the ring is now; they must be in order."""
        return Ring(self.size, self.filled, self.newest, self._ever.copy())

    @property
    def capacity(self) -> int:
        """Steps of a lane that the store is to keep, so that places can be written to in another order."""
        return self.size + self.size // 8 + 1

    @staticmethod
    def held_by(capacity: int | None, lanes: int) -> int:
        """Return how many steps a storage holds whose store has a capacity."""
        size = (capacity or 0) // lanes
        return lanes * next((n for n in range(size, 0, -1) if n + n // 8 + 1 <= size), 0)

    @property
    def next(self) -> int:
        """Where a ring goes on: behind the newest step, or where places are left that were not written to in a ring."""
        behind = self.in_order or self.filled == self.size
        return (self.newest + 1) % max(self.size, 1) if behind else self.filled

    def in_order_of_writing(self) -> Int64:
        """Return the places that are filled, the one that was written to longest ago first."""
        if self._table is None:
            return np.asarray((self.newest + 1 - self.filled + np.arange(self.filled)) % self.size)
        return np.argsort(self._table.written[: self.filled], kind="stable")

    # Indices

    def span(self, index: Any) -> range | None:
        """Return the places of a slice along the first axis alone; None where an index is something else."""
        if isinstance(index, EllipsisType):
            index = slice(None)
        return range(*index.indices(self.filled)) if isinstance(index, slice) else None

    def chosen(self, index: Any) -> tuple[Int64, Int64]:
        """Return the places, and the lanes, that numpy's index chooses of what is filled, of the shape that it gives them.

        An IndexError where one is not filled.
        """
        parts = index if isinstance(index, tuple) else (index,)
        shape = (self.filled, *self.lanes)
        if len(parts) in (1, len(shape)) and all(np.asarray(part).dtype.kind in "iu" for part in parts):
            at = [_within(np.asarray(part, np.int64), n, axis) for axis, (part, n) in enumerate(zip(parts, shape, strict=False))]
            if len(shape) == 1:
                return at[0], np.zeros(at[0].shape, np.int64)
            if len(at) < len(shape):
                of_lanes = np.arange(self._n).reshape(self.lanes)
                places, lanes = np.broadcast_arrays(at[0].reshape(*at[0].shape, *(1,) * of_lanes.ndim), of_lanes)
                return places, lanes
            lane = np.zeros((), np.int64)
            for part, n in zip(at[1:], self.lanes, strict=True):
                lane = lane * n + part
            places, lanes = np.broadcast_arrays(at[0], lane)
            return places, lanes
        places, lanes = np.divmod(np.arange(self.filled * self._n).reshape(shape)[index], self._n)
        return places, lanes

    def names(self, buffer: ReplayBuffer, places: Int64, lanes: Int64) -> Int64:
        """Return the names, as the store has them, of the steps in places that are filled, of any shape."""
        if self._table is not None:
            return np.asarray(self._table.names[places, lanes])
        ages = ((self.newest - places) % self.size).ravel()
        return buffer.steps(ages, np.ravel(lanes)).reshape(np.shape(places))

    # Writing

    def slots(self, places: Int64) -> Int64:
        """Return what is stored with steps that are written to places, which `ready_for` was told of.

        That is the place, the axes of a step, and whether all is in order with them.
        """
        return pack(places, 2 * self.axes + self.in_order)

    def _go_on(self, places: Int64) -> bool:
        """Tell whether places are those behind the newest."""
        return bool((self.newest + 1) % self.size == places[0]) and self._in_a_row(places)

    def _in_a_row(self, places: Int64) -> bool:
        return len(places) == 1 or bool(((places[:-1] + 1) % self.size == places[1:]).all())

    def ready_for(self, buffer: ReplayBuffer, places: Int64) -> Int64:
        """Be ready for steps to be written to places, which are not those where the ring goes on perhaps.

        Returns places whose steps have to be written once more before, oldest first, as they would be evicted; not all at once:
        ask again when they are, as places may be a ring again by then.
        """
        if self._table is None:
            if self._go_on(places):
                return places[:0]
            self._table = self._as_table(buffer)
        return self._old_ones(self._table, places)

    def _as_table(self, buffer: ReplayBuffer) -> _Table:
        """Return which step is in which place of a ring."""
        table = _Table(self.size, self._n)
        order = self.in_order_of_writing()
        for first in range(0, len(order), _AT_ONCE):
            some = order[first : first + _AT_ONCE]
            table.names[some] = self.names(buffer, *of_all_lanes(some, self._n)).reshape(-1, self._n)
        table.written[order] = np.arange(len(order))
        table.count = len(order)
        return table

    def _old_ones(self, table: _Table, places: Int64) -> Int64:
        """Return places, oldest first, whose steps would be evicted by steps written to `places`; not all at once."""
        if table.count + len(places) - table.oldest <= self.capacity:
            return places[:0]
        used = table.names[:, 0] >= 0
        used[places] = False
        left = np.flatnonzero(used)
        table.oldest = int(table.written[left].min(initial=table.count))
        if table.count + len(places) - table.oldest <= self.capacity:
            return places[:0]
        return left[np.argsort(table.written[left], kind="stable")][: max(min(self.size // 16, 4096), 1)]

    def put(self, places: Int64, names: Int64) -> None:
        """Note that steps were written to places, (n,), and the names, (n, lanes), of those that are left: the last."""
        table, before = self._table, self.newest
        self._ever += len(places)
        self.newest = int(places[-1])
        if table is None:
            self.filled = min(self.filled + len(places), self.size)
            return
        left = places[len(places) - len(names) :]
        goes_on = (before + 1) % self.size == places[0]
        table.in_a_row = len(places) + table.in_a_row * bool(goes_on) if self._in_a_row(places) else 1
        table.written[left] = table.count + len(places) - len(left) + np.arange(len(left))
        table.names[left] = names
        table.count += len(places)
        self.filled = table.filled(self.filled, len(left) + 1)
        if table.in_a_row >= self.size:
            self._table = None

    def empty(self) -> None:
        """Have no steps."""
        self.filled, self.newest, self._table = 0, -1, None

    def are_behind(self, buffer: ReplayBuffer) -> bool:
        """Return whether a buffer knows that steps were written, or all were dropped, since these places were loaded."""
        there, ever = buffer.counts()
        return not np.array_equal(self._ever, ever) or bool((there < self.filled).any())

    def hold_the_same(self, others: Places) -> bool:
        """Tell whether no step was written, or dropped, in between; `others` may be of no size yet."""
        if not others.size:
            return not self.filled
        return self.filled == others.filled and np.array_equal(self._ever, others._ever)

    # Opening

    def load(self, buffer: ReplayBuffer) -> None:
        """Load from the steps of a store where they are."""
        there, self._ever = buffer.counts()
        if there.max(initial=0) and not self._load_ring(buffer, there):
            self._load_table(buffer, there)

    def _load_ring(self, buffer: ReplayBuffer, there: Int64) -> bool:
        """Find out where a ring is by a few of its steps; return False where all of them have to be looked at."""
        if there.min() == 0:
            return False
        lanes = np.arange(self._n)
        newest = told_by(buffer, buffer.steps(np.zeros_like(there), lanes))
        if not (newest.extra % 2).all() or any(len(set(of_all.tolist())) > 1 for of_all in newest):
            return False
        place, filled = int(newest.places[0]), min(int(there.min()), self.size)
        self.axes = int(newest.extra[0]) // 2
        oldest = told_by(buffer, buffer.steps(np.full(self._n, filled - 1), lanes)).places
        if (oldest != (place + 1 - filled) % self.size).any() or (filled < self.size and place != filled - 1):
            return False  # some between are missing
        self.filled, self.newest = filled, place
        return True

    def _load_table(self, buffer: ReplayBuffer, there: Int64) -> None:
        """Look at all steps."""
        table, ends, rows, in_order = _Table(self.size, self._n), list[int](), list[int](), True
        names = [buffer.steps(np.arange(n - 1, -1, -1), lane) for lane, n in enumerate(there.tolist())]
        told = [told_by(buffer, of_lane) for of_lane in names]
        table.count = int(there.max())
        for lane, (of_lane, (places, extra)) in enumerate(zip(names, told, strict=True)):
            table.names[places, lane] = of_lane
            when = table.count - len(of_lane) + np.arange(len(of_lane))
            table.written[places] = np.maximum(table.written[places], when)
            breaks = np.flatnonzero((places[:-1] + 1) % self.size != places[1:])
            rows.append(len(places) - (int(breaks[-1]) + 1 if len(breaks) else 0))
            in_order &= rows[-1] >= min(self.size, len(places))
            ends.append(int(places[-1]) if len(places) else -1)
            self.axes = int(extra[-1]) // 2 if len(extra) else self.axes
        self.newest = ends[int(self._ever.argmin())]  # where a kill came between lanes, that of the lane that is behind
        self.filled = table.filled(0, _AT_ONCE)
        in_order &= len(set(ends)) == 1 and (self.filled == self.size or self.newest == self.filled - 1)
        table.in_a_row = min(rows)
        self._table = None if in_order else table

    # Steps

    def of(self, buffer: ReplayBuffer, names: Int64, told: Told) -> Int64:
        """Return the places of steps, (n,), by what they tell; -1 of those that are in none any more."""
        there = told.places < self.filled
        found = np.full(len(names), -1)
        places = told.places[there]
        current = self.names(buffer, places, names[there] % self._n) == names[there]
        found[np.flatnonzero(there)[current]] = places[current]
        return found


def of_all_lanes(places: Int64, lanes: int) -> tuple[Int64, Int64]:
    """Return places, (n,), and so many lanes of each, (n * lanes,) both: a place's lanes one behind the other."""
    return np.repeat(places, lanes), np.tile(np.arange(lanes), len(places))


def _within(at: Int64, n: int, axis: int) -> Int64:
    """Return indices along an axis of so many, none of them negative; an IndexError where one is outside."""
    if not at.size or at.view(np.uint64).max() < n:
        return at
    if not (-n <= at.min() and at.max() < n):
        found = at.min() if at.min() < -n else at.max()
        raise IndexError(f"index {found} is out of bounds for axis {axis}, of which {n} places are filled")
    return np.where(at < 0, at + n, at)
