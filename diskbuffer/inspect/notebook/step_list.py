"""The steps of some episodes, one after the other, by their place in that list; a few numbers for each episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.plugin import EpisodeColumns, EpisodeReader, is_observation

Int64 = npt.NDArray[np.int64]
_AT_ONCE = 2**12  # steps that are read in one call


@dataclass(frozen=True)
class StepList:
    """Find the episode, and the name, of the step at a place.

    Attributes
    ----------
    starts : (episodes,) int64
        The names of the first steps.
    ends : (episodes,) int64
        How many steps there are up to the end of each.
    before : (episodes,) int64
        How many steps of each episode came before these, and were evicted.
    apart : int
        How far the names of consecutive steps of an episode lie apart.
    """

    starts: Int64
    ends: Int64
    before: Int64
    apart: int

    @classmethod
    def of(cls, source: EpisodeReader, episodes: EpisodeColumns) -> StepList:
        """List the steps of episodes."""
        before = np.maximum(source.elapsed(episodes.start), 0)
        return cls(episodes.start, np.cumsum(episodes.length), before, source.streams)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def episode(self, places: Int64) -> Int64:
        """Return the rows of the episodes in their list, (n,)."""
        return np.searchsorted(self.ends, places, side="right").astype(np.int64)

    def elapsed(self, places: Int64) -> Int64:
        """Return how many steps of its episode came before each, evicted ones, too, (n,)."""
        numbers = self.episode(places)
        return self.before[numbers] + self._place_in(numbers, places)

    def names(self, places: Int64) -> Int64:
        """Return the names of steps, (n,), as in a batch's ``steps``."""
        numbers = self.episode(places)
        return self.starts[numbers] + self._place_in(numbers, places) * self.apart

    def _place_in(self, numbers: Int64, places: Int64) -> Int64:
        first: Int64 = np.concatenate([[0], self.ends])[numbers]
        return places - first


def shape_of(source: EpisodeReader, path: str) -> tuple[int, ...]:
    """Return the shape of a column's value of one step, as batches have it."""
    shape = source.columns[path].shape
    return (source.frame_stack, *shape) if is_observation(path) and source.frame_stack > 1 else shape


def read_steps(source: EpisodeReader, path: str, steps: StepList, places: Int64, *, following: bool = False) -> npt.NDArray[Any]:
    """Return a column's values of the steps at places, (n, ...), as batches have them; read some thousands at a time."""
    found = np.zeros((len(places), *shape_of(source, path)), source.columns[path].np_dtype)
    for first in range(0, len(places), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        found[some] = source.steps(path, steps.names(places[some]), following=following)
    return found
