"""Many steps of one stream at once: where each goes, and the rows they make. Pure; the recorder writes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import StackError
from diskbuffer.recording.equality import compare_rows, compare_stacks, float_bytes

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


def same_rows(a: Array, b: Array) -> Bools:
    """Tell which rows of two arrays, of one dtype, have the same values; NaN counts as itself."""
    same = np.ones(len(a), np.bool_)
    if len(a) and a.__array_interface__ != b.__array_interface__:  # a trajectory's: what a step led to is the next one's
        a, b = _whole_rows(a), _whole_rows(b)
        size = math.prod(a.shape[1:]) * a.itemsize
        compare_rows(a.ctypes.data, a.strides[0], b.ctypes.data, b.strides[0], size, float_bytes(a.dtype), same)
    return same


def same_stacks(obs: Array, next_obs: Array) -> tuple[Bools, Bools]:
    """Compare the stacks, (steps, frame_stack, ...), of which steps consist; each is read from memory once.

    Returns which are those that the step before led to, True for the first, and which lead to themselves, moved on by a frame.
    """
    same, rolls = np.ones((2, len(obs)), np.bool_)
    if len(obs):
        obs, next_obs = _whole_rows(obs), _whole_rows(next_obs)
        places = obs.ctypes.data, obs.strides[0], next_obs.ctypes.data, next_obs.strides[0]
        frame = math.prod(obs.shape[2:]) * obs.itemsize
        compare_stacks(*places, obs.shape[1], frame, float_bytes(obs.dtype), same, rolls)
    return same, rolls


def _whole_rows(array: Array) -> Array:
    """Return an array of which each row is contiguous."""
    return array if array[:1].flags.c_contiguous else np.ascontiguousarray(array)


def refuse_what_does_not_roll(path: str, rolls: Bools, frame_stack: int) -> None:
    """Refuse steps whose stacks do not lead to themselves, moved on by a frame."""
    if not rolls.all():
        raise StackError(does_not_roll(f"{path} of step {int(np.flatnonzero(~rolls)[0])} of the arrays", frame_stack))


def does_not_roll(what: str, frame_stack: int) -> str:
    """Tell what is wrong with an observation that is no rolling stack, and what can be done."""
    return (
        f"{what}: expected a rolling stack of {frame_stack} frames, but next_obs is not obs moved on by one frame, so that they "
        "cannot be stored as single frames. If each observation is as it should be, create a store with frame_stack=1, which "
        "holds them whole"
    )


def starts_of(obs: Array, zeros: bool) -> Bools:
    """Tell which stacks, (n, frame_stack, ...), are filled up as an episode's first one is: with zeros, or its first frame."""
    return same_rows(obs[:, :-1], np.zeros_like(obs[:, :-1]) if zeros else obs[:, 1:])


def lead_frames(obs: Array, frames: int, rows: int, zeros: bool, *, stacked: bool) -> Array:
    """Return a lead-in of `rows` rows before an observation, of which the last `frames` are the earlier ones of its stack.

    What is before these, and all of it where the observation is a single frame, is what fills up an episode's first stack.
    """
    filling = np.zeros_like(obs[-1] if stacked else obs) if zeros else (obs[0] if stacked else obs)
    found = np.empty((rows, *filling.shape), filling.dtype)
    found[:] = filling
    if stacked:
        found[rows - frames :] = obs[:-1]
    return found


def lead_rows(positions: Int64, wanted: Bools, frames: int, segment_rows: int) -> Int64:
    """Return how many rows of a lead-in, which needs `frames`, come before each of some steps.

    `positions` are the steps' without any. No episode's first row may be the first of a segment while its lead-in lies in the one
    before: once that was evicted, nothing would tell that the episode's first stack is not there. There is one row more then.
    """
    rows, so_far = np.zeros(len(positions), np.int64), 0
    for step in np.flatnonzero(wanted).tolist():
        rows[step] = frames + ((int(positions[step]) + so_far + frames) % segment_rows == 0)
        so_far += int(rows[step])
    return rows


@dataclass(frozen=True)
class Block:
    """Steps, and the rows that they make after the newest row of a stream.

    Attributes
    ----------
    head : int
        Position of the newest row before.
    goes_on : (steps,) bool
        Whether a step starts at the observation that the one before it led to. If not, it starts an episode, and that
        observation has a row of its own.
    ended : (steps,) bool
        Whether the episode is over after a step.
    leads : (steps,) int64
        Rows of a lead-in before a step's.
    """

    head: int
    goes_on: Bools
    ended: Bools
    leads: Int64

    @cached_property
    def positions(self) -> Int64:
        """The row of each step."""
        return self.head + np.arange(len(self.goes_on)) + np.cumsum(~self.goes_on) + np.cumsum(self.leads)

    @cached_property
    def lasts(self) -> Int64:
        """Steps after whose row stands that of the observation they led to: at an episode's end, and the newest."""
        return np.flatnonzero(np.append(~self.goes_on[1:], True))

    @cached_property
    def new_head(self) -> int:
        """Position of the newest row after these steps."""
        return int(self.positions[-1]) + 1

    @cached_property
    def lead_ins(self) -> Int64:
        """Lead-ins, (n, 2), as `Index.add_leads` takes them."""
        with_one = np.flatnonzero(self.leads)
        return np.stack([self.positions[with_one], self.positions[with_one] - self.leads[with_one]], axis=1)

    @cached_property
    def lead_rows(self) -> Int64:
        """The rows of lead-ins."""
        ends = np.repeat(self.positions - np.cumsum(self.leads), self.leads)
        return ends + np.arange(len(ends))

    @cached_property
    def starts(self) -> Int64:
        """Rows where episodes start; each row of a lead-in is one."""
        starts = self.positions[~self.goes_on]
        return np.sort(np.concatenate([starts, self.lead_rows])) if self.leads.any() else starts

    @cached_property
    def _shape(self) -> tuple[int]:
        return (self.new_head - self.head + 1,)

    def values(self, values: Array) -> Array:
        """Put what was done in the order of rows, from the newest row before to the new one."""
        rows = np.zeros((*self._shape, *values.shape[1:]), values.dtype)
        rows[self.positions - self.head] = values
        return rows

    def observations(self, before: Array, after: Array, leading: list[Array]) -> Array:
        """Put observations in the same order, those of lead-ins among them; what a step led to is what the next starts at."""
        rows = np.empty((*self._shape, *before.shape[1:]), before.dtype)
        rows[0] = 0  # the newest row before has its own
        rows[self.positions + 1 - self.head] = after
        rows[self.positions[~self.goes_on] - self.head] = before[~self.goes_on]
        if leading:
            rows[self.lead_rows - self.head] = np.concatenate(leading)
        return rows

    def flags(self, cut: bool) -> tuple[Bools, Bools, Bools]:
        """Return three flags of each row, from the newest before (`cut` if that ends an episode here) to the new one.

        ``is_last``; whether it is a row of a lead-in; and whether that begins with it.
        """
        last, leading, first = np.zeros((3, *self._shape), np.bool_)
        last[self.positions[self.lasts] + 1 - self.head] = True
        last[-1] = self.ended[-1]
        last[0] = cut
        leading[self.lead_rows - self.head] = True
        first[self.lead_ins[:, 1] - self.head] = True
        return last | leading, leading, first
