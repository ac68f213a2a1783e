"""What there is to draw from: every step of a buffer, those that are young enough, or those of some episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.index.fields import EPISODES, FLOOR, HEAD
from diskbuffer.index.index import Index
from diskbuffer.native.index import StreamSums
from diskbuffer.samplers.columns import OpenColumn
from diskbuffer.samplers.staleness import Limit, limit_of

Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


class Population(ABC):
    """Steps, and the episodes that they lie in, by number. (4, n) arrays are as in `Draw`: streams, positions, starts, ends."""

    none_left: str  # what to tell where a buffer has steps, and none of these
    among = ""  # what to add to "no episode has ..."

    def attach(self, index: Index, column: OpenColumn) -> None:  # noqa: B027  most need nothing
        """Meet the buffer that is to be drawn from."""

    @abstractmethod
    def steps(self, index: Index) -> int:
        """Count the steps."""

    @abstractmethod
    def locate(self, index: Index, numbers: Int64) -> Int64:
        """Find steps by number, (4, n); those that were evicted are left out."""

    @abstractmethod
    def episodes(self, index: Index) -> int:
        """Count the episodes."""

    @abstractmethod
    def locate_episodes(self, index: Index, numbers: Int64) -> Int64:
        """Find episodes by number, (4, n), with their first step that is there; those that were evicted are left out."""

    @abstractmethod
    def freeze(self, index: Index) -> list[list[int]]:
        """Return what `locate_frozen` needs to number the steps of now for good, though some come and others go."""

    @abstractmethod
    def has_frozen(self, index: Index, frozen: list[list[int]], steps: int) -> bool:
        """Tell whether that many steps can have been frozen so here, or it is of another buffer, or damaged."""

    @abstractmethod
    def locate_frozen(self, index: Index, frozen: list[list[int]], numbers: Int64) -> tuple[Int64, Bools]:
        """Find steps by the number that they had when the population was frozen.

        Returns (4, m), those evicted since left out, and which of `numbers` these are, (n,) bool.
        """


class _Frozen:
    """The steps of an epoch: of each stream how many went before, and how many there were."""

    def __init__(self, frozen: list[list[int]]) -> None:
        self.frozen = frozen
        self.before, self.counts = np.array(frozen, np.int64).reshape(-1, 2).T
        self.sums = StreamSums(len(self.counts))
        self.sums.set(np.arange(len(self.counts)), self.counts)
        self.held_by: tuple[Index, int, int] | None = None


class Everything(Population):
    """All steps that can be sampled."""

    none_left = "the buffer holds no complete step yet; add some before sampling"

    def counts(self, index: Index) -> Int64:
        """Count the steps of each stream; they are its newest. O(streams)."""
        return index.steps()

    def newest(self, index: Index, wanted: int, rng: np.random.Generator) -> Int64:
        """Find the newest steps, fewer if there are not so many: of each environment's newest first, in an order drawn anew.

        O(streams), as that order is of all.
        """
        order = rng.permutation(index.environments)
        counts = self.counts(index)[order]
        rounds = -(-wanted // len(order))
        while np.minimum(counts, rounds).sum() < min(wanted, counts.sum()):  # some environments have fewer
            rounds *= 2
        ages, which = np.divmod(np.arange(rounds * len(order)), len(order))
        there = ages < counts[which]
        return index.recent(order[which[there][:wanted]], ages[there][:wanted])[0]

    def steps(self, index: Index) -> int:
        """Count the steps."""
        return len(index)

    def locate(self, index: Index, numbers: Int64) -> Int64:
        """Find steps by number."""
        return index.locate(numbers)

    def episodes(self, index: Index) -> int:
        """Count the episodes."""
        return index.episodes

    def locate_episodes(self, index: Index, numbers: Int64) -> Int64:
        """Find episodes by number."""
        return index.locate_episodes(numbers)

    def freeze(self, index: Index) -> list[list[int]]:
        """Return, for each stream, how many steps went before those of now, and how many those are. O(streams)."""
        counts = self.counts(index)
        return np.stack([index.added_each() - counts, counts], axis=1).tolist()  # type: ignore[no-any-return]

    def has_frozen(self, index: Index, frozen: list[list[int]], steps: int) -> bool:
        """Tell whether each stream had so many steps at a time. O(streams) where it was not told since an eviction."""
        known, now = self._known(frozen), (index, index.dropped, steps)
        if known.held_by != now:
            had = known.before + known.counts
            if len(had) != len(index.table) or steps != known.counts.sum():
                return False
            if (had > index.first_steps_of(np.arange(len(had))) + index.steps()).any():
                return False
            known.held_by = now
        return True

    def locate_frozen(self, index: Index, frozen: list[list[int]], numbers: Int64) -> tuple[Int64, Bools]:
        """Find steps by the number that they had."""
        known = self._known(frozen)
        streams, places = known.sums.find(numbers)
        return self._located(index, streams, known.before[streams] + places)  # steps that went before in the stream, ever

    def _known(self, frozen: list[list[int]]) -> _Frozen:
        known = self._last
        if known is None or known.frozen is not frozen:
            known = self._last = _Frozen(frozen)
        return known

    _last: _Frozen | None = None  # of another epoch, or of the buffer of another thread, which uses this at the same time

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

    def _located(self, index: Index, streams: Int64, since: Int64) -> tuple[Int64, Bools]:
        """Find those of some steps that are there, by how many went before in their streams, ever; which they are, (n,) bool."""
        places = since - index.first_steps_of(streams)
        there = (places >= 0) & (places < index.steps_of(streams))
        return index.locate_in(streams[there], places[there]), there


class Young(Everything):
    """The steps that are not too old."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self.none_left = f"no step is young enough for {limit.said}: none has a value; add more, or sample with another limit"
        self.among = f" within {limit.said}"

    def attach(self, index: Index, column: OpenColumn) -> None:
        """Meet the buffer that is to be drawn from."""
        self._limit.attach(index, column)

    def counts(self, index: Index) -> Int64:
        """Count the steps of each stream that are young enough. O(streams)."""
        return self._limit.counts(index).of(np.arange(len(index.table)))

    def steps(self, index: Index) -> int:
        """Count the steps."""
        return self._limit.counts(index).total

    def locate(self, index: Index, numbers: Int64) -> Int64:
        """Find steps by number."""
        counts = self._limit.counts(index)
        streams, places = counts.find(numbers)
        return index.locate_in(streams, index.steps_of(streams) - counts.of(streams) + places)

    def episodes(self, index: Index) -> int:
        """Count the episodes with a step that is young enough. O(streams)."""
        return int(self._episodes(index)[1].sum())

    def locate_episodes(self, index: Index, numbers: Int64) -> Int64:
        """Find episodes by number, with their first step that is young enough. O(streams)."""
        firsts, counts = self._episodes(index)
        ends, all_ends = np.cumsum(counts), np.cumsum(index.table[:, EPISODES])
        found = index.locate_episodes(numbers + (all_ends - ends)[np.searchsorted(ends, numbers, side="right")])
        found[1] = np.maximum(found[1], firsts[found[0]])
        return found

    def _episodes(self, index: Index) -> tuple[Int64, Int64]:
        """Return the position of each stream's first step that is young enough, and how many episodes there are from it on."""
        steps, firsts, counts = self.counts(index), *np.zeros((2, len(index.table)), np.int64)
        some = np.flatnonzero(steps)
        firsts[some] = index.recent(some, steps[some] - 1)[0][1]
        counts[some] = index.table[some, EPISODES] - index.episodes_before(some, firsts[some])
        return firsts, counts

    def _located(self, index: Index, streams: Int64, since: Int64) -> tuple[Int64, Bools]:
        places = since - index.first_steps_of(streams)
        steps = index.steps_of(streams)
        there = (places >= steps - self._limit.counts(index).of(streams)) & (places < steps)
        return index.locate_in(streams[there], places[there]), there


class Selection(Population):
    """The steps of some episodes, as `ReplayBuffer.episodes` tells of them."""

    none_left = "all the episodes that were selected are gone: evicted; select others"

    def __init__(self, episodes: Any) -> None:
        try:
            columns = [np.array(column, np.int64) for column in (episodes.stream, episodes.start, episodes.length)]
        except (AttributeError, TypeError, ValueError):
            raise InputError(
                f"episodes must be some of buffer.episodes, as in buffer.episodes[mask], found {episodes!r}"
            ) from None
        if any(column.shape != columns[0].shape or column.ndim != 1 for column in columns):
            raise InputError("episodes must have columns of the same length")
        if not columns[2].sum():
            raise InputError("no episodes were selected; there is nothing to sample from")
        self._streams, self._names, self._lengths = columns
        self._ends = np.cumsum(self._lengths)

    def steps(self, index: Index) -> int:
        """Count the steps that were selected, whether they are there still or not."""
        return int(self._ends[-1])

    def locate(self, index: Index, numbers: Int64) -> Int64:
        """Find steps by number."""
        return self.locate_frozen(index, [], numbers)[0]

    def episodes(self, index: Index) -> int:
        """Count the episodes that were selected, whether they are there still or not."""
        return len(self._lengths)

    def locate_episodes(self, index: Index, numbers: Int64) -> Int64:
        """Find episodes by number."""
        streams, firsts = self._streams[numbers], self._firsts(index)[numbers]
        there = np.maximum(firsts, index.table[streams, FLOOR])
        some = (there < firsts + self._lengths[numbers]) & (there < index.table[streams, HEAD])
        starts, ends = index.episodes_of(streams[some], there[some])
        return np.stack([streams[some], there[some], starts, ends])

    def freeze(self, index: Index) -> list[list[int]]:
        """Return nothing: the numbers stay."""
        return []

    def has_frozen(self, index: Index, frozen: list[list[int]], steps: int) -> bool:
        """Tell whether those are as many as were selected."""
        return not frozen and steps == self.steps(index)

    def locate_frozen(self, index: Index, frozen: list[list[int]], numbers: Int64) -> tuple[Int64, Bools]:
        """Find steps by number."""
        which = np.minimum(np.searchsorted(self._ends, numbers, side="right"), len(self._ends) - 1)
        streams, positions = self._streams[which], self._firsts(index)[which] + numbers - (self._ends - self._lengths)[which]
        starts, ends = index.episodes_of(streams, positions)
        return np.stack([streams, positions, starts, ends])[:, starts >= 0], starts >= 0

    def _firsts(self, index: Index) -> Int64:
        if self._streams.max() >= len(index.table):
            raise InputError("the selected episodes are of another buffer: it had more environments")
        return self._names // len(index.table)


def population_of(episodes: Any, max_age: float | None = None, age_column: str | None = None) -> Population:
    """Return all steps, those that are young enough, or those of some episodes; an InputError where the arguments are bad."""
    if max_age is None:
        if age_column is not None:
            raise InputError(f"age_column={age_column!r} tells how old a step is; give max_age=, too")
        return Everything() if episodes is None else Selection(episodes)
    if episodes is not None:
        raise InputError("max_age= cannot be combined with episodes=: select episodes that are young enough")
    return Young(limit_of(max_age, age_column))
