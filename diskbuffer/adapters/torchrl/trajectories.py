"""Where trajectories start and stop in a storage that is written to in a ring: looked at once for each step, when it is new."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.adapters.torchrl.kept import Read
from diskbuffer.adapters.torchrl.places import Ring
from diskbuffer.plugin import GrowingArray

Int64 = npt.NDArray[np.int64]


class Source(NamedTuple):
    """What tells where trajectories end.

    Attributes
    ----------
    keys : tuple
        Of entries.
    is_number : bool
        Whether the entry is the trajectory's number, which is another in the next one; or entries any of which is true in a
        trajectory's last step.
    """

    keys: tuple[tuple[str, ...], ...]
    is_number: bool


class _Short:
    """Which of a lane's trajectories have less than some length: 8 bytes each of these, and none of the others.

    Attributes
    ----------
    others : GrowingArray
        How many that are not short came before each.
    gone : int
        How many short ones were forgotten.
    """

    def __init__(self) -> None:
        self.others, self.gone = GrowingArray(), 0

    def extend(self, numbers: Int64) -> None:
        """Know further ones, by their numbers in the lane."""
        self.others.extend(numbers - (self.gone + len(self.others) + np.arange(len(numbers))))

    def before(self, number: int) -> int:
        """Count those that are known and have a smaller number."""
        others = self.others.values
        return bisect.bisect_left(range(len(others)), number, key=lambda n: others[n] + self.gone + n)

    def forget(self, number: int) -> None:
        """Forget those that have a smaller number."""
        n = self.before(number)
        self.others.drop(n)
        self.gone += n

    def as_it_is(self) -> _Short:
        """Return what does not change when others are known, or forgotten."""
        found = _Short()
        found.others, found.gone = self.others.as_it_is(), self.gone
        return found

    def skip(self, which: Int64) -> Int64:
        """Return the numbers of trajectories that are counted without the short ones."""
        return which + self.gone + np.searchsorted(self.others.values, which, side="right")


class _Lane:
    """The trajectories of a lane, by the numbers of their last steps, which are counted from the store's first on: 8 bytes each.

    The oldest may have lost its first steps, and the newest goes on.
    """

    def __init__(self, first: int) -> None:
        self._ends = GrowingArray(np.array([first - 1]))  # the first is that of one of which no step is left
        self._gone = 0  # trajectories that are forgotten
        self._short: dict[int, _Short] = {}  # by the length that they have not

    def extend(self, ends: Int64) -> None:
        """Know further last steps."""
        known = len(self._ends) - 1
        self._ends.extend(ends)
        for least, short in self._short.items():
            self._note(short, least, known)

    def _note(self, short: _Short, least: int, known: int) -> None:
        lengths = np.diff(self._ends.values[known:])
        short.extend(self._gone + known + np.flatnonzero(lengths < least))

    def forget(self, oldest: int) -> None:
        """Forget those of which no step is left."""
        n = int(np.searchsorted(self._ends.values, oldest)) - 1
        self._ends.drop(n)
        self._gone += n
        for short in self._short.values():
            short.forget(self._gone + 1)  # the oldest one's length is looked at anew

    def of(self, least: int, oldest: int, newest: int) -> _Found:
        """Return those that have so many steps left between two."""
        if least not in self._short:
            self._short[least] = _Short()
            self._note(self._short[least], least, 0)
            self._short[least].forget(self._gone + 1)
        ends, short = self._ends.values, self._short[least]
        first = int(len(ends) > 1 and ends[1] + 1 - oldest >= least)
        last = newest - max(int(ends[-1]), oldest - 1)
        return _Found(ends, oldest, self._gone, short.as_it_is(), first, last if last >= least else 0)


@dataclass(frozen=True)
class _Found:
    """Trajectories of a lane that are long enough, the oldest first.

    Attributes
    ----------
    ends : (n + 1,) int64
        Last steps of those that are over, long enough or not, and of the one before.
    oldest : int
        The oldest step that is left.
    gone : int
        The number of the first of them.
    short : _Short
        Those among them, but the first, that are not long enough.
    first : int
        1 if the first is long enough, or 0.
    last : int
        How long the one is that is not over; 0 where it is not long enough.
    """

    ends: Int64
    oldest: int
    gone: int
    short: _Short
    first: int
    last: int

    @property
    def _between(self) -> int:
        """How many there are, but the first and the last."""
        return max(len(self.ends) - 2, 0) - len(self.short.others)

    def __len__(self) -> int:
        return self.first + self._between + (self.last > 0)

    def before(self, step: int) -> int:
        """Count those that stop before a step."""
        over = int(np.searchsorted(self.ends[1:], step))
        return (self.first + over - 1 - self.short.before(self.gone + over)) if over else 0

    def at(self, which: Int64, newest: int) -> tuple[Int64, Int64]:
        """Return where some stop, and how long they are."""
        number = self.short.skip(self.gone + 1 - self.short.gone + which - self.first) - self.gone + 1
        is_last = which - self.first >= self._between
        number = np.where(which < self.first, 1, np.where(is_last, 0, number))
        stops = self.ends[number]
        lengths = stops - np.maximum(self.ends[number - 1], self.oldest - 1)
        return np.where(is_last, newest, stops), np.where(is_last, self.last, lengths)


class Trajectories:
    """The trajectories of a storage, in the order in which TorchRL finds them: by lane, then by the place where they stop.

    Parameters
    ----------
    order : (lanes,) int64
        The lanes, as they follow each other in TorchRL's.
    is_number : bool
        As in `Source`.
    """

    def __init__(self, order: Int64, *, is_number: bool) -> None:
        self._order, self._is_number = order, is_number
        self._ring: Ring | None = None
        self._lanes: list[_Lane] = []
        self._last: npt.NDArray[Any] | None = None  # (1, lanes): numbers of the newest steps

    def bring_up_to(self, ring: Ring, read: Read) -> None:
        """Look at the steps that are new."""
        steps = ring.new_since(self._ring)
        if steps == ring.filled:
            self._last = None
            self._lanes = [_Lane(first) for first in (ring.ever - ring.filled).tolist()]
        self._ring = None  # until this is done
        first = ring.ever - steps
        for places in ring.newest_places(steps):
            ends = values = read(places)
            of = first
            if self._is_number:
                if self._last is not None:
                    values, of = np.concatenate([self._last, values]), first - 1
                ends, self._last = values[:-1] != values[1:], values[-1:].copy()
            for lane, known in enumerate(self._lanes):
                known.extend(np.flatnonzero(ends[:, lane]) + of[lane])
            first = first + len(places)
        for known, ever in zip(self._lanes, ring.ever.tolist(), strict=True):
            known.forget(ever - ring.filled)
        self._ring = ring

    def of(self, least: int) -> Selection:
        """Return those of at least so many steps."""
        ring = self._ring
        assert ring is not None
        ever = ring.ever.tolist()
        return Selection(
            ring, self._order, [self._lanes[lane].of(least, ever[lane] - ring.filled, ever[lane] - 1) for lane in self._order]
        )


class Selection:
    """Trajectories of at least some length."""

    def __init__(self, ring: Ring, order: Int64, found: list[_Found]) -> None:
        self._ring, self._order, self._found = ring, order, found
        self._until = np.cumsum([len(of_lane) for of_lane in found])

    def __len__(self) -> int:
        return int(self._until[-1])

    def at(self, which: Int64) -> tuple[Int64, Int64, Int64, Int64]:
        """Return the lanes of some, the places where they start and where they stop, and how long they are: (n,) each."""
        ring, found = self._ring, self._found
        of_lane = np.searchsorted(self._until, which, side="right")
        lanes, stops, lengths = self._order[of_lane], np.empty_like(which), np.empty_like(which)
        for at in np.unique(of_lane).tolist() if len(found) > 1 else [0]:
            some, known = of_lane == at, found[at]
            newest = int(ring.ever[self._order[at]]) - 1
            older = known.before(newest - ring.newest)  # than what is in the first place
            stop, lengths[some] = known.at((which[some] - (int(self._until[at]) - len(known)) + older) % len(known), newest)
            stops[some] = (ring.newest - (newest - stop)) % ring.size
        return lanes, (stops + 1 - lengths) % ring.size, stops, lengths
