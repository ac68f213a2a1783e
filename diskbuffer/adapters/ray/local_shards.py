"""Shards whose files this process can map: they are read here, through the page cache, and nothing goes through Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch

from diskbuffer import ReplayBuffer, Sampler
from diskbuffer.adapters.ray.names import Together
from diskbuffer.adapters.ray.shard import Disk
from diskbuffer.errors import DiskBufferError, NotAStoreError
from diskbuffer.plugin import Batch, Transform, writers_of

_SHARE = 20  # of the time, refreshing takes one part in so many at most


class LocalShards:
    """Read the stores of all shards on this machine's disk as one.

    Parameters
    ----------
    path : Path
    every : float
        Seconds between two looks at what was added.
    options : dict
        For `ReplayBuffer`: seed, frame_stack, threads.
    """

    def __init__(self, path: Path, every: float, options: dict[str, Any]) -> None:
        self._path, self._every = path, every
        self._names = Together.of(path)
        self._buffer = ReplayBuffer(path, mode="r", **options)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="diskbuffer-near", daemon=True)
        self._thread.start()

    @classmethod
    def find(cls, path: Path, disks: dict[int, Disk | None], every: float, options: dict[str, Any]) -> LocalShards | None:
        """Return the reader of the shards that are on this machine's disk; None where there are none.

        Parameters
        ----------
        disks : dict of int to Disk
            Where each shard says that its store is.
        """
        here = Disk.of(path)
        if here is None or here not in disks.values():
            return None
        try:
            return cls(path, every, options)
        except NotAStoreError:
            return None

    @property
    def shards(self) -> frozenset[int]:
        """The numbers of the shards that are read here."""
        return self._names.shards

    def __len__(self) -> int:
        """Return how many steps can be sampled."""
        return len(self._buffer)

    def refresh(self) -> None:
        """See what shards have added."""
        if len(writers_of(self._path) or ()) > len(self._names.shards):
            self._names = Together.of(self._path)
        self._buffer.refresh()

    def _keep_up(self) -> None:
        pause = self._every
        while not self._stopped.wait(pause):
            begin = time.perf_counter()
            try:
                self.refresh()
            except DiskBufferError:  # a shard is being recovered, say: what was there is read meanwhile
                continue
            pause = max(self._every, _SHARE * (time.perf_counter() - begin))

    def sample(self, size: int, sampler: Sampler | None) -> Batch:
        """Draw steps from all shards here."""
        return self._renamed(self._buffer.sample(size, sampler))

    def loader(
        self,
        size: int,
        sampler: Sampler | None,
        device: torch.device | str | None,
        transform: Transform | None,
        prefetch: int,
        threads: int | None,
    ) -> Generator[Any, None, None]:
        """Yield batches that threads fill ahead."""
        wrapped: Callable[[Batch], Any] | None = None
        if transform is not None:
            wrapped = lambda batch: transform(self._renamed(batch))  # noqa: E731
        for batch in self._buffer.loader(size, sampler, device=device, transform=wrapped, prefetch=prefetch, threads=threads):
            yield batch if wrapped is not None else self._renamed(batch)

    def _renamed(self, batch: Batch) -> Batch:
        steps: torch.Tensor = batch["steps"]
        own = steps.cpu().numpy()
        if not self._names.know(own):  # of a shard that came while these were read
            self._names = Together.of(self._path)
        batch["steps"] = torch.from_numpy(self._names.unique(own)).to(steps.device)
        return batch

    def close(self) -> None:
        """Stop reading."""
        self._stopped.set()
        self._thread.join()
        self._buffer.close()
