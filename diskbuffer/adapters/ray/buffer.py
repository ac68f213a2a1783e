"""RayReplayBuffer: experience on the disks of a Ray cluster, with the face of `ReplayBuffer`."""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from diskbuffer import Prioritized, Sampler, SampleToInsertRatio
from diskbuffer.adapters.ray import members, placing
from diskbuffer.adapters.ray.adding import NAMES, Adding
from diskbuffer.adapters.ray.ahead import repeated
from diskbuffer.adapters.ray.by_name import StepsByName
from diskbuffer.adapters.ray.delivering import Delivering
from diskbuffer.adapters.ray.drawing import Drawing
from diskbuffer.adapters.ray.limiting.limiter import ClusterLimiter
from diskbuffer.adapters.ray.local_shards import LocalShards
from diskbuffer.adapters.ray.metrics import ClientMetrics
from diskbuffer.adapters.ray.shard import boot_id
from diskbuffer.adapters.ray.shards import Known, Shards
from diskbuffer.adapters.ray.steps import StepsOfShards
from diskbuffer.errors import ClosedError, InputError
from diskbuffer.plugin import Batch, Transform, as_array, integer, integer_or_none, step_ids


class RayReplayBuffer(StepsByName):
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
    limiter : SampleToInsertRatio, optional
        Have `add` and `extend` wait where too little was sampled for what was added, and `sample` and loaders where too much was,
        in all processes that have this buffer. An actor of Ray counts, on this machine, or elsewhere when that is gone.
    seed : int, optional
        For the draws. As answers come when they come, batches are not the same in two runs.
    lifetime : {"detached"}, optional
        As of Ray's actors: whether shards live on when the process that made them ends.
    num_cpus : float
        That each shard asks Ray for.
    **store
        For each shard's `ReplayBuffer`: ``columns=`` or the two spaces, ``extra=``, ``frame_stack=``, ``padding=``, ...

    Attributes
    ----------
    limiter : ClusterLimiter or None
        Its ``may_add`` and ``may_sample`` tell what would not wait now.

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
        limiter: SampleToInsertRatio | None = None,
        seed: int | None = None,
        lifetime: str | None = None,
        num_cpus: float = 0,
        **store: Any,
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        self._how: dict[str, Any] = {
            "n_envs": integer("n_envs", n_envs),
            "block": integer("block", block),
            "in_flight": integer("in_flight", in_flight),
            "patience": float(patience),
            "near": near,
            "compress": compress,
            "refresh_every": float(refresh_every),
            "seed": integer_or_none("seed", seed, 0, None),
            "limiter": limiter,
        }
        capacity, streams = integer_or_none("capacity", capacity), integer("streams", streams)
        if n_envs > streams:
            raise InputError(f"{n_envs} environments need streams of their own, and there are {streams}; give a larger streams=")
        if limiter is not None and not isinstance(limiter, SampleToInsertRatio):
            raise InputError(f"limiter must be a SampleToInsertRatio, found {limiter!r}")
        options = {**store, "n_envs": streams}
        handles = members.start(self.path, placing.places(shards), options, lifetime, num_cpus)
        self._join(handles, owner=True)
        members.open_stores(self._shards.known, self._disks, capacity)
        if limiter is not None:
            self._count_with(members.start_counter(self.path, len(handles), limiter, lifetime, self._how["patience"]))
        self._begin()

    @classmethod
    def _attached(cls, path: Path, how: dict[str, Any], handles: Sequence[Any], counter: Any) -> Self:
        """Be another process's way to the same shards."""
        buffer = cls.__new__(cls)
        buffer.path, buffer._how = path, how
        buffer._join(handles, owner=False)
        if counter is not None:
            buffer._count_with(counter)
        buffer._begin()
        return buffer

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process gets to the same shards."""
        self._check_open()
        return RayReplayBuffer._attached, (self.path, self._how, [known.handle for known in self._shards.known], self._counter)

    def _join(self, handles: Sequence[Any], *, owner: bool) -> None:
        how = self._how
        self._owner, self._closed = owner, False
        self._shards = Shards(handles, how["patience"], how["refresh_every"])
        self._disks = dict(enumerate(members.disks(handles, wait=owner, patience=how["patience"])))
        self._client, self._boot = uuid.uuid4().hex, boot_id()
        self._by_distance = sorted(self._shards.known, key=self._distance)
        self._counter: Any = None
        self.limiter: ClusterLimiter | None = None

    def _count_with(self, counter: Any) -> None:
        self._counter, how = counter, self._how
        self.limiter = ClusterLimiter(counter, how["limiter"], self._client, str(self.path), how["patience"])
        weakref.finalize(self, self.limiter.close, wait=False)  # its thread would keep on telling that this process is alive

    def _begin(self) -> None:
        how = self._how
        self._metrics = ClientMetrics(str(self.path))
        self._adding = Adding(
            self._client,
            how["n_envs"],
            how["block"],
            how["in_flight"],
            how["patience"],
            self._nearest,
            self.limiter,
            self._metrics,
        )
        self._steps = StepsOfShards(self._shards, compress=how["compress"])
        self._cached_drawing: Drawing | None = None
        self._local: LocalShards | None = None
        self._lock = threading.Lock()

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
        LimiterTimeoutError
            The limiter had it wait for too long. Nothing was added.
        """
        self._check_open()
        values = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        values |= {"terminated": terminated, "truncated": truncated, **extra}
        self._adding.add(values, new_episode)
        return int(self._how["n_envs"])

    def extend(self, *steps: Any, env: int = 0, new_episode: Any = None, **values: Any) -> int:
        """Add arrays of steps of one environment, sent at once, and acknowledged as those of `add`.

        Parameters
        ----------
        *steps, **values
            Columns, by name or in the order obs, action, reward, next_obs, terminated, truncated, as of `ReplayBuffer.extend`.
        env, new_episode
            As of `ReplayBuffer.extend`.

        Returns
        -------
        int
            Steps that were sent.

        Raises
        ------
        InputError, StackError, UnreachableError, LimiterTimeoutError
            As of `add`.
        """
        self._check_open()
        env = integer("env", env, 0, self._how["n_envs"] - 1)
        positional = dict(zip(NAMES, steps, strict=False))
        if len(steps) > len(NAMES) or set(positional) & set(values):
            raise InputError(f"extend takes {', '.join(NAMES)} in this order, and each of them once")
        columns = {name: value for name, value in (positional | values).items() if value is not None}
        return self._adding.extend(columns, env, new_episode)

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
        self._adding.push()
        if self._cached_drawing is not None:
            self._cached_drawing.settle()
        if sync:
            members.each(self._shards.known, lambda known: known.handle.flush.remote(), self._how["patience"])

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
        LimiterTimeoutError
            The limiter had it wait for too long. Nothing was sampled.
        """
        self._check_open()
        size, delivering = integer("batch_size", batch_size), Delivering(device, transform)
        self._wait_to_sample()
        batch: Batch = self._sample(size, sampler, delivering)
        self._note_sampled(size, sampler)
        return batch

    def _sample(self, size: int, sampler: Sampler | None, delivering: Delivering) -> Any:
        if sampler is not None and not isinstance(sampler, Sampler):
            raise InputError(f"sampler must be a sampler, such as diskbuffer.Uniform(), found {sampler!r}")
        begin = time.perf_counter()
        batch = self._drawing.sample(size, sampler)
        self._metrics.sampled(time.perf_counter() - begin)
        return delivering(batch)

    def _wait_to_sample(self) -> None:
        if self.limiter is not None:
            self._adding.look()
            if self.limiter.wait_to_sample():
                self.refresh()

    def _note_sampled(self, size: int, sampler: Sampler | None) -> None:
        if self.limiter is not None:
            self.limiter.note_sampled(size * (1 if sampler is None else sampler.form.steps))

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
        """Yield batches without end, `prefetch` of them ahead of the learner; other arguments are those of `sample`.

        A limiter counts a batch when it is delivered, and not when it is drawn ahead.
        """
        self._check_open()
        drawing, size, many = self._drawing, integer("batch_size", batch_size), integer("prefetch", prefetch)
        delivering = Delivering(device, transform)
        if drawing.is_all_local(sampler):
            assert self._local is not None
            batches = self._local.loader(size, sampler, device, transform, many, threads)
        else:
            batches = repeated(lambda: self._sample(size, sampler, delivering), many)
        return batches if self.limiter is None else self._limited(batches, size, sampler)

    def _limited(self, batches: Generator[Any, None, None], size: int, sampler: Sampler | None) -> Generator[Any, None, None]:
        try:
            while True:
                self._wait_to_sample()
                batch = next(batches)
                self._note_sampled(size, sampler)
                yield batch
        finally:
            batches.close()

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
        ids = step_ids(steps, of_sequences=True)
        errors = as_array("priorities", priorities).astype(np.float64)
        if len(errors) != len(ids):
            raise InputError(f"there must be a priority for each of {len(ids)} steps, found {len(errors)}")
        self._drawing.update(sampler, ids, errors)

    @property
    def _drawing(self) -> Drawing:
        with self._lock:
            if self._cached_drawing is None:
                how = self._how
                if how["near"]:
                    options = {"seed": how["seed"]}
                    self._local = LocalShards.find(self.path, self._disks, how["refresh_every"], options)
                self._cached_drawing = Drawing(self._shards, self._local, compress=how["compress"], seed=how["seed"])
            return self._cached_drawing

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
        if self._local is not None and drawing is not None:
            self._local.refresh()

    def stats(self) -> dict[str, Any]:
        """Return figures on the buffer.

        ``steps`` and ``added`` (ever) of all shards; of this process: ``acknowledged``, ``resent``, ``lost`` (by a power loss),
        ``waited`` (seconds of `add`), ``shard`` (where its steps go), ``dropped_updates``; and ``shards``, of each: ``number``,
        ``answers``, ``why`` it does not, ``away`` (seconds), ``skipped`` (batches without it), ``rejoined``, ``near`` (whether it
        is read here), ``steps``, ``added``.

        ``limiter``, where there is one, is as in `ReplayBuffer.stats`, over the cluster: ``waiting_to_add`` and
        ``waiting_to_sample`` tell for how many seconds processes have waited. ``answers`` is whether what counts does; where not,
        there is only that, and ``waited``. ``restarted``: whether it was, and went on from what shards had kept.
        """
        self._check_open()
        self._shards.ask_all()
        local = frozenset() if self._local is None else self._local.shards
        shards = [members.figures(known, known.number in local) for known in self._shards.known]
        self._metrics.away(sum(not figures["answers"] for figures in shards))
        lane = self._adding.lane
        limited = {} if self.limiter is None else {"limiter": self.limiter.state()}
        return {
            "steps": sum(figures["steps"] for figures in shards),
            "added": sum(figures["added"] for figures in shards),
            "acknowledged": lane.acknowledged,
            "resent": lane.resent,
            "lost": lane.lost,
            "waited": lane.waited,
            "shard": lane.shard,
            "dropped_updates": 0 if self._cached_drawing is None else self._cached_drawing.dropped_updates,
            "shards": shards,
            **limited,
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
            if self._local is not None:
                self._local.close()
            self._adding.lane.leave()
            if self.limiter is not None:
                self.limiter.close()
            if self._owner:
                members.end(self._shards.known, self._counter)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
