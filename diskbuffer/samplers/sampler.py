"""What every sampler is: a draw from the index, and a state that can be saved."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.integers import integer_or_none
from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.index.fields import ENDED, FLOOR, HEAD, LOW
from diskbuffer.index.index import Index
from diskbuffer.native.sampling import Philox
from diskbuffer.samplers.columns import OpenColumn
from diskbuffer.samplers.draws import Draw, Form, Steps
from diskbuffer.samplers.epochs import Epochs, Samples

Int64 = npt.NDArray[np.int64]


def seed_sequence(seed: int | None) -> np.random.SeedSequence:
    """Return numpy's seed sequence; an InputError where the seed is none."""
    return np.random.SeedSequence(integer_or_none("seed", seed, 0, most=None))


def count_steps(index: Index) -> int:
    """Return how many steps there are to draw from; an EmptyBufferError where there are none."""
    total = len(index)
    if total == 0:
        raise EmptyBufferError("the buffer holds no complete step yet; add some before sampling")
    return total


@dataclass(eq=False, slots=True)
class Ahead:
    """A batch that was drawn and not delivered yet; `loading` while a loop is at it."""

    drawn: Draw
    loading: bool = True

    def still_there(self, index: Index, form: Form) -> npt.NDArray[np.bool_]:
        """Return which of the samples are still there, with all that belongs to them."""
        streams, positions, starts = self.drawn.streams, self.drawn.positions, self.drawn.starts
        known = (streams >= 0) & (streams < len(index.table))
        streams = np.where(known, streams, 0)
        first, last = index.episodes_of(streams, positions)
        known &= (starts == first) & (self.drawn.ends > positions) & (self.drawn.ends <= last)  # or it is another buffer's
        complete = (index.table[:, HEAD] + index.table[:, ENDED])[streams]
        there = form.first_step(self.drawn) >= index.table[streams, FLOOR]
        return np.asarray(known & (first >= 0) & there & form.is_within(self.drawn, index.table[streams, LOW], complete))

    def has_lost(self, index: Index, form: Form) -> bool:
        """Return whether something may be gone of what this same index had when it was drawn: the oldest rows go first."""
        return bool((form.oldest_row(self.drawn) < index.table[self.drawn.streams, FLOOR]).any())


class Sampler(ABC):
    """Draw steps.

    Batch number n is drawn with a generator of its own, made from the seed and n (Philox: Salmon et al., 2011, "Parallel
    random numbers: as easy as 1, 2, 3"). A loader draws in the learner's thread, and always as many batches ahead, so that
    what is drawn depends on what the learner did before and never on how fast threads are. The state is the seed, how many
    batches were delivered, and what was drawn ahead of them.

    Parameters
    ----------
    seed : int, optional
        For reproducible draws; from the operating system where it is missing.

    Attributes
    ----------
    batches : int
        How many were delivered.
    seeded : bool
        Whether a seed was given, or a state that has one.
    """

    form: Form = Steps()  # what a sample consists of
    draws_alike = True  # in every process that has the same seed, or state, and the same steps

    def __init__(self, seed: int | None = None) -> None:
        self._seed(seed_sequence(seed).entropy)
        self.seeded = seed is not None
        self.batches = 0
        self.epochs: Epochs | None = None  # for samplers without replacement
        self._ahead: list[Ahead] = []

    def _seed(self, entropy: Any) -> None:
        self._entropy = int(entropy)
        self._key = np.random.SeedSequence(self._entropy).generate_state(2, np.uint64)
        self._generators = threading.local()

    def seed_again(self, *numbers: int) -> None:
        """Draw other numbers from now on: those of this seed and some numbers, for copies that are not to draw alike."""
        words = np.random.SeedSequence([self._entropy, *numbers]).generate_state(2, np.uint64)
        self._seed(int(words[0]) << 64 | int(words[1]))

    def __getstate__(self) -> dict[str, Any]:
        ahead = [Ahead(one.drawn._replace(notes=dict(one.drawn.notes)), loading=False) for one in self._ahead]
        return {name: value for name, value in self.__dict__.items() if name != "_generators"} | {"_ahead": ahead}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._generators = threading.local()

    def generator(self, batch: int, *, again: bool = False) -> np.random.Generator:
        """Return the generator of batch number `batch`, for use in this thread until the next is asked for.

        `again` is for samples of it that are drawn anew.
        """
        return self._started(batch, again)[1]

    def _started(self, batch: int, again: bool = False) -> tuple[Philox, np.random.Generator]:
        """Return the random numbers of a batch, for native code, and as a generator that draws the same."""
        try:
            own = self._generators.own
        except AttributeError:  # a new one would cost many times as much as starting the old one again
            philox = Philox(*self._key.tolist())
            own = self._generators.own = philox, np.random.Generator(philox)  # type: ignore[arg-type]  # needs a capsule only
        own[0].start(int(again), batch)
        return own  # type: ignore[no-any-return]

    def attach(self, index: Index, column: OpenColumn) -> None:  # noqa: B027  most need nothing
        """Meet the buffer that is to be drawn from, and its columns."""

    def samples(self) -> Samples:
        """Return what there is to sample, for a pass over all of it."""
        raise InputError(f"a pass is over all that Uniform, Slices or Windows can draw, found {type(self).__name__}")

    @abstractmethod
    def draw(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
        """Draw `size` steps; an EmptyBufferError where there are none. Until `advance`, the same again with the same `rng`."""

    def advance(self) -> None:
        """Go on from the last draw, for samplers whose draws depend on those before."""
        if self.epochs is not None:
            self.epochs.advance()

    # What the reader and the loader call, under the store's lock

    @property
    def oldest_left(self) -> Ahead | None:
        """The oldest batch that was drawn ahead and left, if there is one."""
        return next((ahead for ahead in self._ahead if not ahead.loading), None) if self._ahead else None

    def left(self, size: int) -> Ahead | None:
        """Return the oldest batch of such a size that was drawn ahead and left, if there is one; others are never delivered."""
        while (ahead := self.oldest_left) is not None and ahead.drawn.size != size:
            self.deliver(ahead)  # that is, nobody will see it
        return ahead

    def next(self, index: Index, size: int) -> Ahead:
        """Draw the next batch; `keep` it once it is certain."""
        return Ahead(self.draw(index, size, self.generator(self.batches + len(self._ahead))))

    def random(self) -> Philox | None:
        """Return the random numbers of the next batch, if native code draws all of it by them, and none was drawn ahead."""
        return None

    def is_whole(self, index: Index, ahead: Ahead) -> bool:
        """Return whether all steps of a batch are still there."""
        return bool(ahead.still_there(index, self.form).all())

    def mend(self, index: Index, ahead: Ahead) -> None:
        """Draw others in place of steps that are gone, when a batch's turn has come: no earlier, for that depends on threads."""
        old = ahead.drawn
        kept = ahead.still_there(index, self.form)
        new = self._draw_others(index, int((~kept).sum()), self.generator(self.batches, again=True))
        self.advance()
        streams, positions, starts, ends = (np.concatenate([a[kept], b]) for a, b in zip(old[:4], new[:4], strict=True))
        notes = {name: np.concatenate([old.notes[name][kept], note]) for name, note in new.notes.items() if name in old.notes}
        ahead.drawn = Draw(streams, positions, starts, ends, notes)

    def _draw_others(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
        """Draw steps in place of some of a batch."""
        return self.draw(index, size, rng)

    def keep(self, ahead: Ahead) -> None:
        """Take a batch for drawn."""
        if ahead not in self._ahead:
            self._ahead.append(ahead)
            self.advance()
        ahead.loading = True

    def deliver(self, ahead: Ahead) -> None:
        """Count a batch that was kept."""
        if ahead in self._ahead:  # not, where another state was loaded since
            self._ahead.remove(ahead)
            self.batches += 1

    def leave(self, ahead: Ahead) -> None:
        """Leave a batch that was kept to the next caller."""
        ahead.loading = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state: with it, and the same steps in the buffer, the next batches are the same.

        Numbers, strings and lists of them only; 32 bytes a step that was drawn ahead.
        """
        state = {"seed": self._entropy, "batches": self.batches, "ahead": [_to_lists(ahead.drawn) for ahead in self._ahead]}
        return state | ({} if self.epochs is None else {"epochs": self.epochs.state_dict()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` returned."""
        try:
            seed, batches = int(state["seed"]), int(state["batches"])
            ahead = [Ahead(_from_lists(lists, self.form), loading=False) for lists in state.get("ahead", [])]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"a sampler's state must have 'seed', 'batches' and 'ahead', found {str(state)[:200]}") from error
        if seed < 0 or not 0 <= batches < 2**62:
            raise InputError(f"a sampler's seed and number of batches must not be negative, found {seed} and {batches}")
        if self.epochs is not None:
            self.epochs.load_state_dict(state.get("epochs"))
        self._seed(seed)
        self.seeded = True
        self.batches, self._ahead = batches, ahead


def _to_lists(drawn: Draw) -> dict[str, Any]:
    arrays = {**dict(zip(Draw._fields[:4], drawn[:4], strict=True)), **drawn.notes}
    return {name: [array.dtype.name, list(array.shape), array.ravel().tolist()] for name, array in arrays.items()}


def _from_lists(lists: Mapping[str, Any], form: Form) -> Draw:
    arrays = {name: np.array(values, dtype).reshape(shape) for name, (dtype, shape, values) in lists.items()}
    streams, positions, starts, ends = (arrays.pop(name).astype(np.int64) for name in Draw._fields[:4])
    drawn = Draw(streams, positions, starts, ends, arrays)
    if any(array.shape != (drawn.size,) for array in drawn[:4]) or any(len(array) != drawn.size for array in arrays.values()):
        raise ValueError("arrays of a batch have other lengths")
    for name, (shape, dtype) in form.notes.items():
        if arrays[name].shape != (drawn.size, *shape) or arrays[name].dtype != dtype:
            raise ValueError(f"{name} is not that of such samples; the state is of another sampler")
    return drawn
