"""For PyTorch's `DataLoader`: batches of a buffer, and its steps by number."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from diskbuffer import ReplayBuffer, Sampler, Uniform
from diskbuffer.errors import InputError
from diskbuffer.plugin import Batch, integer, integer_or_none, local_path, one_of


class BatchDataset(IterableDataset[Any]):
    """Batches of a buffer, endless or so many, for ``DataLoader(dataset, batch_size=None)``.

    Without workers it forwards to `ReplayBuffer.loader`, whose threads decode without the GIL: that is the fastest way. The
    sampler's draws go on from one iteration to the next, and in a copy that was pickled: what was drawn ahead comes first.

    With workers, each opens the store for reading, and draws with a copy of the sampler as it was when the worker began, but for
    the seed: each worker has another in every epoch, made of the sampler's and the `DataLoader`'s (``torch.manual_seed`` makes
    them the same in every run). What was drawn ahead stays with the original, and a sampler without replacement begins an epoch,
    in which every step comes once in each worker.

    In a process group of torch.distributed, each rank without workers reads its share of batches that are drawn for all ranks, as
    `ReplayBuffer.loader` tells, so that `sampler` needs a seed. Workers draw for themselves.

    Parameters
    ----------
    buffer : ReplayBuffer or path-like
        A path is opened for reading, when the first batch is asked for.
    batch_size : int
    sampler : Sampler, optional
        A `Uniform` where it is missing. Prioritized ones need a buffer that is open for writing, and no workers.
    columns : sequence of str, optional
        As in `ReplayBuffer.sample`: these alone are read.
    batches : int, optional
        After how many an iteration ends; of all workers together. None for an endless one.
    prefetch : int
        How many batches threads fill ahead.
    refresh_every : int, optional
        After how many batches a buffer that is open for reading sees what was added and evicted elsewhere; it does so at the
        beginning of every iteration, too. (`ReplayBuffer.loader` counts seconds.) It costs what is new, as
        `ReplayBuffer.refresh` does. None for never.

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
        columns: Sequence[str] | None = None,
        batches: int | None = None,
        prefetch: int = 3,
        refresh_every: int | None = 100,
    ) -> None:
        self._buffer = buffer if isinstance(buffer, ReplayBuffer) else None
        self.path = buffer.path if isinstance(buffer, ReplayBuffer) else local_path(buffer)
        self._size, self._prefetch = integer("batch_size", batch_size), integer("prefetch", prefetch)
        if sampler is not None and not isinstance(sampler, Sampler):
            raise InputError(f"sampler must be a sampler, such as diskbuffer.Uniform(), found {sampler!r}")
        self._sampler = Uniform() if sampler is None else sampler
        self._columns, self._passes = columns, 0
        self._batches = integer_or_none("batches", batches)
        self._refresh_every = integer_or_none("refresh_every", refresh_every)

    def __iter__(self) -> Iterator[Batch]:
        """Yield dicts of tensors, as `ReplayBuffer.sample` returns them."""
        worker = get_worker_info()
        if worker is None:
            if self._buffer is None:
                self._buffer = ReplayBuffer(self.path, mode="r")
            yield from self._of(self._buffer, self._sampler, self._batches)
            return
        self._passes += 1  # of a worker that stays; others get another seed from the DataLoader
        share = None if self._batches is None else len(range(worker.id, self._batches, worker.num_workers))
        with ReplayBuffer(self.path, mode="r") as buffer:
            yield from self._of(buffer, self._sampler_of(worker.seed), share, alone=True)

    def _sampler_of(self, worker_seed: int) -> Sampler:
        """Return a copy of the sampler, as it is, that draws with a seed of its own."""
        sampler, state = copy.deepcopy(self._sampler), self._sampler.state_dict()
        seed = np.random.SeedSequence([state["seed"], worker_seed, self._passes]).generate_state(1)[0]
        if sampler.epochs is not None:  # where an epoch was left in another order is no place in this one
            state["epochs"] = sampler.epochs.at_the_beginning(state["epochs"])
        sampler.load_state_dict(state | {"seed": int(seed), "ahead": []})
        return sampler

    def _of(self, buffer: ReplayBuffer, sampler: Sampler, batches: int | None, *, alone: bool = False) -> Iterator[Batch]:
        if self._refresh_every is not None:
            buffer.refresh()
        rank, world_size = (0, 1) if alone else (None, None)
        how: dict[str, Any] = {"columns": self._columns, "prefetch": self._prefetch}
        loader = buffer.loader(self._size, sampler, rank=rank, world_size=world_size, **how)
        for n, batch in enumerate(itertools.islice(loader, batches), 1):
            yield batch
            if self._refresh_every is not None and n % self._refresh_every == 0:
                buffer.refresh()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs: the path, and the sampler as it is."""
        return self.__dict__ | {"_buffer": None}


class StepDataset(Dataset[Any]):
    """The steps of a buffer that are there when this is made, by number, as PyTorch's samplers and `DataLoader` want them.

    For a store that is not being written to: what is evicted later cannot be read any more. `ReplayBuffer.batches` is the faster
    way to read everything once.

    Parameters
    ----------
    buffer : ReplayBuffer or path-like
        A path is opened for reading. Workers open the store for themselves.
    columns : sequence of str, optional
        As in `ReplayBuffer.at`: these alone are read.

    Examples
    --------
    >>> loader = torch.utils.data.DataLoader(StepDataset("runs/pong"), 256, shuffle=True, num_workers=2)  # doctest: +SKIP
    """

    def __init__(self, buffer: ReplayBuffer | str | os.PathLike[str], columns: Sequence[str] | None = None) -> None:
        self.path = buffer.path if isinstance(buffer, ReplayBuffer) else local_path(buffer)
        self._buffer, self._process = buffer if isinstance(buffer, ReplayBuffer) else None, os.getpid()
        self._columns = columns
        self._opened().at([], columns=columns)  # or a name that is wrong would be found in a worker
        self.steps = self._opened().steps()

    def _opened(self) -> ReplayBuffer:
        if self._buffer is None or self._process != os.getpid():
            self._buffer, self._process = ReplayBuffer(self.path, mode="r"), os.getpid()
        return self._buffer

    def __len__(self) -> int:
        """How many steps there are."""
        return len(self.steps)

    def __getitem__(self, which: Any) -> Batch:
        """Return one step, as `ReplayBuffer.at` does, without the first axis; or several, by a list or a slice, as a batch."""
        ids = self.steps[which]
        batch = self._opened().at(np.atleast_1d(ids), columns=self._columns)
        return one_of(batch, 0) if np.ndim(ids) == 0 else batch

    def __getitems__(self, which: Sequence[int]) -> list[Batch]:
        """Return several steps, one by one, as `DataLoader` asks for a batch of them."""
        batch = self[list(which)]
        return [one_of(batch, n) for n in range(len(which))]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs: all but the open store."""
        return self.__dict__ | {"_buffer": None}
