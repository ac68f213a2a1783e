"""What every sampler is: a draw from the index, and a state that can be saved."""

from __future__ import annotations

import operator
import threading
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.form import Draw, Form
from diskbuffer.index import Index


def seed_sequence(seed: int | None) -> np.random.SeedSequence:
    """Return numpy's seed sequence; an InputError where the seed is none."""
    try:
        return np.random.SeedSequence(None if seed is None else operator.index(seed))
    except (TypeError, ValueError):
        raise InputError(f"seed must be an integer of at least 0, or None, found {seed!r}") from None


def at_least_one(name: str, value: int) -> int:
    """Return an integer of at least 1; an InputError where it is none."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be an integer of at least 1, found {value!r}")
    return int(value)


def count_steps(index: Index) -> int:
    """Return how many steps there are to draw from; an EmptyBufferError where there are none."""
    total = len(index)
    if total == 0:
        raise EmptyBufferError("the buffer holds no complete step yet; add some before sampling")
    return total


class Sampler(ABC):
    """Draw steps.

    Batch number n is drawn with a generator of its own, made from the seed and n (Philox: Salmon et al., 2011, "Parallel
    random numbers: as easy as 1, 2, 3"). So it does not matter how many batches were drawn ahead and thrown away: the
    state is the seed and the number of batches that were delivered.

    Parameters
    ----------
    seed : int, optional
        For reproducible draws; from the operating system where it is missing.
    """

    form = Form()  # what a sample consists of

    def __init__(self, seed: int | None = None) -> None:
        self._seed(seed_sequence(seed).entropy)
        self.batches = 0

    def _seed(self, entropy: Any) -> None:
        self._entropy = int(entropy)
        self._key = np.random.SeedSequence(self._entropy).generate_state(2, np.uint64)
        self._generators = threading.local()

    def generator(self, batch: int) -> np.random.Generator:
        """Return the generator of batch number `batch`, for use in this thread until the next is asked for."""
        if not hasattr(self._generators, "own"):  # a new one would cost ten times as much as putting the old one there
            self._generators.own = np.random.Generator(np.random.Philox(key=self._key))
            self._generators.start = self._generators.own.bit_generator.state
        self._generators.start["state"]["counter"][:] = 0, 0, 0, batch
        self._generators.own.bit_generator.state = self._generators.start
        generator: np.random.Generator = self._generators.own
        return generator

    @abstractmethod
    def draw(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
        """Draw `size` steps; an EmptyBufferError where there are none."""

    def state_dict(self) -> dict[str, int]:
        """Return the state: with it, and the same steps in the buffer, the next batches are the same."""
        return {"seed": self._entropy, "batches": self.batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a state that `state_dict` returned."""
        try:
            seed, batches = int(state["seed"]), int(state["batches"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"a sampler's state must have 'seed' and 'batches', found {state!r}") from error
        if seed < 0 or batches < 0:
            raise InputError(f"a sampler's seed and number of batches must not be negative, found {state!r}")
        self._seed(seed)
        self.batches = batches
