"""Draws without replacement: epochs, in each of which every step comes once, in an order that takes no memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.index.index import Index
from diskbuffer.samplers.draws import Draw, Form, Steps
from diskbuffer.samplers.permutation import Permutation
from diskbuffer.samplers.population import Everything, Population

Int64 = npt.NDArray[np.int64]
Valid = Callable[[Int64], npt.NDArray[np.bool_]]
_AT_ONCE = 2**16  # steps looked at in a go


def _all(places: Int64) -> npt.NDArray[np.bool_]:
    return np.ones(places.shape[1], np.bool_)


@dataclass(frozen=True)
class EpochPosition:
    """How far an epoch has come.

    Attributes
    ----------
    epoch : int
    frozen : list of list of int
        The steps that it is of: those of the population when it began.
    steps : int
        How many those are.
    at : int
        How many of them were looked at.
    """

    epoch: int = -1
    frozen: list[list[int]] = field(default_factory=list)
    steps: int = 0
    at: int = 0


@dataclass(frozen=True)
class Samples:
    """What there is to sample: of which steps, and what a sample is that begins with one.

    Attributes
    ----------
    population : Population
    form : Form
    valid : callable
        ``valid(index, places)`` tells which steps, (4, n) as in `Draw`, a sample may begin with.
    count : callable
        ``count(index)`` returns how many of these there are, at most.
    drawn : callable
        ``drawn(index, places)`` returns the draw of samples that begin with steps.
    """

    population: Population
    form: Form = Steps()  # noqa: RUF009  frozen
    valid: Callable[[Index, Int64], npt.NDArray[np.bool_]] = lambda _, places: _all(places)
    count: Callable[[Index], int] = len
    drawn: Callable[[Index, Int64], Draw] = lambda _, places: Draw(*places)


EVERY_STEP = Samples(Everything())


class Epochs:
    """Steps of a population, each once an epoch: those that are there when the epoch begins.

    Parameters
    ----------
    population : Population
    shuffle : bool
        If not, they come in order: stream after stream, oldest first.
    """

    def __init__(self, population: Population, shuffle: bool = True) -> None:
        self._population, self._shuffle = population, shuffle
        self.position = self._next = EpochPosition()

    def begin(self, index: Index, epoch: int = 0) -> EpochPosition:
        """Return the place where an epoch begins, if that is now."""
        return EpochPosition(epoch, self._population.freeze(index), self._population.steps(index), 0)

    def resume(self, index: Index, position: EpochPosition) -> EpochPosition:
        """Return a place, or the beginning of the next epoch where it cannot be one in this buffer."""
        if position.at >= position.steps or self._population.has_frozen(index, position.frozen, position.steps):
            return position
        return self.begin(index, position.epoch + 1)

    def take(
        self, index: Index, position: EpochPosition, size: int, seed: int, valid: Valid = _all
    ) -> tuple[Int64, EpochPosition]:
        """Return the next `size` steps of an epoch that are valid, fewer at its end, and the place after them.

        ``valid(places)`` tells of steps, (4, n) as in `Draw`, which may be taken.
        """
        taken: list[Int64] = [np.empty((4, 0), np.int64)]
        order = Permutation(position.steps, (seed, position.epoch))
        at, missing = position.at, size
        while missing and at < position.steps:
            until = min(position.steps, at + min(missing + missing // 4 + 16, _AT_ONCE))
            numbers = order(at, until) if self._shuffle else np.arange(at, until)
            places, present = self._population.locate_frozen(index, position.frozen, numbers)
            good = valid(places)
            which = np.flatnonzero(present)[good]
            if len(which) >= missing:
                until = at + int(which[missing - 1]) + 1
            taken.append(places[:, good][:, :missing])
            at, missing = until, missing - taken[-1].shape[1]
        return np.concatenate(taken, axis=1), EpochPosition(position.epoch, position.frozen, position.steps, at)

    def draw(self, index: Index, size: int, seed: int, valid: Valid = _all) -> Int64:
        """Return the next `size` valid steps, (4, size), from the next epoch, too; fewer only where a whole one has none."""
        drawn, position, missing = [], self.resume(index, self.position), size
        while missing:
            fresh = position.at >= position.steps
            if fresh:
                position = self.begin(index, position.epoch + 1)
            places, position = self.take(index, position, missing, seed, valid)
            drawn.append(places)
            missing -= places.shape[1]
            if fresh and not places.shape[1]:
                break
        self._next = position
        return np.concatenate(drawn, axis=1)

    def advance(self) -> None:
        """Go on from the last draw."""
        self.position = self._next

    def state_dict(self) -> dict[str, Any]:
        """Return the place, as numbers and lists."""
        return {
            "epoch": self.position.epoch,
            "frozen": self.position.frozen,
            "steps": self.position.steps,
            "at": self.position.at,
        }

    @staticmethod
    def at_the_beginning(state: dict[str, Any]) -> dict[str, Any]:
        """Return a state whose next draw begins an epoch, of the steps that are there then."""
        return {"epoch": state["epoch"], "frozen": [], "steps": 0, "at": 0}

    def load_state_dict(self, state: Any) -> None:
        """Go on from a place."""
        try:
            position = EpochPosition(
                int(state["epoch"]), [[int(n) for n in row] for row in state["frozen"]], int(state["steps"]), int(state["at"])
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"a sampler without replacement has a state with 'epochs', found {str(state)[:200]}") from error
        sane = (
            position.epoch >= -1
            and position.steps >= 0
            and position.at >= 0
            and all(len(row) == 2 and min(row) >= 0 for row in position.frozen)
        )
        if not sane or (position.frozen and position.steps != sum(row[1] for row in position.frozen)):
            raise InputError(f"the state of a sampler without replacement is damaged: {str(state)[:200]}")
        self.position = self._next = position
