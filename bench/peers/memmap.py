"""memmap-replay-buffer: memory-mapped episodes, read step by step through PyTorch's `DataLoader`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.peer import Peer
from bench.transitions import ACTIONS

DTYPES = {"uint8": "uint8", "float32": "float"}


class Memmap(Peer):
    """`ReplayBuffer.dataloader(n_steps=1)`, of stacks."""

    name, where, needs = "memmap-replay-buffer", "disk", ("memmap-replay-buffer",)
    slow, torch_works = True, True

    def fill(self, directory: Path) -> None:
        """Store one episode, the step after the last one, too."""
        from memmap_replay_buffer import ReplayBuffer

        observations, n = self._transitions.observations, len(self._transitions.observations)
        fields: dict[str, Any] = {"obs": (DTYPES[observations.dtype.name], self._transitions.shape)}
        fields |= {"action": "int", "reward": "float", "terminated": "bool", "truncated": "bool"}
        self._buffer = ReplayBuffer(directory / "episodes", max_episodes=1, max_timesteps=n, fields=fields, overwrite=True)
        steps, flags = np.arange(self._transitions.first, self._transitions.first + n), np.zeros(n, np.bool_)
        flat = {"action": (steps % ACTIONS).astype(np.int32), "reward": steps.astype(np.float32)}
        self._buffer.store_episode(obs=observations, **flat, terminated=flags, truncated=flags)

    def prepare(self, size: int) -> None:
        """Make a data loader of such batches."""
        fields = {"current_fields": ("obs", "action", "reward", "terminated", "truncated"), "next_fields": ("obs",)}
        loader = self._buffer.dataloader(size, n_steps=1, **fields, shuffle=True, drop_last=True)
        self._batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def sample(self, size: int) -> Any:
        """Take a batch."""
        return next(self._batches)
