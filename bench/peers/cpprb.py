"""cpprb's buffer, in RAM and in memory-mapped files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from bench.peers.peer import PART, Peer


class Cpprb(Peer):
    """`ReplayBuffer` of obs and next_obs, stacked."""

    name, needs = "cpprb", ("cpprb",)
    mapped: ClassVar[bool] = False

    def fill(self, directory: Path) -> None:
        """Add all steps."""
        from cpprb import ReplayBuffer

        transitions = self._transitions
        obs, flag = {"shape": transitions.shape, "dtype": transitions.frames.dtype}, {"dtype": np.bool_}
        kinds = {"obs": obs, "next_obs": obs, "action": {"dtype": np.int64}, "reward": {}, "terminated": flag, "truncated": flag}
        options = {"mmap_prefix": str(directory / "columns")} if self.mapped else {}
        self._buffer = ReplayBuffer(transitions.n - transitions.first, kinds, **options)
        for part in transitions.parts(PART):
            self._buffer.add(**part)

    def sample(self, size: int) -> Any:
        """Draw steps, and have the batch hold tensors."""
        return {name: torch.from_numpy(values) for name, values in self._buffer.sample(size).items()}


class MemoryMapped(Cpprb):
    """`ReplayBuffer` with `mmap_prefix`."""

    name, where, mapped = "cpprb, mmap", "disk", True
