"""What there is to draw from: every step of a buffer, or the steps of some episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.index.fields import FLOOR, HEAD
from diskbuffer.index.index import Index

Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


class Population(ABC):
    """Steps, and the episodes that they lie in, by number. (4, n) arrays are as in `Draw`: streams, positions, starts, ends."""

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


class Everything(Population):
    """All steps that can be sampled."""

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
        """Return, for each stream, how many steps went before those of now, and how many those are."""
        return [[index.first_step(stream), steps] for stream, steps in enumerate(index.steps().tolist())]

    def has_frozen(self, index: Index, frozen: list[list[int]], steps: int) -> bool:
        """Tell whether each stream had so many steps at a time."""
        now = [index.first_step(stream) + n for stream, n in enumerate(index.steps().tolist())]
        had = [sum(row) for row in frozen]
        return len(had) == len(now) and all(a <= b for a, b in zip(had, now, strict=True)) and steps == sum(n for _, n in frozen)

    def locate_frozen(self, index: Index, frozen: list[list[int]], numbers: Int64) -> tuple[Int64, Bools]:
        """Find steps by the number that they had."""
        before, counts = np.array(frozen, np.int64).T
        ends = np.cumsum(counts)
        streams = np.searchsorted(ends, numbers, side="right")
        since = before[streams] + numbers - (ends - counts)[streams]  # steps that went before in the stream, ever
        gone = np.array([index.first_step(stream) for stream in range(len(counts))], np.int64)
        now = index.steps()
        there = (since >= gone[streams]) & (since < (gone + now)[streams])
        return self.locate(index, (np.cumsum(now) - now - gone)[streams[there]] + since[there]), there


class Selection(Population):
    """The steps of some episodes, as `ReplayBuffer.episodes` tells of them."""

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


def population_of(episodes: Any) -> Population:
    """Return all steps, or those of some episodes."""
    return Everything() if episodes is None else Selection(episodes)
