"""What samplers hand to the gather: which steps, and what a sample consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.schema.schema import is_observation

Int64 = npt.NDArray[np.int64]


class Draw(NamedTuple):
    """Drawn steps: streams and positions, and the first and the last row of their episodes; (size,) int64 each.

    `notes` is what else the sampler tells of each, such as importance weights.
    """

    streams: Int64
    positions: Int64
    starts: Int64
    ends: Int64
    notes: Mapping[str, npt.NDArray[Any]] = MappingProxyType({})

    @classmethod
    def of_nothing(cls, form: Form) -> Draw:
        """Return the draw of no sample."""
        notes = {name: np.empty((0, *shape), dtype) for name, (shape, dtype) in form.notes.items()}
        none = np.empty(0, np.int64)
        return cls(none, none, none, none, notes)

    @property
    def size(self) -> int:
        """How many steps were drawn."""
        return len(self.positions)

    def delivered_notes(self) -> dict[str, npt.NDArray[Any]]:
        """Return the notes that are delivered: all but those whose names begin with an underscore."""
        return {name: note for name, note in self.notes.items() if not name.startswith("_")}


class Form:
    """What a sample is made of: one of the classes below. `drawn` below is what a sampler of such samples drew."""

    @property
    def steps(self) -> int:
        """How many steps there are on the axis of time, 1 where there is none."""
        return 1

    @property
    def notes(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Notes of the draw that the gather needs: the shape after the first axis, and the dtype."""
        return {}

    def chosen(self, paths: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return the columns that such samples have where some are asked for; None for those of batches by default."""
        return paths

    def first_step(self, drawn: Draw) -> Int64:
        """Return the first step that each sample delivers."""
        return drawn.positions

    def oldest_row(self, drawn: Draw) -> Int64:
        """Return the oldest row of what each sample delivers, but for the frames of stacks."""
        return self.first_step(drawn)

    def ids(self, drawn: Draw, first: Int64, apart: int | Int64) -> Int64:
        """Return the ids of the steps that samples consist of, (size, ...), -1 where there is none.

        `first` are those of the drawn steps, (size,), and `apart` how far those of consecutive steps lie apart: of all, or of
        each, (size, 1).
        """
        return first

    def is_within(self, drawn: Draw, first_row: Int64, complete: Int64) -> npt.NDArray[np.bool_]:
        """Return which samples' other rows lie from `first_row` on and before `complete`, (size,) each."""
        return np.ones(drawn.size, np.bool_)


@dataclass(frozen=True)
class Steps(Form):
    """Single steps, or sequences of them.

    Attributes
    ----------
    length : int or None
        Consecutive steps, with an axis of time; None for single steps without one.
    burn_in : int
        Steps before them, on the same axis.
    padded : bool
        Whether there may be fewer, as an episode starts or ends; the others are zeros, and False in a mask.
    whole : bool
        Whether that may be at the start only, of the burn-in.
    apart : bool
        Whether the observations before and after a step have memory of their own; of single steps alone.
    """

    length: int | None = None
    burn_in: int = 0
    padded: bool = False
    whole: bool = True
    apart: bool = False

    @property
    def steps(self) -> int:
        """Steps on the axis of time."""
        return 1 if self.length is None else self.burn_in + self.length

    @property
    def notes(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """``_firsts`` tells the first step that there is of each episode."""
        return {"_firsts": ((), "int64")} if self.burn_in else {}

    def first_step(self, drawn: Draw) -> Int64:
        """Return where the burn-in starts."""
        return np.maximum(drawn.notes["_firsts"], drawn.positions - self.burn_in) if self.burn_in else drawn.positions

    def reach(self, drawn: Draw) -> tuple[Int64, Int64]:
        """Return from which place on the axis of time on, and until before which, there are steps, (size,) each.

        Not cut to the axis: the one may be negative, and the other after its end.
        """
        begin = drawn.notes["_firsts"] - drawn.positions + self.burn_in if self.burn_in else np.zeros(drawn.size, np.int64)
        return begin, drawn.ends - drawn.positions + self.burn_in

    def ids(self, drawn: Draw, first: Int64, apart: int | Int64) -> Int64:
        """Return the ids of all steps of a sequence, (size, steps), -1 where it is padded."""
        if self.length is None:
            return first
        time = np.arange(self.steps)
        ids = first[:, None] + (time - self.burn_in) * apart
        if self.padded:
            begin, end = self.reach(drawn)
            ids[(time < begin[:, None]) | (time >= end[:, None])] = -1
        return ids

    def is_within(self, drawn: Draw, first_row: Int64, complete: Int64) -> npt.NDArray[np.bool_]:
        """Return which sequences are as long as they must be."""
        return np.asarray(drawn.ends - drawn.positions >= (self.length or 1 if self.whole else 1))


@dataclass(frozen=True)
class NSteps(Form):
    """`n_step` steps folded into one, their rewards summed up, discounted by `gamma`."""

    n_step: int
    gamma: float


@dataclass(frozen=True)
class Offsets(Form):
    """Rows at places of their own of each column, counted from the drawn step.

    Attributes
    ----------
    columns : tuple of (str, tuple of int)
        The columns, and their offsets, which ascend.
    padding : {"edge", "zeros"}, optional
        What rows outside of the episode are: the nearest one, or zeros, and False in a mask. None where there are no such rows.
    """

    columns: tuple[tuple[str, tuple[int, ...]], ...]
    padding: str | None = None

    @cached_property
    def before(self) -> int:
        """Steps that must come before the drawn one, where nothing is padded."""
        return max(0, *(-offsets[0] for _, offsets in self.columns))

    @cached_property
    def needed(self) -> int:
        """Steps that must follow it, with its own; an observation may be the episode's last, which is none of a step."""
        return max(1, *(offsets[-1] + (not is_observation(path)) for path, offsets in self.columns))

    @property
    def notes(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """``_firsts`` tells the first row that there is of each episode."""
        return {"_firsts": ((), "int64")}

    def chosen(self, paths: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return those of its own columns that are asked for."""
        own = tuple(path for path, _ in self.columns)
        for path in paths or ():
            if path not in own:
                raise InputError(f"columns: the windows have no {path!r}; they have {', '.join(own)}")
        return own if paths is None else paths

    def first_step(self, drawn: Draw) -> Int64:
        """Return the first row that is read."""
        return np.asarray(np.maximum(drawn.notes["_firsts"], drawn.positions - self.before))

    def is_within(self, drawn: Draw, first_row: Int64, complete: Int64) -> npt.NDArray[np.bool_]:
        """Return which windows have all steps that they must have."""
        if self.padding is not None:
            return np.asarray(drawn.ends > drawn.positions)
        has_before = drawn.positions - self.before >= drawn.notes["_firsts"]
        return np.asarray(has_before & (drawn.ends - drawn.positions >= self.needed))


@dataclass(frozen=True)
class Rows(Form):
    """`length` consecutive rows, also the last ones of episodes, on into the next episodes.

    ``_firsts`` tells the first row of each row's episode.
    """

    length: int

    @property
    def steps(self) -> int:
        """Rows on the axis of time."""
        return self.length

    @property
    def notes(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Of each row: the first of its episode, and whether it is that, or the last."""
        return {"_firsts": ((self.length,), "int64"), "is_first": ((self.length,), "bool"), "is_last": ((self.length,), "bool")}

    def ids(self, drawn: Draw, first: Int64, apart: int | Int64) -> Int64:
        """Return the names of all rows, (size, length), -1 where one is an episode's last, so no step."""
        return np.where(drawn.notes["is_last"], -1, first[:, None] + np.arange(self.length) * apart)

    def is_within(self, drawn: Draw, first_row: Int64, complete: Int64) -> npt.NDArray[np.bool_]:
        """Return which sequences' rows are all there."""
        return np.asarray(drawn.positions + self.length <= complete)


@dataclass(frozen=True)
class Relabelled(Form):
    """Single steps, some with a goal that was reached elsewhere in their episode, and its reward.

    ``relabelled`` tells which, and ``_goals`` the rows where those goals were reached.
    """

    reward: Callable[[dict[str, Any]], Any]

    @property
    def notes(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Of each step: whether it has another goal, and where that was reached."""
        return {"relabelled": ((), "bool"), "_goals": ((), "int64")}

    def oldest_row(self, drawn: Draw) -> Int64:
        """Return the row of the step, or of its goal."""
        return np.asarray(np.minimum(drawn.positions, drawn.notes["_goals"]))

    def is_within(self, drawn: Draw, first_row: Int64, complete: Int64) -> npt.NDArray[np.bool_]:
        """Return which goals are there."""
        goals = drawn.notes["_goals"]
        return np.asarray((goals >= first_row) & (goals <= drawn.ends))
