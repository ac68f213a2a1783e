"""What collectors of TorchRL write to in processes of their own, each to its own store, and a learner samples from."""

from __future__ import annotations

import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from tensordict import TensorDict, TensorDictBase

from diskbuffer import ReplayBuffer, Sampler, Uniform
from diskbuffer.adapters.torchrl.entries import Entries, as_entries, as_tensordict
from diskbuffer.adapters.torchrl.samplers import draws_windows, ends_of, length_of, per_sample
from diskbuffer.errors import EmptyBufferError, InputError, NotAStoreError
from diskbuffer.plugin import (
    flatten,
    integer,
    integer_or_none,
    is_store,
    local_path,
    one_of,
    refuse_unknown,
    seconds_of,
    writers_of,
)

Int64 = npt.NDArray[np.int64]

_WRITERS = "collector-*"
_TOLD = {  # options of a store that are not the caller's
    *("action_space", "autoreset", "columns", "env", "extra", "mark", "mode", "n_envs", "observation_space", "padding", "wait"),
    "writer",
}
_TRAJECTORIES = ("collector", "traj_ids")
_MASK = ("collector", "mask")  # of trajectories that are padded to one length
_NONE = -1  # no trajectory has this number
_NOTES = {"steps": "index", "weights": "priority_weight", "node": "node"}  # and what TorchRL calls them


class Collected(ABC):
    """Steps that several collectors write, each to a store of its own, and that are sampled as one.

    A collector is given this by pickling, and opens a writer with its first batch; threads of a process write one after the
    other. The first batch tells what a step has: every entry that is a tensor is a column, as in a `DiskStorage`.

    Parameters
    ----------
    batch_size : int, optional
        Steps in a sample, where `sample` is not told.
    sampler : Sampler, optional
        Which steps; all with the same probability by default.
    frame_stack : int
        As of `DiskStorage`.
    """

    _storage = SimpleNamespace(initialized=True)  # TorchRL need not write a batch first, to initialize it

    def __init__(self, batch_size: int | None, sampler: Sampler | None, frame_stack: int) -> None:
        self.batch_size = integer_or_none("batch_size", batch_size)
        self.sampler: Sampler = Uniform() if sampler is None else sampler
        length_of(self.sampler)
        self._frame_stack = integer("frame_stack", frame_stack)
        self._forget()

    def _forget(self) -> None:
        """Have nothing open, as in a process that was just given this."""
        self._process = os.getpid()
        self._adding = threading.Lock()
        self._opened: ReplayBuffer | None = None
        self._written: Entries | None = None
        self._running: Int64 = np.zeros(0, np.int64)  # the trajectory of each environment; _NONE where it has ended
        self._read: dict[tuple[str, ...], Entries] = {}  # by the columns of a batch

    def __getstate__(self) -> dict[str, Any]:
        """Return how a collector reaches the same stores, with nothing open; it opens a writer of its own."""
        unopened = object.__new__(type(self))
        unopened._forget()
        return {name: value for name, value in self.__dict__.items() if name not in unopened.__dict__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._forget()

    def _after_fork(self) -> None:
        """Forget what the process has open that this one was forked from."""
        if self._process != os.getpid():
            self._forget()

    # Writing

    @abstractmethod
    def _open(self, **how: Any) -> ReplayBuffer:
        """Open a store for this collector, new, or of one that has ended; `how` is for `ReplayBuffer`."""

    @property
    @abstractmethod
    def write_count(self) -> int:
        """How many steps all collectors have ever added."""

    def add(self, data: TensorDictBase) -> None:
        """Store a step of each environment, () or (environments,); otherwise as `extend`."""
        self.extend(data.unsqueeze(-1))

    def extend(self, data: TensorDictBase) -> None:
        """Store steps, (steps,) or (environments, steps), of as many environments every time.

        An episode goes on from the batch before where its first observation is what the last step led to. Where it is another
        one, or ``("collector", "traj_ids")`` tells of another trajectory, the one before is cut off. The limiter may wait.

        Raises
        ------
        InputError, SchemaError
            The batch has other axes or entries than the first one had, here or in another collector. Nothing was added.
        LimiterTimeoutError, DiskFullError, OSError
            Too little is sampled, or the disk is full, or fails. ``len(buffer)`` tells what was added before that.
        """
        data = as_tensordict(data)
        if data.ndim not in (1, 2):
            raise InputError(f"expected a batch of shape (steps,) or (environments, steps), found {tuple(data.shape)}")
        steps = data if data.ndim == 1 else data.transpose(0, 1)
        if not len(steps):
            return
        self._after_fork()
        with self._adding:
            self._write(data, steps)

    def _write(self, data: TensorDictBase, steps: TensorDictBase) -> None:
        if self._opened is None:
            self._begin(steps)
        assert self._opened is not None
        assert self._written is not None
        if tuple(steps.shape[1:]) != self._written.lanes:
            shape = (*self._written.lanes, "steps")
            raise InputError(f"expected a batch of shape {shape}, as the first one, found {tuple(data.shape)}")
        rows = self._written.rows(steps, np.arange(len(steps)))
        starts, running = self._starts(steps, rows["terminated"] | rows["truncated"])
        first = 0
        for end in [*np.flatnonzero(starts.any(axis=1)), len(steps)]:  # up to where a trajectory is to be cut off
            if first < end:
                self._opened.extend(**one_of(rows, slice(first, end)))
            if end < len(steps):
                self._opened.cut_off(np.flatnonzero(starts[end]).tolist())
            first = end
        self._running = running

    def _begin(self, steps: TensorDictBase) -> None:
        """Open a writer whose columns are the entries of steps, (n, ...)."""
        if "index" in steps.keys():  # noqa: SIM118  a TensorDict is no container of its keys
            raise InputError('an entry "index" is what samples name their steps by; give it another name')
        if _MASK in steps.keys(True):
            raise InputError("padded trajectories are not stored: leave split_trajs= out where the collector is made")
        entries = Entries.of(steps, steps.ndim, self._frame_stack)
        n_envs = math.prod(entries.lanes)
        self._opened = self._open(
            columns=entries.columns,
            n_envs=n_envs,
            autoreset="disabled",
            frame_stack=entries.stack,
            padding=entries.padding(steps),
        )
        self._written, self._running = entries, np.full(n_envs, _NONE)

    def _starts(self, steps: TensorDictBase, ended: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], Int64]:
        """Return where a trajectory begins though the one before has not ended, (n, environments), and which run at the end."""
        ended = ended.reshape(len(steps), -1)
        told = steps.get(_TRAJECTORIES, None)
        if told is None:
            return np.zeros_like(ended), self._running
        trajectories = told.numpy(force=True).reshape(ended.shape)
        running = np.concatenate([self._running[None], np.where(ended, _NONE, trajectories)])  # before each step, and at the end
        return (running[:-1] != _NONE) & (running[:-1] != trajectories), running[-1]

    # Sampling

    @abstractmethod
    def _draw(self, n: int, sampler: Sampler, device: Any) -> dict[str, Any]:
        """Return a batch of so many samples."""

    @abstractmethod
    def _load(self, n: int, sampler: Sampler, device: Any) -> Iterator[dict[str, Any]]:
        """Return batches without end, read ahead."""

    def sample(self, batch_size: int | None = None, sampler: Sampler | None = None, *, device: Any = None) -> TensorDict:
        """Return steps of all collectors as a tensordict, as TorchRL's losses take them.

        Parameters
        ----------
        batch_size : int, optional
            Steps, also where sequences are drawn, which come one behind the other, as of TorchRL's `SliceSampler`.
        sampler : Sampler, optional
            Which, in place of the buffer's own: what `DiskSampler` takes.
        device : torch.device or str, optional

        Returns
        -------
        TensorDict
            (batch_size,). "index" names the steps, for ``sampler.update(batch["index"], priorities)``; weights are
            "priority_weight".

        Raises
        ------
        EmptyBufferError
            There is nothing to draw yet.
        """
        n, sampler = self._asked(batch_size, sampler)
        return self._tensordict(self._draw(n, sampler, device), sampler)

    def loader(
        self, batch_size: int | None = None, sampler: Sampler | None = None, *, device: Any = None
    ) -> Iterator[TensorDict]:
        """Return batches without end, of which the next ones are read by threads meanwhile; otherwise as `sample`."""
        n, sampler = self._asked(batch_size, sampler)
        return (self._tensordict(batch, sampler) for batch in self._load(n, sampler, device))

    def _asked(self, batch_size: int | None, sampler: Sampler | None) -> tuple[int, Sampler]:
        """Return how many samples to draw, and with what."""
        sampler = self.sampler if sampler is None else sampler
        size = self.batch_size if batch_size is None else integer("batch_size", batch_size)
        if size is None:
            raise InputError("give a batch_size, here or where the buffer is made")
        return per_sample(size, length_of(sampler)), sampler

    def _tensordict(self, batch: dict[str, Any], sampler: Sampler) -> TensorDict:
        """Return a batch with the entries that were written."""
        if (length := length_of(sampler)) > 1:
            batch = _in_steps(batch, length)
        values = flatten(batch)
        notes = {_NOTES[path]: values.pop(path) for path in _NOTES if path in values}
        shape = notes["index"].shape
        if draws_windows(sampler):
            return TensorDict(as_entries(values) | notes, shape)
        entries = self._read.get(tuple(values))
        if entries is None:
            one_each = {path: each for path, each in values.items() if path.split("/")[0] != "next_obs"}
            entries = self._read[tuple(values)] = Entries.sampled(one_each, self._frame_stack)
        found = TensorDict(entries.nested(lambda entry, at: entry.taken(batch, at, entries.stack)) | notes, shape)
        return found.update(ends_of(values, length)) if length > 1 else found


class CollectorBuffer(Collected):
    """What TorchRL's collectors take as ``replay_buffer=``, in one process or in many: their steps lie on disk.

    ``MultiCollector(..., replay_buffer=CollectorBuffer("runs/pong", 250_000))``: each worker writes to a store of its own below
    the directory, and a worker that is started later goes on with the store of one that has ended. What a worker wrote is in its
    order, so that no slice goes over from one trajectory into another. A kill loses no step that a collector has written.

    Parameters
    ----------
    path : path-like
        The directory.
    capacity : int, optional
        Steps that each collector's store keeps, of all its environments; all by default.
    batch_size : int, optional
        Steps in a sample, where `sample` is not told.
    sampler : Sampler, optional
        Which steps are sampled, such as ``diskbuffer.Slices(16)``; all with the same probability by default.
    frame_stack : int
        As of `DiskStorage`.
    refresh_every : float
        Seconds for which `sample` may not see what collectors have added; ``len(buffer)`` and `write_count` always do.
    **options
        Of `diskbuffer.ReplayBuffer`: ``limiter=``, ``threads=``, ...

    Notes
    -----
    `reader` is the learner's `diskbuffer.ReplayBuffer`, which reads all stores as one. Looking for new steps takes about 0.6 ms
    for each collector that has written since.

    Examples
    --------
    >>> buffer = CollectorBuffer("runs/pong", 250_000, batch_size=256)  # doctest: +SKIP
    >>> collector = MultiAsyncCollector([make_env] * 4, policy, replay_buffer=buffer, frames_per_batch=200)  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity: int | None = None,
        *,
        batch_size: int | None = None,
        sampler: Sampler | None = None,
        frame_stack: int = 1,
        refresh_every: float = 0.1,
        **options: Any,
    ) -> None:
        refuse_unknown(options, ReplayBuffer)
        if told := sorted(options.keys() & _TOLD):
            raise InputError(f"{', '.join(told)}: what collectors collect tells it; leave it out")
        self.path = local_path(os.path.abspath(local_path(path)))  # as a worker may be in another directory
        self._options = options | {"capacity": integer_or_none("capacity", capacity)}
        self._refresh_every = seconds_of("refresh_every", refresh_every)
        super().__init__(batch_size, sampler, frame_stack)

    def _forget(self) -> None:
        super()._forget()
        self._reader: ReplayBuffer | None = None
        self._seen = 0.0  # when the reader was refreshed

    def _open(self, **how: Any) -> ReplayBuffer:
        return ReplayBuffer(self.path, writer=_WRITERS, **{**self._options, **how})

    @property
    def reader(self) -> ReplayBuffer:
        """All steps, to be read, and the learner's columns; an EmptyBufferError as long as no collector has begun."""
        return self._reading(0)

    def _reading(self, every: float) -> ReplayBuffer:
        if (reader := self._look(every)) is None:
            raise EmptyBufferError(f"no collector has written to {self.path} yet; let one collect before sampling")
        return reader

    def _look(self, every: float) -> ReplayBuffer | None:
        """Return the reader, which knows what was added until so many seconds ago."""
        self._after_fork()
        now = time.monotonic()
        if self._reader is None:
            if not is_store(self.path):
                return None
            if writers_of(self.path) is None:
                raise NotAStoreError(f"{self.path} is the store of one writer, and collectors have one each: give another path")
            how = {name: self._options[name] for name in ("limiter", "threads") if name in self._options}
            self._reader, self._seen = ReplayBuffer(self.path, mode="r", **how), now
        elif now >= self._seen + every:
            self._reader.refresh()
            self._seen = now
        return self._reader

    def __len__(self) -> int:
        """Return how many steps there are to sample."""
        reader = self._look(0)
        return 0 if reader is None else len(reader)

    @property
    def write_count(self) -> int:
        """How many steps all collectors have ever added."""
        reader = self._look(0)
        return 0 if reader is None else int(reader.counts()[1].sum())

    def _draw(self, n: int, sampler: Sampler, device: Any) -> dict[str, Any]:
        batch: dict[str, Any] = self._reading(self._refresh_every).sample(n, sampler, device=device)
        return batch

    def _load(self, n: int, sampler: Sampler, device: Any) -> Iterator[dict[str, Any]]:
        return iter(self.reader.loader(n, sampler, device=device, refresh_every=self._refresh_every))

    def __repr__(self) -> str:
        return f"CollectorBuffer({len(self)} steps at {self.path})"

    def close(self) -> None:
        """Close what this process has open; the next use opens it again."""
        for opened in (self._opened, self._reader):
            if opened is not None and self._process == os.getpid():
                opened.close()
        self._forget()


def _in_steps(batch: dict[str, Any], length: int) -> dict[str, Any]:
    """Return values of sequences, (n, length, ...), or of each sequence, (n,), as values of their steps, (n * length, ...)."""
    steps: dict[str, Any] = {}
    for name, each in batch.items():
        if isinstance(each, dict):
            steps[name] = _in_steps(each, length)
        else:
            steps[name] = each.repeat_interleave(length) if each.ndim == 1 else each.flatten(0, 1)
    return steps
