"""Which segments are old enough to go: never so many that fewer than the newest `capacity` steps remain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max


class Retention:
    """Queue segments in the order in which they become evictable.

    A segment is evictable once it is complete, and its environment has as many rows more as the stack of the next step reaches
    back into it. It is evicted once `capacity` steps were added since then: the newest `capacity` are then certainly elsewhere.
    So what is kept is at most the capacity and a segment of every environment.

    Parameters
    ----------
    capacity : int or None
        In steps.
    environments : int
    context : int
        Rows before a step that are needed to sample it.
    each : bool
        Whether every environment keeps its own newest ``capacity // environments`` steps, and only its own count.

    Attributes
    ----------
    look_at : int
        Number of steps added, by all environments, before which none may go.
    """

    def __init__(self, capacity: int | None, environments: int, context: int, *, each: bool = False) -> None:
        self._context, self._each, self._share = context, each, environments if each else 1
        self._complete = np.zeros((0, 2), np.int64)  # environments, and where their segments end: not evictable yet
        self._evictable = np.zeros((0, 2), np.int64)  # environments, and how many steps had been added; the oldest come first
        self.look_at = _NEVER
        self.resize(capacity)

    def resize(self, capacity: int | None) -> None:
        """Go by another capacity from now on."""
        self._capacity, self.look_at = None if capacity is None else capacity // self._share, 0

    def add(self, environments: Int64, ends: Int64) -> None:
        """Note that segments are complete, the oldest of each environment first; `ends` are the positions behind their rows."""
        self._complete = np.concatenate([self._complete, np.stack([environments, ends], axis=1)])

    def add_evictable(self, environments: Int64, added: Int64) -> None:
        """Note segments that became evictable when so many steps had been added."""
        self._evictable = np.concatenate([self._evictable, np.stack([environments, added], axis=1)])
        self.look_at = 0

    def restore(self, environments: Int64, added: Int64) -> None:
        """Note segments that became evictable when so many steps had been added, in any order."""
        order = np.argsort(added, kind="stable")
        self._evictable = np.stack([environments, added], axis=1)[order]
        self.look_at = 0

    def note(self, heads: Int64, added: Int64, steps_up_to: Callable[[Int64, Int64], Int64]) -> None:
        """Note which segments became evictable, and when that was, by the steps that their environments had since.

        `heads` are the newest rows, `added` how many steps of those that count for an environment were, (environments,) each;
        ``steps_up_to(environments, positions)`` counts the steps of environments before positions, (n,) each.
        """
        if len(self._complete) == 0:
            return
        environments, ends = self._complete.T
        behind = heads[environments] >= ends - 1 + self._context
        if behind.any():
            of, at = environments[behind], ends[behind] + self._context
            since = steps_up_to(of, heads[of]) - steps_up_to(of, np.minimum(at, heads[of]))
            now = np.stack([of, added[of] - since], axis=1)
            self._evictable, self._complete = np.concatenate([self._evictable, now]), self._complete[~behind]
            self.look_at = 0

    def due(self, added: int, added_each: Int64) -> Int64:
        """Return the environments whose oldest segments may go, one for each segment.

        `added` steps were, by all environments, and `added_each` by each, (environments,).
        """
        if self._capacity is None or len(self._evictable) == 0:
            self.look_at = _NEVER
            return np.zeros(0, np.int64)
        environments, since = self._evictable.T
        missing = since + self._capacity - (added_each[environments] if self._each else added)
        gone = missing <= 0
        self._evictable = self._evictable[~gone]
        self.look_at = added + int(missing[~gone].min(initial=_NEVER - added))
        return environments[gone]

    def oldest(self, n: int) -> Int64:
        """Return the environments of the `n` segments that became evictable first, or of all: they go in any case."""
        environments, self._evictable = self._evictable[:n, 0], self._evictable[n:]
        return environments

    def forget(self, environments: Bools) -> None:
        """Forget the segments of some environments, (environments,): they went for another reason."""
        self._evictable = self._evictable[~environments[self._evictable[:, 0]]]
        self._complete = self._complete[~environments[self._complete[:, 0]]]
