"""Starts of samples that need steps after them, or before them, in the same episode.

Nothing is kept up for this: a start is drawn among all steps, and drawn again where its episode ends too soon (rejection
sampling; von Neumann, 1951). Where hardly any start is valid, those that are get counted, once a batch, over all episodes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import EmptyBufferError
from diskbuffer.index.fields import FLOOR
from diskbuffer.index.index import Index
from diskbuffer.samplers.columns import OpenColumn
from diskbuffer.samplers.draws import Draw
from diskbuffer.samplers.epochs import Epochs, Samples
from diskbuffer.samplers.population import Population, how_to_have_longer_episodes
from diskbuffer.samplers.sampler import Sampler, count_steps

Int64 = npt.NDArray[np.int64]


class Starts(Sampler):
    """Draw starts within episodes.

    Parameters
    ----------
    seed : int, optional
    population : Population
        What they are drawn from.
    needed : int
        Steps that must follow a start, with its own.
    before : int
        Steps that must come before it.
    over_episodes : bool
        Whether every episode that has a valid start is as likely as any other; else every start is.
    replace : bool
    """

    sample, shorter = "a sequence", "with a smaller length, or with strict=False"  # what to call it, and how else to sample

    def __init__(
        self,
        seed: int | None,
        population: Population,
        needed: int,
        before: int = 0,
        *,
        over_episodes: bool = False,
        replace: bool = True,
    ) -> None:
        super().__init__(seed)
        self._population, self._needed, self._before, self._over_episodes = population, needed, before, over_episodes
        if not replace:
            self.epochs = Epochs(population)

    def attach(self, index: Index, column: OpenColumn) -> None:
        """Meet the buffer that is to be drawn from."""
        self._population.attach(index, column)

    def draw(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
        """Draw `size` starts."""
        count_steps(index)
        if self._population.steps(index) == 0:
            raise EmptyBufferError(self._population.none_left)
        if self.epochs is not None:
            starts = self.epochs.draw(index, size, self._entropy, lambda places: self._is_valid(index, places))
            if starts.shape[1] < size:
                raise self._too_short(index)
        else:
            starts = self._draw_starts(index, size, rng)
        return self._with_notes(index, Draw(*starts))

    def samples(self) -> Samples:
        """Return every start that can be drawn."""
        return Samples(
            self._population, self.form, self._is_valid, self._count, lambda index, starts: self._with_notes(index, Draw(*starts))
        )

    def _count(self, index: Index) -> int:
        """Count the valid starts."""
        return int(self._counted(index)[1].sum())

    def _with_notes(self, index: Index, drawn: Draw) -> Draw:
        """Tell what the gather needs to know of them."""
        if "_firsts" in self.form.notes:
            return drawn._replace(notes={"_firsts": _first_rows(index, drawn.streams, drawn.starts)})
        return drawn

    def _draw_starts(self, index: Index, size: int, rng: np.random.Generator) -> Int64:
        """Draw starts by rejection, as many at a time as the share that was valid so far suggests."""
        episodes = self._population.episodes(index)
        total = episodes if self._over_episodes else self._population.steps(index)
        starts, missing, tried, tries = [np.empty((4, 0), np.int64)], size, 0, size + size // 4 + 4
        while missing:
            if tried + tries > 16 * size + episodes // 4:  # looking at every episode costs less
                starts.append(self._draw_among_all(index, missing, rng))
                break
            places = self._try(index, rng.integers(0, total, tries), rng)[:, :missing]
            starts.append(places)
            tried, missing = tried + tries, missing - places.shape[1]
            tries = missing * (tried + 1) // (size - missing + 1) * 5 // 4 + 4
        return np.concatenate(starts, axis=1)

    def _try(self, index: Index, numbers: Int64, rng: np.random.Generator) -> Int64:
        """Return those of some steps, or of a start in each of some episodes, that are valid starts: (4, n) as in `Draw`."""
        if self._over_episodes:
            episodes = self._population.locate_episodes(index, numbers)
            return self._start_within(index, episodes[:, self._count_valid(index, episodes) > 0], rng)
        places = self._population.locate(index, numbers)
        return places[:, self._is_valid(index, places)]

    def _draw_among_all(self, index: Index, size: int, rng: np.random.Generator) -> Int64:
        """Draw starts after counting the valid ones of every episode."""
        every, valid = self._counted(index)
        if not valid.any():
            raise self._too_short(index)
        weights = (valid > 0).astype(np.int64) if self._over_episodes else valid
        ends = np.cumsum(weights)
        return self._start_within(index, every[:, np.searchsorted(ends, rng.integers(0, ends[-1], size), side="right")], rng)

    def _is_valid(self, index: Index, places: Int64) -> npt.NDArray[np.bool_]:
        """Return which steps, (4, n) as in `Draw`, are valid starts."""
        valid = np.asarray(places[3] - places[1] >= self._needed)
        return valid & (places[1] - self._before >= _first_rows(index, places[0], places[2])) if self._before else valid

    def _first_valid(self, index: Index, episodes: Int64) -> Int64:
        """Return the first start of episodes, (5, n) as of `Population.locate_episodes`, that has enough steps before it."""
        firsts: Int64 = episodes[1]
        return np.maximum(firsts, _first_rows(index, episodes[0], episodes[2]) + self._before)

    def _count_valid(self, index: Index, episodes: Int64) -> Int64:
        """Count the valid starts of each of some episodes."""
        stops = np.minimum(episodes[3] - self._needed + 1, episodes[4])
        return np.asarray(np.maximum(stops - self._first_valid(index, episodes), 0))

    def _counted(self, index: Index) -> tuple[Int64, Int64]:
        """Return all episodes, and how many valid starts each has."""
        every = self._population.locate_episodes(index, np.arange(self._population.episodes(index)))
        return every, self._count_valid(index, every)

    def _start_within(self, index: Index, episodes: Int64, rng: np.random.Generator) -> Int64:
        """Draw one of the valid starts of each episode."""
        episodes[1] = self._first_valid(index, episodes) + rng.integers(0, self._count_valid(index, episodes))
        return episodes[:4]

    def _too_short(self, index: Index) -> EmptyBufferError:
        every = self._population.locate_episodes(index, np.arange(self._population.episodes(index)))
        if not every.shape[1]:
            return EmptyBufferError(self._population.none_left)
        longest = int((np.minimum(every[3], every[4] + self._needed - 1) - every[1]).max())
        return EmptyBufferError(
            f"no episode has the {self._before + self._needed} steps of {self.sample}{self._population.among}, the longest has "
            f"{longest}; {how_to_have_longer_episodes(index, self.shorter)}"
        )


def _first_rows(index: Index, streams: Int64, starts: Int64) -> Int64:
    """Return the first rows of episodes that are there still."""
    return np.asarray(np.maximum(starts, index.table[streams, FLOOR]))
