"""memmap-replay-buffer: memory-mapped episodes, read step by step through PyTorch's `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.peers.peer import Peer
from bench.transitions import ACTIONS, Transitions

DTYPES = {"uint8": "uint8", "float32": "float"}


class Memmap(Peer):
    """`ReplayBuffer.dataloader(n_steps=1)`, of stacks."""

    name, where, needs = "memmap-replay-buffer", "disk", (("memmap_replay_buffer", "memmap-replay-buffer"),)
    slow, torch_works = True, True

    def __init__(self, transitions: Transitions, directory: Path, seed: int) -> None:
        from memmap_replay_buffer import ReplayBuffer

        torch.manual_seed(seed)
        self._transitions, observations, first = transitions, transitions.observations, transitions.first
        n = len(observations)
        fields = {
            "obs": (DTYPES[observations.dtype.name], transitions.shape),
            "action": "int",
            "reward": "float",
            "terminated": "bool",
            "truncated": "bool",
        }
        self._buffer = ReplayBuffer(directory / "episodes", max_episodes=1, max_timesteps=n, fields=fields, overwrite=True)
        flags = np.zeros(n, np.bool_)
        action, reward = np.arange(first, first + n) % ACTIONS, np.arange(first, first + n, dtype=np.float32)
        self._buffer.store_episode(
            obs=observations, action=action.astype(np.int32), reward=reward, terminated=flags, truncated=flags
        )
        self._batches: Iterator[Any] = iter(())

    def prepare(self, size: int) -> None:
        """Make a data loader of such batches."""
        flat = ("action", "reward", "terminated", "truncated")
        loader = self._buffer.dataloader(
            size, n_steps=1, current_fields=("obs", *flat), next_fields=("obs",), shuffle=True, drop_last=True
        )

        def batches() -> Iterator[Any]:
            while True:
                yield from loader

        self._batches = batches()

    def sample(self, size: int) -> Any:
        """Take a batch."""
        return next(self._batches)

    def columns(self, batch: Any) -> dict[str, Any]:
        """Return the columns that all have."""
        return {name: batch[name] for name in ("obs", "next_obs", "action", "reward")}
