"""Which step of the store is in which place of a storage: a table in RAM, 16 bytes a place, that the steps themselves tell again.

Steps are only ever added to a store. A place that is written to again has another step from then on, and its old one is evicted
when its time comes; where that is too early, as places are not written to in a ring, `old_ones` tells which to write once more.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from diskbuffer.adapters.place_column import Told, pack, told_by
from diskbuffer.buffer import ReplayBuffer

Int64 = npt.NDArray[np.int64]
_AT_ONCE = 65_536  # places that are looked at together


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
    names : (size, *lanes) int64
        Of the steps that are there, -1 where there is none.
    filled : int
        How many places are, from the first on.
    newest : int
        The place that was written to last; -1 before the first.
    in_order : bool
        Whether they were written to in a ring, so that steps of an episode lie one behind the other.
    axes : int
        How many axes of its own a step has, in the batch size of tensordicts.
    """

    def __init__(self, size: int, lanes: tuple[int, ...]) -> None:
        self.names = np.full((size, *lanes), -1, np.int64)
        self._table = self.names.reshape(size, math.prod(lanes))
        self._written = np.zeros(size, np.int64)  # when, counted in steps of a lane
        self._count, self._oldest = 0, 0  # steps of a lane so far; no step in use was written before the other
        self._generation, self.axes = 0, 0
        self.filled, self.newest, self.in_order = 0, -1, True

    @property
    def capacity(self) -> int:
        """Steps of a lane that the store is to keep, so that places can be written to in another order."""
        return len(self.names) + len(self.names) // 8 + 1

    @staticmethod
    def held_by(capacity: int | None, lanes: int) -> int:
        """Return how many steps a storage holds whose store has a capacity."""
        size = (capacity or 0) // lanes
        return lanes * next((n for n in range(size, 0, -1) if n + n // 8 + 1 <= size), 0)

    @property
    def next(self) -> int:
        """Where a ring goes on: behind the newest step, or where places are left that were not written to in a ring."""
        behind = self.in_order or self.filled == len(self.names)
        return (self.newest + 1) % len(self.names) if behind else self.filled

    def in_order_of_writing(self) -> Int64:
        """Return the places that are filled, the one that was written to longest ago first."""
        return np.argsort(self._written[: self.filled], kind="stable")

    def slots(self, places: Int64) -> Int64:
        """Return what is stored with steps: the place, how often the storage was emptied before, and the axes of a step."""
        return pack(places, self._generation, self.axes)

    def put(self, places: Int64, names: Int64) -> None:
        """Note that steps, (n, lanes), were written to places, (n,), one behind the other."""
        goes_on = not self._count or (self.newest + 1) % len(self.names) == places[0]
        self.in_order &= bool(goes_on and (len(places) == 1 or ((places[:-1] + 1) % len(self.names) == places[1:]).all()))
        self._written[places] = self._count + np.arange(len(places))
        self._table[places] = names
        self._count, self.newest = self._count + len(places), int(places[-1])
        self._count_filled(len(places) + 1)

    def load(self, buffer: ReplayBuffer) -> None:
        """Load from the steps of a store where they are."""
        there, ever = buffer.counts()
        names = [buffer.recent_steps(np.arange(n - 1, -1, -1), lane) for lane, n in enumerate(there.tolist())]
        told = [told_by(buffer, of_lane) for of_lane in names]
        self._generation = max([self._generation, *(int(of_lane.emptied.max(initial=0)) for of_lane in told)])
        self._count, ends = int(there.max(initial=0)), []
        for lane, (of_lane, (places, emptied, axes)) in enumerate(zip(names, told, strict=True)):
            current = emptied == self._generation
            places = places[current]
            self._table[places, lane] = of_lane[current]
            when = self._count - len(of_lane) + np.flatnonzero(current)
            self._written[places] = np.maximum(self._written[places], when)
            self.in_order &= bool(((places[:-1] + 1) % len(self.names) == places[1:]).all())
            ends.append(int(places[-1]) if len(places) else -1)
            self.axes = int(axes[-1]) if len(axes) else self.axes
        self.newest = ends[int(ever.argmin())]  # where a kill came between lanes, that of the lane that is behind
        self.in_order &= len(set(ends)) == 1
        self._count_filled()

    def hold_the_same(self, others: Places) -> bool:
        """Tell whether the same steps are in the same places; `others` may be of no size yet."""
        return np.array_equal(self.names, others.names) if len(others.names) else not (self.names >= 0).any()

    def _count_filled(self, together: int = _AT_ONCE) -> None:
        """Find the first place that is not, looking at so many together: then at more."""
        while self.filled < len(self._table):
            empty = np.flatnonzero((self._table[self.filled : self.filled + together] < 0).any(axis=1))
            if len(empty):
                self.filled += int(empty[0])
                return
            self.filled, together = min(self.filled + together, len(self._table)), _AT_ONCE

    def emptied_as_often(self, others: Places) -> None:
        """Know that a storage was emptied, of which the steps on the disk cannot tell before another is written."""
        self._generation = others._generation

    def empty(self) -> None:
        """Have no steps. Those on the disk are known to be old once another was written."""
        self._generation += 1
        self.filled, self.newest, self.in_order = 0, -1, True
        self.names[:] = -1

    def of(self, names: Int64, told: Told) -> Int64:
        """Return the places of steps, (n,), by what they tell; -1 of those that are in none any more."""
        there = (told.emptied == self._generation) & (told.places < self.filled)
        places = np.where(there, told.places, 0)
        return np.where(there & (self._table[places, names % self._table.shape[1]] == names), places, -1)

    def old_ones(self, places: Int64) -> Int64:
        """Return places, oldest first, whose steps would be evicted by steps written to `places`; not all at once."""
        if self._count + len(places) - self._oldest <= self.capacity:
            return places[:0]
        used = self._table[:, 0] >= 0
        used[places] = False
        left = np.flatnonzero(used)
        self._oldest = int(self._written[left].min(initial=self._count))
        if self._count + len(places) - self._oldest <= self.capacity:
            return places[:0]
        return left[np.argsort(self._written[left], kind="stable")][: max(min(len(self.names) // 16, 4096), 1)]
