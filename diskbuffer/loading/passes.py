"""Passes over everything: in order or shuffled, nothing skipped, nothing twice, through the loader's threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.draws import Draw, Steps
from diskbuffer.index.index import Index
from diskbuffer.loading.loader import Loader
from diskbuffer.reading.batches.base import Arrays, Request
from diskbuffer.reading.delivery import Transform
from diskbuffer.reading.reader import Planned, Reader
from diskbuffer.samplers.epochs import EVERY_STEP, Epochs, Place, Samples

B = TypeVar("B")
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PassBatch:
    """A batch of a pass, and the place after it."""

    planned: Planned
    behind: Place

    @property
    def request(self) -> Request:
        """What it is to be."""
        return self.planned.request


class _InOrder:
    """What is read in an order that is decided when it begins; a loader's source."""

    def __init__(self, reader: Reader, size: int, merge_last: bool, check: Callable[[], None]) -> None:
        self._reader, self._size, self._merge_last, self._check = reader, size, merge_last, check

    def _left(self) -> int:
        """Count the steps to come."""
        raise NotImplementedError

    def __len__(self) -> int:
        """How many batches are to come, if nothing is evicted meanwhile."""
        left = self._left()
        return max(min(left, 1), left // self._size) if self._merge_last else -(-left // self._size)

    def _wanted(self) -> int:
        """Return how many steps the next batch has."""
        left = self._left()
        return left if self._merge_last and left < 2 * self._size else min(self._size, left)

    def finalize(self, begun: B) -> B:
        """Return the batch as it was begun: what was evicted since was read before."""
        return begun


class Pass(_InOrder):
    """One pass over the steps, or sequences, that are there when it begins; a loader's source.

    Attributes
    ----------
    place : Place
        Behind what was delivered.
    steps, begun : int
        How many steps it is of, and how many of these came before it began.
    """

    def __init__(
        self,
        reader: Reader,
        size: int,
        shuffle: bool,
        seed: int,
        merge_last: bool,
        check: Callable[[], None],
        place: Place | None = None,
        *,
        samples: Samples = EVERY_STEP,
    ) -> None:
        super().__init__(reader, size, merge_last, check)
        self._seed, self._samples = seed, samples
        self._epochs = Epochs(samples.population, shuffle)
        with reader.lock:
            self.place = self._epochs.begin(reader.index) if place is None else self._epochs.resume(reader.index, place)
            self._most = samples.count(reader.index)  # that can be to come
        self._next = self.place
        self.steps, self.begun = self.place.steps, self.place.at

    def _left(self) -> int:
        return min(self._most, self._next.steps - self._next.at)

    def begin(self) -> PassBatch | None:
        """Decide on the next batch; None after the last."""
        self._check()
        with self._reader.lock:
            while self._left() > 0:
                wanted = self._wanted()
                behind = self._next

                def draw(index: Index, wanted: int = wanted) -> Draw:
                    nonlocal behind
                    valid = functools.partial(self._samples.valid, index)
                    places, behind = self._epochs.take(index, self._next, wanted, self._seed, valid)
                    return self._samples.drawn(index, places)

                planned = self._reader.plan(draw, self._samples.form)
                self._next, self._most = behind, self._most - planned.drawn.size
                if planned.drawn.size:
                    return PassBatch(planned, behind)
        return None

    def fill(self, begun: PassBatch, arrays: Arrays) -> None:
        """Gather a batch."""
        begun.planned.gather(arrays, threads=1)

    def deliver(self, begun: PassBatch) -> None:
        """Note how far the learner has come."""
        self.place = begun.behind

    def leave(self, begun: PassBatch) -> None:
        """Forget a batch: the next loop begins anew."""


class Listed(_InOrder):
    """A pass over given steps, in their order; a loader's source."""

    def __init__(self, reader: Reader, steps: Int64, size: int, merge_last: bool, check: Callable[[], None]) -> None:
        super().__init__(reader, size, merge_last, check)
        self._steps, self._at = steps, 0
        self.steps, self.begun = len(steps), 0

    def _left(self) -> int:
        return len(self._steps) - self._at

    def begin(self) -> Planned | None:
        """Decide on the next batch; None after the last."""
        self._check()
        if self._left() == 0:
            return None
        wanted = self._wanted()
        planned = self._reader.plan(self._reader.draw_named(self._steps[self._at : self._at + wanted]), Steps())
        self._at += wanted
        return planned

    def fill(self, begun: Planned, arrays: Arrays) -> None:
        """Gather a batch."""
        begun.gather(arrays, threads=1)

    def deliver(self, begun: Planned) -> None:
        """Do nothing: nobody resumes it."""

    def leave(self, begun: Planned) -> None:
        """Do nothing."""


class Batches(Loader[Any]):
    """Iterate over everything once. Made by `ReplayBuffer.batches`; every ``for`` loop over it is a pass of its own."""

    def __init__(
        self,
        source: Callable[[], Pass | Listed],
        device: torch.device | str | None,
        prefetch: int,
        threads: int,
        transform: Transform | None = None,
    ) -> None:
        super().__init__(source, device, prefetch, threads, transform)
        self._pass = source

    def __len__(self) -> int:
        """How many batches there would be now."""
        return len(self._pass())
