"""What every peer of a benchmark holds: one stream of frames, and the transitions between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ACTIONS = 6

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Transitions:
    """Consecutive frames of one environment in a file, and how many of them make an observation.

    Step k goes from frame k to frame k + 1. Its reward is k, so that a batch tells which steps it is of; its action is k
    modulo 6. Observations are stacks of the last frames. Steps before `first` have no whole stack, and only some peers hold them.
    """

    path: Path
    stack: int = 1

    @classmethod
    def save(cls, frames: Array, path: Path, stack: int = 1) -> Transitions:
        """Write (n + 1, ...) frames to `path`, a ``.npy`` file."""
        np.save(path, frames)
        return cls(path, stack)

    @cached_property
    def frames(self) -> Array:
        """(n + 1, ...) frames, in RAM."""
        loaded: Array = np.load(self.path)
        return loaded

    @property
    def n(self) -> int:
        """How many steps there are."""
        return len(self.frames) - 1

    @property
    def first(self) -> int:
        """The first step with a whole stack."""
        return self.stack - 1

    @cached_property
    def action(self) -> npt.NDArray[np.int64]:
        """(n,) actions."""
        return np.arange(self.n) % ACTIONS

    @cached_property
    def reward(self) -> npt.NDArray[np.float32]:
        """(n,) rewards: the number of the step; float32 tells numbers apart up to 16 million."""
        return np.arange(self.n, dtype=np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an observation: with one frame there is no axis of the stack."""
        one = self.frames.shape[1:]
        return one if self.stack == 1 else (self.stack, *one)

    @property
    def observations(self) -> Array:
        """(n - first + 1, ...) observations, from that of step `first` on: a view of the frames."""
        if self.stack == 1:
            return self.frames
        windows = np.lib.stride_tricks.sliding_window_view(self.frames, self.stack, axis=0)
        return np.moveaxis(windows, -1, 1)

    def parts(self, size: int) -> Iterator[dict[str, Array]]:
        """Yield all columns of the steps with a whole stack, so many steps at a time."""
        observations = self.observations
        for begin in range(0, len(observations) - 1, size):
            end = min(begin + size, len(observations) - 1)
            steps = slice(self.first + begin, self.first + end)
            now, later = (np.ascontiguousarray(observations[begin + k : end + k]) for k in (0, 1))
            found = {"obs": now, "next_obs": later, "action": self.action[steps], "reward": self.reward[steps]}
            yield {**found, "terminated": np.zeros(end - begin, np.bool_), "truncated": np.zeros(end - begin, np.bool_)}

    def wrong(self, batch: dict[str, Array]) -> str:
        """Return what is wrong with a batch of ``obs``, ``next_obs``, ``action`` and ``reward``; nothing, if it is right."""
        steps = np.asarray(batch["reward"]).reshape(-1).astype(np.int64)
        if ((steps < 0) | (steps >= self.n)).any():
            return "it has rewards that no step has"
        if not (self.action[steps] == np.asarray(batch["action"]).reshape(-1)).all():
            return "its actions are not those of its steps"
        whole = steps >= self.first
        at, observations = steps[whole] - self.first, self.observations
        for name, expected in (("obs", observations[at]), ("next_obs", observations[at + 1])):
            found = np.asarray(batch[name])
            if found.shape != (len(steps), *self.shape):
                return f"its {name} has shape {found.shape}, not {(len(steps), *self.shape)}"
            if found.dtype != self.frames.dtype:
                return f"its {name} is of {found.dtype}, not {self.frames.dtype}"
            if not (found[whole] == expected).all():
                return f"its {name} is not what was stored"
        return ""
