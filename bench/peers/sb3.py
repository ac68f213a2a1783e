"""Stable-Baselines3's buffers, and those of sb3-extra-buffers, which compress each observation in RAM."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bench.peers.peer import Peer
from bench.transitions import ACTIONS, Transitions


def spaces_of(transitions: Transitions) -> tuple[Any, Any]:
    """Return the spaces of observations and of actions."""
    from gymnasium import spaces

    frames = transitions.frames
    low, high = (0, 255) if frames.dtype == np.uint8 else (-np.inf, np.inf)
    return spaces.Box(low, high, transitions.shape, frames.dtype.type), spaces.Discrete(ACTIONS)


class StableBaselines3(Peer):
    """`ReplayBuffer`, as it comes: obs and next_obs, each stacked."""

    name = "SB3"
    needs: ClassVar[tuple[tuple[str, str], ...]] = (("stable_baselines3", "stable-baselines3"),)
    torch_works = True
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, transitions: Transitions, directory: Path, seed: int) -> None:
        from stable_baselines3.common.buffers import ReplayBuffer

        np.random.seed(seed)  # noqa: NPY002 - what it draws with
        self._transitions, first = transitions, transitions.first
        observations = transitions.observations
        n = len(observations) - 1
        size = n + 1 if self.options.get("optimize_memory_usage") else n
        self._buffer = ReplayBuffer(size, *spaces_of(transitions), device="cpu", **self.options)
        if size == n:
            self._buffer.next_observations[:, 0] = observations[1:]
        self._buffer.observations[:, 0] = observations[:size]
        self._buffer.actions[:n, 0, 0], self._buffer.rewards[:n, 0] = transitions.action[first:], transitions.reward[first:]
        self._buffer.full, self._buffer.pos = True, size - 1  # where it would write next, and what it does not draw then

    def sample(self, size: int) -> Any:
        """Draw steps."""
        return self._buffer.sample(size)

    def columns(self, batch: Any) -> dict[str, Any]:
        """Return the columns that all have."""
        return {
            "obs": batch.observations,
            "next_obs": batch.next_observations,
            "action": batch.actions,
            "reward": batch.rewards,
        }


class OptimizedMemory(StableBaselines3):
    """`ReplayBuffer` with `optimize_memory_usage`: next_obs is the next step's obs."""

    name = "SB3, optimize_memory_usage"
    options: ClassVar[dict[str, Any]] = {
        "optimize_memory_usage": True,
        "handle_timeout_termination": False,
    }  # the one excludes the other


class ExtraBuffers(StableBaselines3):
    """`CompressedReplayBuffer` of sb3-extra-buffers.

    Decoding takes about as long with LZ4, zstd and run lengths; most of the time goes into a Python call for each observation.
    """

    name = "sb3-extra-buffers, LZ4"
    needs = (*StableBaselines3.needs, ("sb3_extra_buffers", "sb3-extra-buffers"), ("lz4", "lz4"))
    method = "lz4-block/1"

    @classmethod
    def unfit(cls, transitions: Transitions) -> str:
        """Refuse what is no image."""
        return "" if transitions.frames.dtype == np.uint8 else "sb3-extra-buffers compresses images alone"

    def __init__(self, transitions: Transitions, directory: Path, seed: int) -> None:
        from sb3_extra_buffers.compressed import CompressedReplayBuffer

        np.random.seed(seed)  # noqa: NPY002 - what it draws with
        self._transitions, first, done = transitions, transitions.first, np.zeros(1, np.bool_)
        observations = transitions.observations
        n = len(observations) - 1
        self._buffer = CompressedReplayBuffer(n, *spaces_of(transitions), device="cpu", compression_method=self.method)
        for k in range(n):
            action, reward = transitions.action[first + k : first + k + 1], transitions.reward[first + k : first + k + 1]
            self._buffer.add(observations[k : k + 1], observations[k + 1 : k + 2], action, reward, done, [{}])
