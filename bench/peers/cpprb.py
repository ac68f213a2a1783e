"""cpprb's buffer, in RAM and in memory-mapped files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.peers.peer import Peer
from bench.transitions import Transitions

PART = 2_000  # steps that are added at once


class Cpprb(Peer):
    """`ReplayBuffer` of obs and next_obs, stacked."""

    name, needs = "cpprb", (("cpprb", "cpprb"),)

    def __init__(self, transitions: Transitions, directory: Path, seed: int) -> None:
        from cpprb import ReplayBuffer

        np.random.seed(seed)  # noqa: NPY002 - what it draws with
        self._transitions, observations = transitions, transitions.observations
        obs = {"shape": transitions.shape, "dtype": transitions.frames.dtype}
        flag = {"dtype": np.bool_}
        kinds = {"obs": obs, "next_obs": obs, "action": {"dtype": np.int64}, "reward": {}, "terminated": flag, "truncated": flag}
        n = len(observations) - 1
        self._buffer = ReplayBuffer(n, kinds, **self._options(directory))
        for first in range(0, n, PART):
            last = min(first + PART, n)
            steps = slice(transitions.first + first, transitions.first + last)
            flags = np.zeros(last - first, np.bool_)
            self._buffer.add(
                obs=observations[first:last],
                next_obs=observations[first + 1 : last + 1],
                action=transitions.action[steps],
                reward=transitions.reward[steps],
                terminated=flags,
                truncated=flags,
            )

    def _options(self, directory: Path) -> dict[str, Any]:
        return {}

    def sample(self, size: int) -> Any:
        """Draw steps, and have the batch hold tensors."""
        return {name: torch.from_numpy(values) for name, values in self._buffer.sample(size).items()}

    def columns(self, batch: Any) -> dict[str, Any]:
        """Return the columns that all have."""
        return {name: batch[name] for name in ("obs", "next_obs", "action", "reward")}


class MemoryMapped(Cpprb):
    """`ReplayBuffer` with `mmap_prefix`."""

    name, where = "cpprb, mmap", "disk"

    def _options(self, directory: Path) -> dict[str, Any]:
        return {"mmap_prefix": str(directory / "columns")}
