"""Passes over everything: in order or shuffled, nothing skipped, nothing twice, as a loader reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.index.index import Index
from diskbuffer.loading.loader import Loader
from diskbuffer.reading.batch_reader import BatchReader, Planned, Take
from diskbuffer.reading.ranks import ALONE, Ranks
from diskbuffer.reading.wanted import Wanted
from diskbuffer.samplers.draws import Draw, Steps
from diskbuffer.samplers.epochs import EVERY_STEP, EpochPosition, Epochs, Samples

if TYPE_CHECKING:
    from diskbuffer.reading.batches.base import Batch

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Slicing:
    """How a pass is cut into batches, of all ranks together, and what each of these has.

    Attributes
    ----------
    size : int
        Samples of one rank's batch.
    merge_last : bool
        Whether the last batch takes the rest, or is a small one.
    ranks : Ranks
        Who shares each batch, and which of them this is.
    paths : tuple of str, optional
        The columns that are wanted; those that batches have where none are named.
    """

    size: int
    merge_last: bool = False
    ranks: Ranks = ALONE
    paths: tuple[str, ...] | None = None

    def next(self, left: int) -> int:
        """Return how many samples the next batch has, where so many are left."""
        whole = self.size * self.ranks.world_size
        least = whole if self.merge_last else self.ranks.world_size  # or it goes with the batch before: each rank gets some of it
        return left if left - whole < least else whole

    def batches(self, left: int) -> int:
        """Return how many batches there are of so many samples; this rank has no share of one that has too few."""
        whole = self.size * self.ranks.world_size
        full, rest = divmod(left, whole)
        if full == 0:
            return int(self.ranks.share(rest) > 0)
        return full + int(rest >= self.ranks.world_size and not self.merge_last)


@dataclass(frozen=True)
class Reached:
    """How far a pass has come.

    Attributes
    ----------
    position : EpochPosition
        In the order of the steps; of given ones, `at` alone is of use.
    left : int
        How many samples are to come, at most.
    """

    position: EpochPosition
    left: int


@dataclass(frozen=True)
class PassBatch:
    """A batch of a pass, and the place after it."""

    planned: Planned
    behind: Reached


class _InOrder:
    """What is read in an order that is decided when it begins; a loader's source.

    Attributes
    ----------
    done : Reached
        Behind what was delivered.
    steps, begun : int
        How many steps it is of, and how many of these came before it began.
    """

    def __init__(self, reader: BatchReader, slicing: Slicing, check: Callable[[], None], done: Reached) -> None:
        self._reader, self._slicing, self._check = reader, slicing, check
        self.done = self._next = done
        self.steps, self.begun = done.position.steps, done.position.at

    @property
    def position(self) -> EpochPosition:
        """Where it is, behind what was delivered."""
        return self.done.position

    def _left(self) -> int:
        """Count the samples to come."""
        return min(self._next.left, self._next.position.steps - self._next.position.at)

    def __len__(self) -> int:
        """How many batches are to come, if nothing is evicted meanwhile."""
        return self._slicing.batches(self._left())

    def wait(self) -> None:
        """Do nothing: a limiter does not count passes."""

    def begin(self, take: Take) -> PassBatch | None:
        """Decide on the next batch; None after the last."""
        self._check()
        with self._reader.lock:
            while self._left() > 0:
                planned, self._next = self._plan(self._slicing.next(self._left()), take)
                if planned.drawn.size:
                    return PassBatch(planned, self._next)
        return None

    def _plan(self, size: int, take: Take) -> tuple[Planned, Reached]:
        """Plan this rank's share of the next batch; return the place after all of it, too."""
        raise NotImplementedError

    def finalize(self, begun: PassBatch, take: Take) -> PassBatch:  # noqa: ARG002
        """Return the batch as it was begun: what was evicted since was read before."""
        return begun

    def deliver(self, begun: PassBatch) -> None:
        """Note how far the learner has come."""
        self.done = begun.behind

    def leave(self, begun: PassBatch) -> None:
        """Forget a batch: the next loop begins anew."""

    def state_dict(self) -> dict[str, Any]:
        """Return how far the learner has come, as numbers and lists."""
        return {"left": self.done.left, **vars(self.done.position)}


class Pass(_InOrder):
    """One pass over the steps, or sequences, that are there when it begins, or over the rest of one that a state tells of."""

    def __init__(
        self,
        reader: BatchReader,
        slicing: Slicing,
        shuffle: bool,
        seed: int,
        check: Callable[[], None],
        state: Mapping[str, Any] | None = None,
        *,
        position: EpochPosition | None = None,
        samples: Samples = EVERY_STEP,
    ) -> None:
        self._seed, self._samples, self._shuffle = seed, samples, shuffle
        self._epochs = Epochs(samples.population, shuffle)
        with reader.lock:
            left = samples.count(reader.index)  # that can be to come
            begin = self._epochs.begin(reader.index) if position is None else self._epochs.resume(reader.index, position)
            if state is not None:
                left, begin, self._seed = self._resumed(reader.index, state)
        super().__init__(reader, slicing, check, Reached(begin, left))

    def _resumed(self, index: Index, state: Mapping[str, Any]) -> tuple[int, EpochPosition, int]:
        """Return how many samples are to come, the place, and the seed, from a state; an InputError where it does not fit."""
        try:
            left, seed, shuffled = int(state["left"]), int(state["seed"]), bool(state["shuffle"])
            self._epochs.load_state_dict(state)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"the state of a pass must be what its state_dict returned, found {str(state)[:200]}") from error
        position = self._epochs.position
        if left < 0 or seed < 0 or position.epoch < 0 or self._epochs.resume(index, position) != position:
            raise InputError("the state is of a pass over other steps, or over another buffer; begin a new one")
        if shuffled != self._shuffle:
            raise InputError(f"the state is of a pass with shuffle={shuffled}, and this one has shuffle={self._shuffle}")
        return left, position, seed

    def _plan(self, size: int, take: Take) -> tuple[Planned, Reached]:
        taken = np.empty((4, 0), np.int64)
        behind = self._next.position

        def draw(index: Index) -> Draw:
            nonlocal taken, behind
            valid = functools.partial(self._samples.valid, index)
            taken, behind = self._epochs.take(index, self._next.position, size, self._seed, valid)
            return self._samples.drawn(index, np.stack([self._slicing.ranks.own_of(row) for row in taken]))

        planned = self._reader.plan(draw, self._samples.form, take, self._slicing.paths)
        return planned, Reached(behind, self._next.left - taken.shape[1])

    def state_dict(self) -> dict[str, Any]:
        """Return how far the learner has come, with the seed of the order."""
        return super().state_dict() | {"seed": self._seed, "shuffle": self._shuffle}


class Listed(_InOrder):
    """A pass over given steps, in their order."""

    def __init__(
        self,
        reader: BatchReader,
        steps: Int64,
        slicing: Slicing,
        check: Callable[[], None],
        state: Mapping[str, Any] | None = None,
    ) -> None:
        at = 0 if state is None else state.get("at")
        if type(at) is not int or not 0 <= at <= len(steps) or (state is not None and state.get("steps") != len(steps)):
            raise InputError("the state is of a pass over other steps; give the same steps=, or begin a new one")
        self._steps = steps
        super().__init__(reader, slicing, check, Reached(EpochPosition(steps=len(steps), at=at), len(steps) - at))

    def _plan(self, size: int, take: Take) -> tuple[Planned, Reached]:
        at = self._next.position.at
        mine = self._slicing.ranks.own_of(self._steps[at : at + size])
        planned = self._reader.plan(self._reader.draw_named(mine), Steps(), take, self._slicing.paths)
        return planned, Reached(EpochPosition(steps=len(self._steps), at=at + size), self._next.left - size)


class Batches(Loader[Any]):
    """Iterate over everything once. Made by `ReplayBuffer.batches`; every ``for`` loop over it is a pass of its own."""

    def __init__(
        self,
        source: Callable[[Mapping[str, Any] | None], Pass | Listed],
        wanted: Wanted,
        prefetch: int,
        threads: int,
        transform_threads: int = 0,
    ) -> None:
        super().__init__(self._begin, wanted, prefetch, threads, transform_threads)
        self._pass = source
        self._newest: Pass | Listed | None = None
        self._state: Mapping[str, Any] | None = None  # to go on from

    def _begin(self) -> Pass | Listed:
        self._newest = self._pass(self._state)
        self._state = None
        return self._newest

    def __iter__(self) -> Iterator[Batch]:
        yield from super().__iter__()
        self._newest = None

    def __len__(self) -> int:
        """How many batches the next loop would have now."""
        return len(self._pass(self._state))

    def state_dict(self) -> dict[str, Any]:
        """Return how far the newest loop has come: behind the batch that it delivered last. {} before the first, or at its end.

        Numbers and lists of them only. With it, and the same steps in the buffer, the next loop has the batches that were to
        come. It is the same in all ranks.
        """
        if self._state is not None:
            return dict(self._state)
        return {} if self._newest is None else self._newest.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the next loop from a state that `state_dict` returned; an InputError where it does not fit."""
        if not isinstance(state, Mapping):
            raise InputError(f"the state of a pass must be what its state_dict returned, found {str(state)[:200]}")
        if state:
            self._pass(state)
        self._newest, self._state = None, dict(state) or None


def check_order(*, shuffle: bool, seed: Any, steps: Any, sampler: Any, ranks: Ranks) -> None:
    """Raise an InputError where what a pass is to be over, and in which order, does not go together."""
    if ranks.world_size > 1 and shuffle and seed is None:
        raise InputError(f"with {ranks.world_size} ranks all must shuffle in the same way: give seed=, another one each epoch")
    if steps is not None and shuffle:
        raise InputError("steps come in the order in which they are given; shuffle them, or leave shuffle= out")
    if steps is not None and sampler is not None:
        raise InputError("steps= and sampler= both tell what comes; give one of them")
