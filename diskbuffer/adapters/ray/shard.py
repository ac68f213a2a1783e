"""A shard: an actor that has a store on its node's disk. Ray starts it again after a crash, and it opens its store again."""

from __future__ import annotations

import gc
import os
import pickle
import platform
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import ray

from diskbuffer import Prioritized, ReplayBuffer, Sampler
from diskbuffer.adapters.ray.limiting.ledger import Ledger
from diskbuffer.adapters.ray.metrics import ShardMetrics
from diskbuffer.adapters.ray.names import store_of, unique
from diskbuffer.adapters.ray.packing import Packed, pack
from diskbuffer.errors import EmptyBufferError, InputError, LockedError
from diskbuffer.plugin import Batch

Int64 = npt.NDArray[np.int64]
_SILENT = 60.0  # seconds after which a client that adds nothing may lose its streams to another
_LIMITER = "_shared/limiter"  # a directory for copies of what a limiter counts, where no Zarr tool looks
_DONE = 10.0  # seconds that a call of another thread may take which uses a sampler
_PATIENCE = 60.0  # seconds to wait for the lock of the process before, which may still be dying


class Disk(NamedTuple):
    """Where a shard's store is: the same for whoever can map its files."""

    boot: str  # of the machine
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Disk | None:
        """Return where a directory is; None where there is none."""
        try:
            stat = path.stat()
        except OSError:
            return None
        return cls(boot_id(), stat.st_dev, stat.st_ino)


def boot_id() -> str:
    """Return what identifies the time since this machine was started; its name, where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


class State(NamedTuple):
    """What a shard tells of itself with every answer."""

    steps: int
    added: int
    priorities: dict[str, tuple[float, float]]  # of each sampler by priority: the sum of what is drawn by, and the least
    written: tuple[str, ...] = ()  # columns that were written later, but for those of samplers
    replaced: tuple[str, ...] = ()  # samplers by priority whose columns others keep since


class Sent(NamedTuple):
    """A sampler, as it goes to the shards: a name for it, the sampler itself, and what of it may change from call to call."""

    token: str
    pickled: bytes
    beta: float | None


class Written(NamedTuple):
    """The answer to a block of steps: whether it was taken, and how many steps its stream has ever had."""

    taken: bool
    ever: int
    state: State


class Read(NamedTuple):
    """The answer to ids of steps: a batch, or None where there is none of them, and which of them it has, by their places."""

    batch: Packed | None
    present: Int64


@ray.remote(concurrency_groups={"write": 1, "read": 2, "ask": 1})
class Shard:
    """Hold a store, and answer clients.

    Parameters
    ----------
    path : str
        The directory of all shards' stores on this disk.
    number : int
    options : dict
        For `ReplayBuffer`.
    """

    def __init__(self, path: str, number: int, options: dict[str, Any]) -> None:
        self._path, self._number, self._options = Path(path).expanduser().absolute(), number, options
        self._buffer: ReplayBuffer | None = None
        self._owners: dict[int, tuple[str, float]] = {}  # of streams: a client, and when it was last heard of
        self._samplers: dict[str, Sampler] = {}
        self._replaced: dict[str, str] = {}  # samplers by priority whose columns others keep since, and the columns
        self._lock = threading.Lock()
        self._path.mkdir(parents=True, exist_ok=True)
        self._metrics = ShardMetrics(str(self._path), number)
        if (self._path / store_of(number)).exists():
            self._open(None)

    # Life

    @ray.method(concurrency_group="ask")
    def disk(self) -> Disk:
        """Return where the store is, or is to be."""
        disk = Disk.of(self._path)
        assert disk is not None
        return disk

    @ray.method(concurrency_group="write")
    def open(self, capacity: int | None) -> State:
        """Open the store, or make it; `capacity` is that of all shards on this disk."""
        if self._buffer is None:
            self._open(capacity)
        return self._state()

    def _open(self, capacity: int | None) -> None:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                self._buffer = ReplayBuffer(
                    self._path, capacity, writer=store_of(self._number), autoreset="disabled", **self._options
                )
                return
            except LockedError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    @property
    def _opened(self) -> ReplayBuffer:
        if self._buffer is None:
            raise LockedError(f"shard {self._number} has not opened its store yet")
        return self._buffer

    @ray.method(concurrency_group="ask")
    def state(self, samplers: tuple[Sent, ...] = ()) -> State:
        """Return what there is."""
        for sent in samplers:
            if sent.token not in self._replaced:
                self._sampler(sent)
        return self._state()

    def _state(self) -> State:
        buffer = self._opened
        _, ever = buffer.counts()
        with self._lock:
            by_priority = [(token, sampler) for token, sampler in self._samplers.items() if isinstance(sampler, Prioritized)]
        of_samplers = {"priority", *(sampler.column for _, sampler in by_priority)}
        return State(
            len(buffer),
            int(ever.sum()),
            {token: sampler.masses() for token, sampler in by_priority},
            tuple(sorted(buffer.columns.derived - of_samplers)),
            tuple(self._replaced),
        )

    @ray.method(concurrency_group="ask")
    def about(self) -> dict[str, Any]:
        """Tell about the process and its store, for people."""
        return {"node": ray.util.get_node_ip_address(), "pid": os.getpid(), **self._opened.stats()}

    @ray.method(concurrency_group="ask")
    def exchange(self, copy: bytes) -> tuple[int, bytes]:
        """Keep a copy of what a limiter counts, beside the store; return how many steps there ever were, and the copy."""
        kept = self._kept()
        if copy:
            received = Ledger.from_bytes(copy)
            if kept:
                received.merge(Ledger.from_bytes(kept))
            merged = received.to_bytes()
            if merged != kept:
                file = self._limiter_file
                file.parent.mkdir(parents=True, exist_ok=True)
                unfinished = file.with_suffix(".tmp")
                unfinished.write_bytes(merged)
                unfinished.replace(file)
            kept = merged
        return int(self._opened.counts()[1].sum()), kept

    @property
    def _limiter_file(self) -> Path:
        return self._path / _LIMITER / store_of(self._number)

    def _kept(self) -> bytes:
        """Return the copy that is kept; nothing where there is none, or a power loss left a part of it."""
        try:
            data = self._limiter_file.read_bytes()
            Ledger.from_bytes(data)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return b""
        return data

    @ray.method(concurrency_group="write")
    def close(self) -> None:
        """Close the store."""
        if self._buffer is not None:
            self._buffer.close()

    # Writing

    @ray.method(concurrency_group="write")
    def join(self, client: str, count: int, requested: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Give a client streams of its own: those that it wants, where they are free, or others.

        Returns
        -------
        (list of int, list of int)
            The streams, and how many steps each has ever had.

        Raises
        ------
        InputError
            There are not so many streams without an owner.
        """
        now = time.monotonic()
        free = [n for n in range(self._opened.n_envs) if self._is_free(n, client, now)]
        streams = list(requested) if requested and set(requested) <= set(free) else free[:count]
        if len(streams) < count:
            raise InputError(
                f"shard {self._number} has {self._opened.n_envs} streams, and {len(free)} of them are free for {count} more "
                "environments; create the buffer with more streams="
            )
        self._owners |= dict.fromkeys(streams, (client, now))
        if streams != list(requested):  # whatever was added there last was another client's
            self._opened.cut_off(streams)
        _, ever = self._opened.counts()
        return streams, [int(ever[n]) for n in streams]

    def _is_free(self, stream: int, client: str, now: float) -> bool:
        owner, heard = self._owners.get(stream, (client, now))
        return owner == client or now - heard > _SILENT

    @ray.method(concurrency_group="write")
    def leave(self, client: str) -> None:
        """Take a client's streams back."""
        self._owners = {stream: owner for stream, owner in self._owners.items() if owner[0] != client}

    @ray.method(concurrency_group="write")
    def write(self, client: str, stream: int, start: int, count: int, values: dict[str, Any], new_episode: Any) -> Written:
        """Add a block of steps. It may have been added before, by a process that died: what is there is not added again.

        Parameters
        ----------
        start : int
            How many steps the stream has ever had before this block.
        """
        buffer = self._opened
        if not self._is_free(stream, client, time.monotonic()):
            return Written(False, -1, self._state())
        self._owners[stream] = client, time.monotonic()
        ever = int(buffer.counts()[1][stream])
        if start > ever:  # what comes before it has not come
            return Written(False, ever, self._state())
        present = min(ever - start, count)
        if present < count:
            rest = {name: _after(value, present) for name, value in values.items()} if present else values
            buffer.extend(**rest, env=stream, new_episode=_after_first(new_episode, present) if present else new_episode)
            self._metrics.added(count - present, len(buffer))
        return Written(True, max(ever, start + count), self._state())

    @ray.method(concurrency_group="read")
    def flush(self) -> None:
        """Sync every step to the disk."""
        self._opened.flush()

    # Reading

    @ray.method(concurrency_group="read")
    def sample(self, size: int, sent: Sent, compress: bool) -> tuple[Packed | None, State]:
        """Return a batch, whose steps have unique names; None where there is nothing to draw."""
        begin, buffer = time.perf_counter(), self._opened
        try:
            packed: Packed | None = self._packed(buffer.sample(size, self._sampler(sent)), compress)
            self._metrics.sampled(size, time.perf_counter() - begin)
        except EmptyBufferError:
            packed = None
        return packed, self._state()  # when this thread has let the sampler go, as another may wait for that: see `_attach`

    def _packed(self, batch: Batch, compress: bool) -> Packed:
        batch["steps"] = _renamed(batch["steps"], self._number)
        return pack(batch, compress=compress)

    @ray.method(concurrency_group="read")
    def names(self) -> Int64:
        """Return unique ids of all steps."""
        return unique(self._opened.steps(), self._number)

    @ray.method(concurrency_group="read")
    def at(self, steps: Int64, length: int | None, columns: Sequence[str] | None, skip: bool, compress: bool) -> Read:
        """Return steps by the shard's own names; with `skip` without those that are gone."""
        buffer, present = self._opened, np.arange(len(steps))
        while True:
            if skip:
                present = np.flatnonzero(buffer.episodes.remaining(steps) >= (length or 1))
                if not len(present):
                    return Read(None, present)
            try:
                batch = buffer.at(steps[present], length, columns=columns)
            except InputError:  # evicted since, where it was there
                if not skip or len(np.flatnonzero(buffer.episodes.remaining(steps[present]) >= (length or 1))) == len(present):
                    raise
            else:
                return Read(self._packed(batch, compress), present)

    @ray.method(concurrency_group="write")
    def write_column(self, name: str, steps: Int64, values: npt.NDArray[Any]) -> int:
        """Write a column's values of steps, by the shard's own names; return of how many."""
        return self._opened.columns.write(name, steps, values)

    @ray.method(concurrency_group="read")
    def update(self, sent: Sent, steps: Int64, priorities: npt.NDArray[Any]) -> tuple[int, State]:
        """Set priorities of steps, by the shard's own names; return of how many."""
        return self._update(sent, steps, priorities), self._state()

    def _update(self, sent: Sent, steps: Int64, priorities: npt.NDArray[Any]) -> int:
        sampler = self._sampler(sent)
        assert isinstance(sampler, Prioritized)
        return sampler.update(steps, priorities)

    def _sampler(self, sent: Sent) -> Sampler:
        """Return a sampler of this shard's own, which is made when a client first asks for it.

        Nothing tells whether a client, or its sampler, is still alive. So the newest sampler by priority keeps its column, and
        the one that kept it before is refused from then on.
        """
        with self._lock:
            sampler = self._samplers.get(sent.token)
            if sampler is None:
                if sent.token in self._replaced:
                    raise replaced_error(self._replaced[sent.token])
                sampler = pickle.loads(sent.pickled)  # from our own client, over Ray
                sampler.seed_again(self._number, int(self._opened.counts()[1].sum()))
                if isinstance(sampler, Prioritized):
                    self._attach(sampler)
                self._samplers[sent.token] = sampler
        if sent.beta is not None and isinstance(sampler, Prioritized):
            sampler.beta = sent.beta
        return sampler

    def _attach(self, sampler: Prioritized) -> None:
        """Make a sampler the keeper of its column; the one before releases it once no thread uses it any more."""
        others = [token for token, one in self._samplers.items() if isinstance(one, Prioritized) and one.column == sampler.column]
        for token in others:
            del self._samplers[token]
            self._replaced[token] = sampler.column
        until = time.monotonic() + _DONE
        while True:
            try:
                self._opened.loader(1, sampler, rank=0, world_size=1)  # draws nothing
                return
            except InputError:
                if not others or time.monotonic() > until:
                    raise
            gc.collect()  # what a call that failed has left
            time.sleep(0.005)


def replaced_error(column: str) -> InputError:
    """Return what is raised where a sampler is used after another one took its column."""
    return InputError(
        f"another sampler keeps its priorities in {column!r} since this one drew last; give one of them column= of another name"
    )


def _after(value: Any, count: int) -> Any:
    if isinstance(value, dict):
        return {name: _after(part, count) for name, part in value.items()}
    return None if value is None else value[count:]


def _after_first(new_episode: Any, count: int) -> Any:
    """Return what was said of the steps after some; a single word is about the first, and all others go on."""
    if new_episode is None or isinstance(new_episode, bool | np.bool_):
        return None if new_episode is None else False
    return new_episode[count:]


def _renamed(steps: Any, number: int) -> Any:
    import torch

    return torch.from_numpy(unique(steps.numpy(), number))
