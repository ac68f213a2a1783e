"""TorchRL's buffers: stacks in RAM or in memory-mapped files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch

from bench.peers.peer import PART, Peer
from bench.transitions import Array

PREFETCH = 2


def steps_of(part: dict[str, Array]) -> Any:
    """Return steps as TorchRL nests them."""
    from tensordict import TensorDict

    found, n = {name: torch.from_numpy(values) for name, values in part.items()}, [len(part["action"])]
    ends = {name: found[name][:, None] for name in ("reward", "terminated", "truncated")}
    later = TensorDict({"obs": found["next_obs"], **ends}, n)
    return TensorDict({"obs": found["obs"], "action": found["action"], "next": later}, n)


class TorchRL(Peer):
    """`ReplayBuffer` with `LazyTensorStorage`."""

    name, needs, torch_works = "TorchRL, LazyTensorStorage", ("torchrl",), True
    mapped: ClassVar[bool] = False
    prefetch: ClassVar[int | None] = None
    _buffer: Any = None

    def fill(self, directory: Path) -> None:
        """Fill a storage."""
        from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer

        n = self._transitions.n - self._transitions.first
        self._storage = LazyMemmapStorage(n, scratch_dir=str(directory / "memmap")) if self.mapped else LazyTensorStorage(n)
        filling = ReplayBuffer(storage=self._storage, batch_size=PART)
        for part in self._transitions.parts(PART):
            filling.extend(steps_of(part))

    def prepare(self, size: int) -> None:
        """Make a buffer of such batches, over the same storage."""
        from torchrl.data import ReplayBuffer

        self.close()
        self._buffer = ReplayBuffer(storage=self._storage, batch_size=size, prefetch=self.prefetch)

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
    """The same, with threads that fill batches beforehand."""

    name, prefetches, prefetch = f"{TorchRL.name}, prefetch={PREFETCH}", True, PREFETCH


class MemoryMapped(TorchRL):
    """`ReplayBuffer` with `LazyMemmapStorage`."""

    name, where, mapped = "TorchRL, LazyMemmapStorage", "disk", True


class MemoryMappedPrefetching(MemoryMapped):
    """The same, with threads that fill batches beforehand."""

    name, prefetches, prefetch = f"{MemoryMapped.name}, prefetch={PREFETCH}", True, PREFETCH
