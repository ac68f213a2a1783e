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
    needs: ClassVar[tuple[str, ...]] = ("stable-baselines3",)
    torch_works = True
    options: ClassVar[dict[str, Any]] = {}

    def fill(self, directory: Path) -> None:
        """Write its arrays, of which `optimize_memory_usage` has one observation more and no next ones."""
        from stable_baselines3.common.buffers import ReplayBuffer

        transitions, first = self._transitions, self._transitions.first
        observations, n = transitions.observations, transitions.n - first
        size = n + bool(self.options)
        self._buffer: Any = ReplayBuffer(size, *spaces_of(transitions), device="cpu", **self.options)
        self._buffer.observations[:, 0] = observations[:size]
        if not self.options:
            self._buffer.next_observations[:, 0] = observations[1:]
        self._buffer.actions[:n, 0, 0], self._buffer.rewards[:n, 0] = transitions.action[first:], transitions.reward[first:]
        self._buffer.full, self._buffer.pos = True, size - 1  # where it would write next, and what it does not draw then

    def sample(self, size: int) -> Any:
        """Draw steps."""
        return self._buffer.sample(size)

    def columns(self, batch: Any) -> dict[str, Any]:
        """Return the columns that all have."""
        names = {"obs": "observations", "next_obs": "next_observations", "action": "actions", "reward": "rewards"}
        return {name: getattr(batch, theirs) for name, theirs in names.items()}


class OptimizedMemory(StableBaselines3):
    """`ReplayBuffer` with `optimize_memory_usage`, which excludes timeouts: next_obs is the next step's obs."""

    name = "SB3, optimize_memory_usage"
    options: ClassVar[dict[str, Any]] = {"optimize_memory_usage": True, "handle_timeout_termination": False}


class ExtraBuffers(StableBaselines3):
    """`CompressedReplayBuffer` of sb3-extra-buffers, whose time goes into a Python call for each observation."""

    name = "sb3-extra-buffers, LZ4"
    needs = (*StableBaselines3.needs, "sb3-extra-buffers", "lz4")

    @classmethod
    def unfit(cls, transitions: Transitions) -> str:
        """Refuse what is no image."""
        return "" if transitions.frames.dtype == np.uint8 else "sb3-extra-buffers compresses images alone"

    def fill(self, directory: Path) -> None:
        """Add steps, one by one."""
        from sb3_extra_buffers.compressed import CompressedReplayBuffer

        n = self._transitions.n - self._transitions.first
        spaces = spaces_of(self._transitions)
        self._buffer = CompressedReplayBuffer(n, *spaces, device="cpu", compression_method="lz4-block/1")
        for step in self._transitions.parts(1):
            self._buffer.add(step["obs"], step["next_obs"], step["action"], step["reward"], step["terminated"], [{}])
