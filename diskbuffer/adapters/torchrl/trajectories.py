"""Where trajectories start and stop in a storage that is written to in a ring: looked at once for each step, when it is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.adapters.torchrl.kept import Read
from diskbuffer.adapters.torchrl.places import Ring
from diskbuffer.index.growing_array import GrowingArray

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


class _Lane:
    """The trajectories of a lane, whose steps are counted from the store's first on: 24 bytes each.

    Those that are over are known by their last steps, and those of at least some length by their last steps and lengths. The
    oldest may have lost its first steps, and the newest goes on: these two are found anew each time.
    """

    def __init__(self, first: int) -> None:
        self._ends, self._begins = GrowingArray(), first  # the trajectory that is not over
        self._long: dict[int, tuple[GrowingArray, GrowingArray]] = {}

    def extend(self, ends: Int64) -> None:
        """Know further last steps."""
        if not len(ends):
            return
        for least in self._long:
            self._note(least, ends, self._begins)
        self._ends.extend(ends)
        self._begins = int(ends[-1]) + 1

    def _note(self, least: int, ends: Int64, begins: int) -> None:
        lengths = np.diff(ends, prepend=begins - 1)
        long = lengths >= least
        for known, values in zip(self._long[least], (ends, lengths), strict=True):
            known.extend(values[long])

    def forget(self, oldest: int) -> None:
        """Forget those of which no step is left."""
        self._ends.drop(int(np.searchsorted(self._ends.values, oldest)))
        for stops, lengths in self._long.values():
            gone = int(np.searchsorted(stops.values, oldest))
            stops.drop(gone)
            lengths.drop(gone)

    def of(self, least: int, oldest: int, newest: int) -> _Found:
        """Return those that have so many steps left between two."""
        if least not in self._long:
            self._long[least] = GrowingArray(), GrowingArray()
            ends = self._ends.values
            self._note(least, ends[1:], int(ends[0]) + 1 if len(ends) else 0)  # the first of which `_cut` finds
        stops, lengths = (known.values for known in self._long[least])
        cut = int(len(stops) > 0 and stops[0] - lengths[0] + 1 < oldest)
        first = self._cut(least, oldest, stops[cut:])
        begins = max(self._begins, oldest)
        last = (newest, newest + 1 - begins) if newest + 1 - begins >= least else None
        return _Found(first, stops[cut:], lengths[cut:], last)

    def _cut(self, least: int, oldest: int, whole: Int64) -> tuple[int, int] | None:
        """Return where the oldest stops, and how long it is, if that is long enough, and it is not among those that are whole."""
        ends = self._ends.values
        if not len(ends) or ends[0] + 1 - oldest < least or (len(whole) and whole[0] == ends[0]):
            return None
        return int(ends[0]), int(ends[0]) + 1 - oldest


@dataclass(frozen=True)
class _Found:
    """Trajectories of a lane, the oldest first; the first and the last may be given apart, by its last step and its length."""

    first: tuple[int, int] | None
    stops: Int64
    lengths: Int64
    last: tuple[int, int] | None

    def __len__(self) -> int:
        return len(self.stops) + (self.first is not None) + (self.last is not None)

    def before(self, step: int) -> int:
        """Count those that stop before a step."""
        return int(np.searchsorted(self.stops, step)) + sum(one is not None and one[0] < step for one in (self.first, self.last))

    def at(self, which: Int64) -> tuple[Int64, Int64]:
        """Return where some stop, and how long they are."""
        which = which - (self.first is not None)
        among = np.clip(which, 0, max(len(self.stops) - 1, 0))
        found = [values[among] if len(values) else np.zeros_like(which) for values in (self.stops, self.lengths)]
        for one, there in ((self.first, which < 0), (self.last, which >= len(self.stops))):
            if one is not None:
                for values, value in zip(found, one, strict=True):
                    values[there] = value
        return found[0], found[1]


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
        steps = None if self._ring is None else ring.since(self._ring)
        if steps is None or steps > ring.filled:
            steps, self._last = ring.filled, None
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
            stop, lengths[some] = known.at((which[some] - (int(self._until[at]) - len(known)) + older) % len(known))
            stops[some] = (ring.newest - (newest - stop)) % ring.size
        return lanes, (stops + 1 - lengths) % ring.size, stops, lengths
