"""For PyTorch's `DataLoader`: batches of a buffer as an `IterableDataset`; and batches as numpy arrays."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from diskbuffer.buffer import ReplayBuffer
from diskbuffer.errors import InputError
from diskbuffer.gather.arrays import Batch
from diskbuffer.samplers import Sampler, Uniform
from diskbuffer.samplers.sampler import at_least_one


class BatchDataset(IterableDataset[Any]):
    """Batches of a buffer, endless or so many, for ``DataLoader(dataset, batch_size=None)``.

    Without workers it forwards to `ReplayBuffer.loader`, whose threads decode without the GIL: that is the fastest way. With
    workers, each opens the store for reading, and draws on its own, with another seed in every epoch (``torch.manual_seed`` makes
    them the same in every run); without replacement means without replacement in each worker then.

    Parameters
    ----------
    buffer : ReplayBuffer or path-like
        A path is opened for reading, when the first batch is asked for.
    batch_size : int
    sampler : Sampler, optional
        A `Uniform` where it is missing. Prioritized ones need a buffer that is open for writing, and no workers.
    batches : int, optional
        After how many an iteration ends; of all workers together. None for an endless one.
    prefetch : int
        How many batches threads fill ahead.

    Examples
    --------
    >>> loader = torch.utils.data.DataLoader(BatchDataset("runs/pong", 256), batch_size=None)  # doctest: +SKIP
    """

    def __init__(
        self,
        buffer: ReplayBuffer | str | os.PathLike[str],
        batch_size: int,
        sampler: Sampler | None = None,
        *,
        batches: int | None = None,
        prefetch: int = 3,
    ) -> None:
        self._buffer = buffer if isinstance(buffer, ReplayBuffer) else None
        self.path = buffer.path if isinstance(buffer, ReplayBuffer) else Path(buffer).absolute()
        self._size, self._prefetch = at_least_one("batch_size", batch_size), at_least_one("prefetch", prefetch)
        self._sampler = Uniform() if sampler is None else sampler
        self._unused = copy.deepcopy(self._sampler) if self._sampler.batches == 0 else None  # for workers
        self._passes = 0
        self._batches = None if batches is None else at_least_one("batches", batches)

    def __iter__(self) -> Iterator[Batch]:
        """Yield dicts of tensors, as `ReplayBuffer.sample` returns them."""
        worker = get_worker_info()
        if worker is None:
            if self._buffer is None:
                self._buffer = ReplayBuffer(self.path, mode="r")
            yield from self._of(self._buffer, self._sampler, self._batches)
            return
        if self._unused is None:
            raise InputError("workers need a sampler that has not drawn yet; give the dataset a new one")
        sampler, state = copy.deepcopy(self._unused), self._unused.state_dict()
        self._passes += 1  # of a worker that stays; others get another seed from the DataLoader
        seed = np.random.SeedSequence([state["seed"], worker.seed, self._passes]).generate_state(1)[0]
        sampler.load_state_dict(state | {"seed": int(seed), "batches": 0, "ahead": []})
        share = None if self._batches is None else len(range(worker.id, self._batches, worker.num_workers))
        with ReplayBuffer(self.path, mode="r") as buffer:
            yield from self._of(buffer, sampler, share)

    def _of(self, buffer: ReplayBuffer, sampler: Sampler, batches: int | None) -> Iterator[Batch]:
        yield from itertools.islice(buffer.loader(self._size, sampler, prefetch=self._prefetch), batches)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs: the path, and a sampler."""
        return self.__dict__ | {"_buffer": None, "_sampler": self._unused}


def as_numpy(batch: Batch) -> dict[str, Any]:
    """Return a batch on the CPU as arrays, over the same memory.

    Other frameworks take the tensors themselves, through DLPack: ``jax.dlpack.from_dlpack(batch["reward"])``.
    """
    return {name: as_numpy(value) if isinstance(value, dict) else value.numpy() for name, value in batch.items()}
