"""TorchRL's collectors on Ray: each of them writes to its own node's disk, and no step passes through the learner's process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diskbuffer import ReplayBuffer, Sampler
from diskbuffer.adapters.ray.cluster import ClusterBuffer
from diskbuffer.adapters.torchrl.collecting import Collected
from diskbuffer.errors import InputError


class CollectorBuffer(Collected):
    """What ``RayCollector(replay_buffer=...)`` takes, over a `ClusterBuffer`.

    Each collector opens a writer with its first batch. It continues the store of a collector that ended, if there is one. What a
    step has is told by the first batch, so that the `ClusterBuffer` is made without ``columns=``.

    Parameters
    ----------
    buffer : ClusterBuffer
        With ``frame_stack=`` where it is to store rolling stacks frame by frame.
    batch_size : int, optional
        Steps in a sample, where `sample` is not told.
    sampler : Sampler, optional
        As of `ClusterBuffer.sample`.
    """

    service_backend = "ray"  # what RayCollector asks for

    def __init__(self, buffer: ClusterBuffer, *, batch_size: int | None = None, sampler: Sampler | None = None) -> None:
        if "columns" in buffer.options:
            raise InputError("what collectors collect tells the columns; make the ClusterBuffer without columns=")
        self.buffer = buffer
        super().__init__(batch_size, sampler, buffer.options.get("frame_stack", 1))

    def client(self) -> CollectorBuffer:
        """Return what a collector is given."""
        return self

    def clients(self, count: int) -> list[CollectorBuffer]:
        """Return what so many collectors are given."""
        return [self] * count

    @property
    def write_count(self) -> int:
        """How many steps were ever added, as far as nodes have told: those of about the last second may be missing."""
        return int(self.buffer.stats()["added"])

    def __len__(self) -> int:
        """Return how many steps can be sampled."""
        return len(self.buffer)

    def _open(self, **how: Any) -> ReplayBuffer:
        return self.buffer.writer(**how)

    def _draw(self, n: int, sampler: Sampler, device: Any) -> dict[str, Any]:
        batch: dict[str, Any] = self.buffer.sample(n, sampler, device=device)
        return batch

    def _load(self, n: int, sampler: Sampler, device: Any) -> Iterator[dict[str, Any]]:
        return self.buffer.loader(n, sampler, device=device)
