"""TorchRL's buffers: stacks in RAM or in memory-mapped files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from bench.peers.peer import Peer
from bench.transitions import Transitions

PART = 2_000  # steps that are added at once
PREFETCH = 2


class TorchRL(Peer):
    """`ReplayBuffer` with `LazyTensorStorage`."""

    name, needs = "TorchRL, LazyTensorStorage", (("torchrl", "torchrl"),)
    torch_works = True
    prefetch: ClassVar[int | None] = None

    def __init__(self, transitions: Transitions, directory: Path, seed: int) -> None:
        from tensordict import TensorDict
        from torchrl.data import ReplayBuffer

        torch.manual_seed(seed)
        self._transitions, observations = transitions, transitions.observations
        n = len(observations) - 1
        self._storage = self._make_storage(n, directory)
        buffer = ReplayBuffer(storage=self._storage, batch_size=PART)
        for first in range(0, n, PART):
            some = slice(first, min(first + PART, n))
            steps = slice(transitions.first + some.start, transitions.first + some.stop)
            flags = torch.zeros(some.stop - some.start, 1, dtype=torch.bool)
            later = np.ascontiguousarray(observations[some.start + 1 : some.stop + 1])
            now = {
                "obs": torch.from_numpy(np.ascontiguousarray(observations[some])),
                "action": torch.from_numpy(transitions.action[steps]),
                "next": TensorDict(
                    {
                        "obs": torch.from_numpy(later),
                        "reward": torch.from_numpy(transitions.reward[steps])[:, None],
                        "terminated": flags,
                        "truncated": flags,
                    },
                    [len(flags)],
                ),
            }
            buffer.extend(TensorDict(now, [len(flags)]))
        self._buffer: Any = None
        self._size = 0

    def _make_storage(self, n: int, directory: Path) -> Any:
        from torchrl.data import LazyTensorStorage

        return LazyTensorStorage(n)

    def prepare(self, size: int) -> None:
        """Make a buffer of such batches, over the same storage."""
        from torchrl.data import ReplayBuffer

        if size != self._size:
            self.close()
            self._buffer, self._size = ReplayBuffer(storage=self._storage, batch_size=size, prefetch=self.prefetch), size

    def sample(self, size: int) -> Any:
        """Draw steps."""
        return self._buffer.sample()

    def columns(self, batch: Any) -> dict[str, Any]:
        """Return the columns that all have."""
        later = batch["next"]
        return {"obs": batch["obs"], "next_obs": later["obs"], "action": batch["action"], "reward": later["reward"]}

    def close(self) -> None:
        """Stop its threads."""
        if self._buffer is not None and self.prefetch:
            self._buffer.shutdown()


class Prefetching(TorchRL):
    """`ReplayBuffer` with `LazyTensorStorage`, and threads that fill batches beforehand."""

    name, prefetches, prefetch = f"TorchRL, LazyTensorStorage, prefetch={PREFETCH}", True, PREFETCH


class MemoryMapped(TorchRL):
    """`ReplayBuffer` with `LazyMemmapStorage`."""

    name, where = "TorchRL, LazyMemmapStorage", "disk"

    def _make_storage(self, n: int, directory: Path) -> Any:
        from torchrl.data import LazyMemmapStorage

        return LazyMemmapStorage(n, scratch_dir=str(directory / "memmap"))


class MemoryMappedPrefetching(MemoryMapped):
    """`ReplayBuffer` with `LazyMemmapStorage`, and threads that fill batches beforehand."""

    name, prefetches, prefetch = f"TorchRL, LazyMemmapStorage, prefetch={PREFETCH}", True, PREFETCH
