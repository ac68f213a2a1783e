"""What there is to draw from: every step of a buffer, those that are young enough, or those of some episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import refuse_alone
from diskbuffer.errors import InputError
from diskbuffer.index.fields import EPISODES, FLOOR, HEAD
from diskbuffer.index.index import Index
from diskbuffer.samplers.columns import OpenColumn, Tags, met_here
from diskbuffer.samplers.draws import Draw
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
        """Find episodes by number, (5, n), with their first step that is there; those that were evicted are left out.

        The last row is the position before which their steps are of the population.
        """

    @abstractmethod
    def freeze(self, index: Index) -> list[list[int]]:
        """Return what `locate_frozen` needs to number the steps of now for good, though some come and others go."""

    @abstractmethod
    def has_frozen(self, index: Index, frozen: list[list[int]], steps: int) -> bool:
        """Return whether that many steps can have been frozen so here, or it is of another buffer, or damaged."""

    @abstractmethod
    def locate_frozen(self, index: Index, frozen: list[list[int]], numbers: Int64) -> tuple[Int64, Bools]:
        """Find steps by the number that they had when the population was frozen.

        Returns (4, m), those evicted since left out, and which of `numbers` these are, (n,) bool.
        """


class Everything(Population):
    """All steps that can be sampled."""

    none_left = "the buffer holds no complete step yet; add some before sampling"

    def counts(self, index: Index) -> Int64:
        """Count the steps of each stream; they are its newest."""
        return index.steps()

    def newest(self, index: Index, size: int, rng: np.random.Generator) -> Int64:
        """Find the newest steps, fewer if there are not so many: of each environment's newest first, in an order drawn anew."""
        order = rng.permutation(index.environments)
        counts = self.counts(index)[order]
        rounds = -(-size // len(order))
        while np.minimum(counts, rounds).sum() < min(size, counts.sum()):  # some environments have fewer
            rounds *= 2
        ages, which = np.divmod(np.arange(rounds * len(order)), len(order))
        available = ages < counts[which]
        return index.recent(order[which[available][:size]], ages[available][:size])[0]

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
        return _whole(index.locate_episodes(numbers))

    def freeze(self, index: Index) -> list[list[int]]:
        """Return, for each stream, how many steps went before those of now, and how many those are."""
        return [[index.added_to(stream) - steps, steps] for stream, steps in enumerate(self.counts(index).tolist())]

    def has_frozen(self, index: Index, frozen: list[list[int]], steps: int) -> bool:
        """Return whether each stream had so many steps at a time."""
        now = [index.first_step(stream) + n for stream, n in enumerate(index.steps().tolist())]
        had = [sum(row) for row in frozen]
        return len(had) == len(now) and all(a <= b for a, b in zip(had, now, strict=True)) and steps == sum(n for _, n in frozen)

    def locate_frozen(self, index: Index, frozen: list[list[int]], numbers: Int64) -> tuple[Int64, Bools]:
        """Find steps by the number that they had."""
        before, counts = np.array(frozen, np.int64).T
        ends = np.cumsum(counts)
        streams = np.searchsorted(ends, numbers, side="right")
        since = before[streams] + numbers - (ends - counts)[streams]  # steps that went before in the stream, ever
        added = np.array([index.added_to(stream) for stream in range(len(counts))], np.int64)
        present = (since >= (added - self.counts(index))[streams]) & (since < added[streams])
        return index.locate((np.cumsum(index.steps()) - added)[streams[present]] + since[present]), present


class MaxAge(Everything):
    """The steps that are not too old."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self.none_left = f"no step is young enough for {limit.said}: none has a value; add more, or sample with another limit"
        self.among = f" within {limit.said}"

    def attach(self, index: Index, column: OpenColumn) -> None:
        """Meet the buffer that is to be drawn from."""
        self._limit.attach(index, column)

    def counts(self, index: Index) -> Int64:
        """Count the steps of each stream that are young enough."""
        return self._limit.counts(index)

    def steps(self, index: Index) -> int:
        """Count the steps."""
        return int(self.counts(index).sum())

    def locate(self, index: Index, numbers: Int64) -> Int64:
        """Find steps by number."""
        return index.locate(_among_all(numbers, self.counts(index), index.steps()))

    def episodes(self, index: Index) -> int:
        """Count the episodes with a step that is young enough."""
        return int(self._episodes(index)[1].sum())

    def locate_episodes(self, index: Index, numbers: Int64) -> Int64:
        """Find episodes by number, with their first step that is young enough."""
        firsts, counts = self._episodes(index)
        located = index.locate_episodes(_among_all(numbers, counts, index.table[:, EPISODES]))
        located[1] = np.maximum(located[1], firsts[located[0]])
        return _whole(located)

    def _episodes(self, index: Index) -> tuple[Int64, Int64]:
        """Return the position of each stream's first step that is young enough, and how many episodes there are from it on."""
        steps, firsts, counts = self.counts(index), *np.zeros((2, len(index.table)), np.int64)
        some = np.flatnonzero(steps)
        firsts[some] = index.recent(some, steps[some] - 1)[0][1]
        for stream in some.tolist():
            starts = index.starts(stream)
            counts[stream] = len(starts) - max(0, int(np.searchsorted(starts, firsts[stream], side="right")) - 1)
        return firsts, counts


class Without(Everything):
    """The steps of episodes that do not have a tag. Nothing is kept of them: what is drawn is looked at, and drawn again."""

    def __init__(self, tag: str) -> None:
        if not isinstance(tag, str) or not tag:
            raise InputError(f"without must be a tag, such as 'dropped', found {tag!r}")
        self._tag = tag
        self._tags: Tags | None = None
        self.none_left = f"all steps lie in episodes with the tag {tag!r}, which without={tag!r} leaves out"

    def __getstate__(self) -> dict[str, Any]:
        """Return what another buffer, or process, can use."""
        return {**self.__dict__, "_tags": None}

    def attach(self, index: Index, column: OpenColumn) -> None:
        """Read this buffer's tags from now on."""
        self._tags = column("tag", None)

    def _lack_tag(self, index: Index, located: Int64) -> Bools:
        return ~met_here(self._tags, index, f"without={self._tag!r}").has_tag(self._tag, Draw(*located[:4]))

    def locate(self, index: Index, numbers: Int64) -> Int64:
        """Find steps by number; those that have the tag are left out."""
        located = super().locate(index, numbers)
        return located[:, self._lack_tag(index, located)]

    def locate_episodes(self, index: Index, numbers: Int64) -> Int64:
        """Find episodes by number; those that have the tag are left out."""
        located = super().locate_episodes(index, numbers)
        return located[:, self._lack_tag(index, located)]

    def locate_frozen(self, index: Index, frozen: list[list[int]], numbers: Int64) -> tuple[Int64, Bools]:
        """Find steps by the number that they had; those that have the tag are left out."""
        located, present = super().locate_frozen(index, frozen, numbers)
        kept = self._lack_tag(index, located)
        present[np.flatnonzero(present)[~kept]] = False
        return located[:, kept], present


class Selection(Population):
    """The steps of some episodes, as `ReplayBuffer.episodes` tells of them."""

    none_left = "all the episodes that were selected are gone: evicted; select others"

    def __init__(self, episodes: Any) -> None:
        try:
            columns = [np.array(column, np.int64) for column in (episodes.stream, episodes.start, episodes.length)]
        except (AttributeError, TypeError, ValueError):
            columns = []
        if not columns or any(column.shape != columns[0].shape or column.ndim != 1 for column in columns):
            raise InputError(
                "episodes must be some of buffer.episodes, as in buffer.episodes[mask], or buffer.episodes[3:4] for one, found "
                f"{episodes!r}"
            )
        if not columns[2].sum():
            raise InputError("no episodes were selected; there is nothing to sample from")
        self._streams, self._names, self._lengths = columns
        self._ends = np.cumsum(self._lengths)
        self._identity = getattr(episodes, "identity", None)

    def attach(self, index: Index, column: OpenColumn) -> None:
        """Refuse episodes of another buffer."""
        column("tag", None).refuse_another(self._identity)

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
        begins, stops = np.maximum(firsts, index.table[streams, FLOOR]), firsts + self._lengths[numbers]
        some = (begins < stops) & (begins < index.table[streams, HEAD])
        starts, ends = index.episodes_of(streams[some], begins[some])
        return np.stack([streams[some], begins[some], starts, ends, stops[some]])

    def freeze(self, index: Index) -> list[list[int]]:
        """Return nothing: the numbers stay."""
        return []

    def has_frozen(self, index: Index, frozen: list[list[int]], steps: int) -> bool:
        """Return whether those are as many as were selected."""
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


def how_to_have_longer_episodes(index: Index, sample: str = "with a smaller length") -> str:
    """Return what to do where no episode is long enough, as the end of a message; `sample` says how else to sample."""
    if index.episodes > max(len(index.environments), 0.9 * len(index)):
        return (
            f"almost all of the {len(index):,} steps are episodes of their own, as their obs is not the next_obs of the step "
            "before, unless that one ended. Give TorchRL's storage ndim=2 for flattened batches of several environments, or "
            "new_episode= to add or extend where an episode goes on with another observation, such as one that is normalised anew"
        )
    return f"add more steps, or sample {sample}"


def population_of(
    episodes: Any, max_age: float | None = None, age_column: str | None = None, without: str | None = None
) -> Population:
    """Return all steps, or those that arguments of a sampler leave; an InputError where the arguments are bad."""
    refuse_alone("age_column", age_column, "max_age", max_age)
    options = [name for name, value in (("max_age", max_age), ("episodes", episodes), ("without", without)) if value is not None]
    if len(options) > 1:
        raise InputError(f"{options[0]}= cannot be combined with {options[1]}=: select such episodes, and give episodes= alone")
    if max_age is not None:
        return MaxAge(limit_of(max_age, age_column))
    if without is not None:
        return Without(without)
    return Everything() if episodes is None else Selection(episodes)


def _whole(located: Int64) -> Int64:
    """Return episodes, (4, n), of which all steps are of the population, as `Population.locate_episodes` does."""
    return np.concatenate([located, located[3:]])


def _among_all(numbers: Int64, counts: Int64, all_counts: Int64) -> Int64:
    """Turn numbers among the newest so many of each stream into numbers among all of them, stream after stream."""
    ends = np.cumsum(counts)
    return np.asarray(numbers + (np.cumsum(all_counts) - ends)[np.searchsorted(ends, numbers, side="right")])
