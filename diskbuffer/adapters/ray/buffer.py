"""RayReplayBuffer: experience on the disks of a Ray cluster, with the face of `ReplayBuffer`."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import ray
import torch

from diskbuffer.adapters.ray import placing
from diskbuffer.adapters.ray.ahead import ahead
from diskbuffer.adapters.ray.blocks import Blocks, count_steps
from diskbuffer.adapters.ray.drawing import Drawing
from diskbuffer.adapters.ray.lane import Lane
from diskbuffer.adapters.ray.metrics import ClientMetrics
from diskbuffer.adapters.ray.near import Near
from diskbuffer.adapters.ray.shard import Disk, Shard
from diskbuffer.adapters.ray.shards import Known, Shards, receive
from diskbuffer.errors import ClosedError, InputError, UnreachableError
from diskbuffer.inputs import device_of, step_names
from diskbuffer.reading.batches.base import Batch
from diskbuffer.reading.delivery import Transform, transform_of
from diskbuffer.samplers import Prioritized, Sampler
from diskbuffer.samplers.sampler import at_least_one
from diskbuffer.store.system.files import Files

_STARTING = 120.0  # seconds for shards to start, and to recover their stores


class RayReplayBuffer:
    """Experience on the disks of a Ray cluster: shards are actors, each with a store on its machine's disk.

    Whoever makes it starts the shards, or finds those that are there for the same path. Give it to tasks and actors as an
    argument: each of them adds and samples on its own. Ray starts a shard that dies again, on the machine that has its disk, and
    it opens its store again: no step is lost that it had acknowledged.

    Parameters
    ----------
    path : path-like
        A directory, of that name on each machine, for the stores of its shards.
    capacity : int, optional
        Steps to keep, of all shards together; each keeps its part. None keeps everything.
    shards : int or sequence of mappings, optional
        How many, spread over the machines in the order of their addresses; by default one on each. Or the resources that each
        asks Ray for, ``[{"disk-a": 0.01}, {"disk-b": 0.01}]``, where disks move from one address to another.
    n_envs : int
        Environments of each process that calls `add`.
    streams : int
        Environments that may write to one shard, of all processes that add to it.
    block : int
        Steps of an environment that `add` sends together.
    in_flight : int
        Blocks that a process may have sent without an answer; then `add` waits.
    patience : float
        Seconds after which a shard that does not answer is left out of batches, and steps go to another one.
    near : bool
        Whether a process reads the shards on its own machine's disk by itself, and not through Ray.
    compress : bool
        Whether shards compress batches that they send: where machines are far apart.
    refresh_every : float
        Seconds until a learner sees what was added meanwhile.
    seed : int, optional
        For the draws. As answers come when they come, batches are not the same in two runs.
    lifetime : {"detached"}, optional
        As of Ray's actors: whether shards live on when the process that made them ends.
    num_cpus : float
        That each shard asks Ray for.
    **store
        For each shard's `ReplayBuffer`: ``columns=`` or the two spaces, ``extra=``, ``frame_stack=``, ``padding=``, ...

    Raises
    ------
    InputError, SchemaError
        An argument does not fit, or does not fit the stores that are there.
    UnreachableError
        A shard did not start, as no machine has the resources that it asks for.

    Notes
    -----
    One process's `add` takes some 20 us a step, and a call of Ray for every `block` steps.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity: int | None = None,
        *,
        shards: int | Sequence[Mapping[str, float]] | None = None,
        n_envs: int = 1,
        streams: int = 16,
        block: int = 64,
        in_flight: int = 8,
        patience: float = 5.0,
        near: bool = True,
        compress: bool = False,
        refresh_every: float = 0.2,
        seed: int | None = None,
        lifetime: str | None = None,
        num_cpus: float = 0,
        **store: Any,
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        self._how: dict[str, Any] = {
            "n_envs": at_least_one("n_envs", n_envs),
            "block": at_least_one("block", block),
            "in_flight": at_least_one("in_flight", in_flight),
            "patience": float(patience),
            "near": near,
            "compress": compress,
            "refresh_every": float(refresh_every),
            "seed": seed,
        }
        if n_envs > streams:
            raise InputError(f"{n_envs} environments need streams of their own, and there are {streams}; give a larger streams=")
        wanted = placing.places(shards)
        options = {**store, "n_envs": at_least_one("streams", streams)}
        handles = [
            placing.actor(Shard, place, f"diskbuffer:{self.path}:{n}", lifetime, num_cpus).remote(str(self.path), n, options)
            for n, place in enumerate(wanted)
        ]
        self._begin(handles, owner=True)
        _open(self._shards.known, self._disks, capacity)

    def _begin(self, handles: Sequence[Any], *, owner: bool) -> None:
        how = self._how
        self._owner, self._closed = owner, False
        self._shards = Shards(handles, how["patience"], how["refresh_every"])
        self._disks = dict(enumerate(_disks(handles, wait=owner, patience=how["patience"])))
        self._client, self._boot = uuid.uuid4().hex, Files(self.path).boot_id()
        self._by_distance = sorted(self._shards.known, key=self._distance)
        self._blocks = Blocks(how["n_envs"], how["block"])
        self._lane = Lane(self._client, how["n_envs"], self._nearest, how["in_flight"], how["patience"])
        self._metrics = ClientMetrics(str(self.path))
        self._found: Drawing | None = None
        self._near: Near | None = None
        self._lock = threading.Lock()

    @classmethod
    def _attached(cls, path: Path, how: dict[str, Any], handles: Sequence[Any]) -> Self:
        """Be another process's way to the same shards."""
        found = cls.__new__(cls)
        found.path, found._how = path, how
        found._begin(handles, owner=False)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process gets to the same shards."""
        self._check_open()
        return RayReplayBuffer._attached, (self.path, self._how, [known.handle for known in self._shards.known])

    # Writing

    def add(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        *,
        new_episode: Any = None,
        **extra: Any,
    ) -> int:
        """Add one step of every environment of this process, as `ReplayBuffer.add` does.

        Steps are sent when there are `block` of an environment. They are safe from a kill of this process, and of the shard, once
        they are acknowledged: `flush` waits for that, and ``stats()["acknowledged"]`` counts them.

        Returns
        -------
        int
            Steps added.

        Raises
        ------
        InputError, StackError
            What was given here, or in an earlier call, does not fit. The block that has it was not added.
        UnreachableError
            No shard takes steps. They are kept here, and are sent with the next call.
        """
        self._check_open()
        values = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        values |= {"terminated": terminated, "truncated": truncated, **extra}
        for env, count, block, begins in self._blocks.add(values, new_episode):
            self._send(env, count, block, begins)
        return int(self._how["n_envs"])

    def extend(
        self,
        obs: Any = None,
        action: Any = None,
        reward: Any = None,
        next_obs: Any = None,
        terminated: Any = None,
        truncated: Any = None,
        *,
        env: int = 0,
        new_episode: Any = None,
        **extra: Any,
    ) -> int:
        """Add arrays of steps of one environment, as `ReplayBuffer.extend` does: sent at once, acknowledged as those of `add`."""
        self._check_open()
        if not isinstance(env, int | np.integer) or not 0 <= env < self._how["n_envs"]:
            raise InputError(f"env must be an integer from 0 to {self._how['n_envs'] - 1}, found {env!r}")
        for held in self._blocks.take(int(env)):
            self._send(*held)
        given = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        given |= {"terminated": terminated, "truncated": truncated, **extra}
        values = {name: value for name, value in given.items() if value is not None}
        count = count_steps(values)
        self._send(int(env), count, values, new_episode)
        return count

    def _send(self, env: int, count: int, values: dict[str, Any], new_episode: Any) -> None:
        before = self._lane.waited
        try:
            self._lane.send(env, count, values, new_episode)
        finally:
            if self._lane.waited > before:
                self._metrics.waited(self._lane.waited - before)

    def flush(self, *, sync: bool = True) -> None:
        """Send what `add` holds back, and wait until shards have acknowledged everything that this process added.

        Parameters
        ----------
        sync : bool
            Whether shards bring it to their disks then, so that it survives a power loss, too.

        Raises
        ------
        UnreachableError
            A shard does not answer. Nothing is lost, and the next call tries again.
        """
        self._check_open()
        for env in range(self._how["n_envs"]):
            for held in self._blocks.take(env):
                self._send(*held)
        self._lane.wait()
        if self._found is not None:
            self._found.settle()
        if sync:
            _each(self._shards.known, lambda known: known.handle.flush.remote(), self._how["patience"])

    # Reading

    def sample(
        self,
        batch_size: int,
        sampler: Sampler | None = None,
        *,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
    ) -> Batch:
        """Draw steps of all shards and return them, as `ReplayBuffer.sample` does.

        Each shard gives its part, in proportion to its steps, or, with `Prioritized`, to the sum of its priorities. Shards on
        this machine are read here; others gather their parts at the same time. One that does not answer within `patience` is left
        out until it does again.

        Parameters
        ----------
        batch_size : int
        sampler : Sampler, optional
            Which steps; each shard draws with one of its own that is like it.
        device, transform
            As of `ReplayBuffer.sample`.

        Returns
        -------
        dict of str to torch.Tensor
            As of `ReplayBuffer.sample`. ``steps`` are names that are unique over all shards: the shard is ``steps % 1024``, and
            ``steps // 1024`` the name in its store.

        Raises
        ------
        EmptyBufferError
            There is no complete step.
        UnreachableError
            No shard that has steps answers.
        """
        self._check_open()
        size = at_least_one("batch_size", batch_size)
        if sampler is not None and not isinstance(sampler, Sampler):
            raise InputError(f"sampler must be a sampler, such as diskbuffer.Uniform(), found {sampler!r}")
        begin = time.perf_counter()
        batch = self._drawing.sample(size, sampler)
        self._metrics.sampled(time.perf_counter() - begin)
        delivered: Batch = _delivered(batch, device_of(device), transform_of(transform))
        return delivered

    def loader(
        self,
        batch_size: int,
        sampler: Sampler | None = None,
        *,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
        prefetch: int = 3,
        threads: int | None = None,
    ) -> Generator[Batch, None, None]:
        """Yield batches without end, `prefetch` of them ahead of the learner; other arguments are those of `sample`."""
        self._check_open()
        drawing, size, many = self._drawing, at_least_one("batch_size", batch_size), at_least_one("prefetch", prefetch)
        if drawing.is_all_near(sampler):
            assert self._near is not None
            return self._near.loader(size, sampler, device, transform_of(transform), many, threads)
        return ahead(lambda: self.sample(size, sampler, device=device, transform=transform), many)

    def update(self, sampler: Prioritized, steps: Any, priorities: Any) -> None:
        """Set the priorities of steps that were drawn, as `Prioritized.update` does, in the shards that have them.

        Returns once it is sent; later draws of this process see it. What is for a shard that does not answer is dropped, and
        counted in ``stats()``.

        Parameters
        ----------
        sampler : Prioritized
            With which they were drawn.
        steps : (n,) integers
            A batch's ``steps``.
        priorities : (n,) floats
            At least 0: absolute errors.
        """
        self._check_open()
        if not isinstance(sampler, Prioritized):
            raise InputError(f"priorities belong to a sampler, diskbuffer.Prioritized(); found {sampler!r}")
        names = step_names(steps, of_sequences=True)
        errors = np.asarray(priorities.detach().cpu() if isinstance(priorities, torch.Tensor) else priorities, np.float64)
        if len(errors) != len(names):
            raise InputError(f"there must be a priority for each of {len(names)} steps, found {len(errors)}")
        self._drawing.update(sampler, names, errors)

    @property
    def _drawing(self) -> Drawing:
        with self._lock:
            if self._found is None:
                how = self._how
                if how["near"]:
                    options = {"seed": how["seed"]}
                    self._near = Near.find(self.path, self._disks, how["refresh_every"], options)
                self._found = Drawing(self._shards, self._near, compress=how["compress"], seed=how["seed"])
            return self._found

    def _nearest(self) -> list[Known]:
        """Return shards in the order in which steps are sent to them: those that answer, the nearest first."""
        self._shards.watch_away()
        return sorted(self._by_distance, key=lambda known: known.away_since is not None)

    def _distance(self, known: Known) -> tuple[bool, str]:
        """Return how far a shard is: whether it is on another machine, and then a number that is another for each client."""
        disk = self._disks.get(known.number)
        return disk is None or disk.boot != self._boot, uuid.uuid5(uuid.UUID(self._client), str(known.number)).hex

    # Looking

    def __len__(self) -> int:
        """Return how many steps can be sampled, as far as shards answer."""
        self._check_open()
        self._shards.ask_all()
        return sum(known.state.steps for known in self._shards.known if known.state is not None)

    def refresh(self) -> None:
        """See now what was added; a learner does so by itself, every `refresh_every` seconds."""
        self._check_open()
        self._shards.ask_all()
        drawing = self._drawing
        if self._near is not None and drawing is not None:
            self._near.refresh()

    def stats(self) -> dict[str, Any]:
        """Return figures on the buffer.

        ``steps`` and ``added`` (ever) of all shards; of this process: ``acknowledged``, ``resent``, ``lost`` (by a power loss),
        ``waited`` (seconds of `add`), ``shard`` (where its steps go), ``dropped_updates``; and ``shards``, of each: ``number``,
        ``answers``, ``why`` it does not, ``away`` (seconds), ``skipped`` (batches without it), ``rejoined``, ``near`` (whether it
        is read here), ``steps``, ``added``.
        """
        self._check_open()
        self._shards.ask_all()
        near = frozenset() if self._near is None else self._near.shards
        shards = [_figures(known, known.number in near) for known in self._shards.known]
        self._metrics.away(sum(not figures["answers"] for figures in shards))
        lane = self._lane
        return {
            "steps": sum(figures["steps"] for figures in shards),
            "added": sum(figures["added"] for figures in shards),
            "acknowledged": lane.acknowledged,
            "resent": lane.resent,
            "lost": lane.lost,
            "waited": lane.waited,
            "shard": lane.shard,
            "dropped_updates": 0 if self._found is None else self._found.dropped_updates,
            "shards": shards,
        }

    def __repr__(self) -> str:
        return f"<RayReplayBuffer {self.path}, {len(self._shards.known)} shards{', closed' if self._closed else ''}>"

    # Closing

    def close(self) -> None:
        """Wait until everything is acknowledged; whoever made the buffer closes the shards' stores, and ends them.

        Raises
        ------
        UnreachableError
            A shard does not answer, and steps of this process are not acknowledged. It is closed all the same.
        """
        if self._closed:
            return
        try:
            self.flush(sync=False)
        finally:
            self._closed = True
            self._shards.stop()
            if self._near is not None:
                self._near.close()
            self._lane.leave()
            if self._owner:
                _end(self._shards.known)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def _disks(handles: Sequence[Any], *, wait: bool, patience: float) -> list[Disk | None]:
    """Ask shards where their disks are; None of those that do not tell."""
    refs = [handle.disk.remote() for handle in handles]
    ready, late = ray.wait(refs, num_returns=len(refs), timeout=_STARTING if wait else patience)
    if late and wait:
        raise UnreachableError(
            f"{len(late)} of {len(refs)} shards did not start within {_STARTING:g} s; has the cluster the resources for them? "
            "`ray status` tells"
        )
    done = set(ready)
    return [_answer(ref) if ref in done else None for ref in refs]


def _answer(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayActorError:
        return None


def _open(shards: Sequence[Known], disks: Mapping[int, Disk | None], capacity: int | None) -> None:
    """Have shards open their stores, each disk with its part of the capacity."""
    until = time.monotonic() + _STARTING
    on_disk = [sum(other == disks[known.number] for other in disks.values()) for known in shards]
    parts = [None if capacity is None else -(-capacity * n // len(shards)) for n in on_disk]
    for known, part in zip(shards, parts, strict=True):  # one after the other: the first of a disk makes the directory
        if receive(known, known.handle.open.remote(part), until) is None:
            raise UnreachableError(f"shard {known.number} did not open its store: {known.why}")


def _each(shards: Sequence[Known], call: Any, patience: float) -> None:
    refs = [call(known) for known in shards if known.away_since is None]
    try:
        ray.get(refs, timeout=max(patience, 30.0))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise UnreachableError(f"a shard did not answer: {str(error).splitlines()[0]}") from None


def _end(shards: Sequence[Known]) -> None:
    refs = [known.handle.close.remote() for known in shards if known.away_since is None]
    ray.wait(refs, num_returns=len(refs), timeout=30.0)
    for known in shards:
        ray.kill(known.handle)


def _figures(known: Known, near: bool) -> dict[str, Any]:
    state, away = known.state, known.away_since
    return {
        "number": known.number,
        "answers": known.answers,
        "why": known.why,
        "away": 0.0 if away is None else time.monotonic() - away,
        "skipped": known.skipped,
        "rejoined": known.rejoined,
        "near": near,
        "steps": 0 if state is None else state.steps,
        "added": 0 if state is None else state.added,
    }


def _delivered(batch: Batch, device: torch.device | None, transform: Transform | None) -> Any:
    if transform is not None:
        batch = transform(batch)
    return batch if device is None else _moved(batch, device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: _moved(part, device) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(part, device) for part in value)
    return value
