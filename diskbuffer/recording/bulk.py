"""Many steps of one stream at once: where each goes, and the rows they make. Pure; the recorder writes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import StackError

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


def same_rows(a: Array, b: Array) -> Bools:
    """Tell which rows of two arrays are the same, byte for byte."""
    if len(a) == 0:
        return np.zeros(0, np.bool_)
    left, right = (np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8) for x in (a, b))
    return np.asarray((left == right).all(axis=1))


def check_stacks(path: str, obs: Array, next_obs: Array, goes_on: Bools, zeros: bool) -> None:
    """Refuse stacks, (steps, frame_stack, ...), that are no rolling stacks; `goes_on` as in `Block`."""
    rolls = same_rows(obs[:, 1:], next_obs[:, :-1])
    filling = np.zeros_like(obs[:, :-1]) if zeros else obs[:, 1:]
    fine = rolls & (goes_on | same_rows(obs[:, :-1], filling))
    if not fine.all():
        step = int(np.flatnonzero(~fine)[0])
        raise StackError(
            f"{path}: step {step} of the arrays is no rolling stack of {obs.shape[1]} frames: "
            + (
                "next_obs is not obs moved on by one frame"
                if not rolls[step]
                else f"it starts an episode, but is not filled with {'zeros' if zeros else 'copies of its newest frame'}"
            )
            + ". Give single frames (the newest of each stack), or check frame_stack= and padding="
        )


@dataclass(frozen=True)
class Block:
    """Steps, and the rows that they make behind the newest row of a stream.

    Attributes
    ----------
    head : int
        Position of the newest row before.
    goes_on : (steps,) bool
        Whether a step starts at the observation that the one before it led to. If not, it starts an episode, and that
        observation has a row of its own.
    ended : (steps,) bool
        Whether the episode is over after a step.
    """

    head: int
    goes_on: Bools
    ended: Bools

    @cached_property
    def positions(self) -> Int64:
        """The row of each step."""
        return self.head + np.arange(len(self.goes_on)) + np.cumsum(~self.goes_on)

    @cached_property
    def lasts(self) -> Int64:
        """Steps behind whose row stands that of the observation they led to: at an episode's end, and the newest."""
        return np.flatnonzero(np.append(~self.goes_on[1:], True))

    @cached_property
    def new_head(self) -> int:
        """Position of the newest row behind these steps."""
        return int(self.positions[-1]) + 1

    @cached_property
    def starts(self) -> Int64:
        """Rows where episodes start."""
        return self.positions[~self.goes_on]

    def rows(self, values: Array, following: Array | None) -> Array:
        """Put values in the order of rows, from the newest row before to the new one; `following` after episodes' ends."""
        rows = np.zeros((self.new_head - self.head + 1, *values.shape[1:]), values.dtype)
        rows[self.positions - self.head] = values
        if following is not None:
            rows[self.positions[self.lasts] + 1 - self.head] = following[self.lasts]
        return rows

    def is_last(self, cut: bool) -> Bools:
        """Return the flag of each row, from the newest before (`cut` if that ends an episode here) to the new one."""
        flags = np.zeros(self.new_head - self.head + 1, np.bool_)
        flags[self.positions[self.lasts] + 1 - self.head] = True
        flags[-1] = self.ended[-1]
        flags[0] = cut
        return flags
