"""ClusterBuffer: experience on the disks of a Ray cluster, which is sampled as one."""

from __future__ import annotations

import os
import pickle
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import ray
import torch
from torch.utils._pytree import tree_map

from diskbuffer import Prioritized, ReplayBuffer, Sampler, SampleToInsertRatio, Uniform
from diskbuffer.adapters.ray.ahead import repeated
from diskbuffer.adapters.ray.delivering import Delivering
from diskbuffer.adapters.ray.node_store import Sent, identity_of, local_directory, number_of
from diskbuffer.adapters.ray.nodes import ACTOR, Node, Nodes
from diskbuffer.adapters.ray.rate import ClusterLimiter, start_rate
from diskbuffer.adapters.ray.writing import Inbox
from diskbuffer.errors import ClosedError, EmptyBufferError, InputError, UnreachableError
from diskbuffer.plugin import Batch, Transform, as_array, integer, integer_or_none, power, step_ids, writers_of

_WRITERS = "actor-*"  # of stores on an actor's own node
_UPDATES = 8  # of priorities that may be on their way


class ClusterBuffer:
    """Experience on the disks of a Ray cluster: actors write to their own node's disk, and learners sample from all of them.

    Construct it in the driver, and give it to tasks and actors as an argument. An actor adds steps through `writer`, a learner
    calls `sample` or `loader`. On each node that has a disk, one actor of Ray, a `NodeStore`, reads what is there for learners
    elsewhere. Ray restarts it when it dies.

    Parameters
    ----------
    path : str or path-like
        A directory on each node. Environment variables in it (``"$SCRATCH/pong"``), and "~", are those of the node. It has an
        identity of its own: its steps are found wherever its disk is, in a cluster of any nodes.
    capacity : int, optional
        Steps to keep on each node; by default all.
    disks : str, optional
        The resource that nodes with a disk have (``ray start --resources '{"disk": 1}'``); by default, all nodes have one.
    patience : float
        Seconds after which a node that does not answer is left out of batches, until it does.
    refresh_every : float
        Seconds until learners see what was added.
    limiter : SampleToInsertRatio, optional
        Hold this ratio in the whole cluster, from when the first such buffer is made.
    seed : int, optional
        For how a batch is divided among nodes, and for draws from this node's disk. Other nodes draw at random.
    **store
        For each writer's `ReplayBuffer`: ``columns=`` or both spaces, ``extra=``, ``frame_stack=``, ...

    Attributes
    ----------
    limiter : ClusterLimiter or None
        ``limiter.may_sample`` tells whether `sample` would not wait now, ``limiter.state()`` where things stand.

    Raises
    ------
    UnreachableError
        No node has a disk, or none answers.
    InputError
        An argument does not fit.

    Notes
    -----
    What this starts are named actors in Ray's namespace "diskbuffer". They live on when this buffer is closed, or its process
    ends, until `destroy`, or the end of the cluster.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity: int | None = None,
        *,
        disks: str | None = None,
        patience: float = 5.0,
        refresh_every: float = 0.2,
        limiter: SampleToInsertRatio | None = None,
        seed: int | None = None,
        **store: Any,
    ) -> None:
        if limiter is not None and not isinstance(limiter, SampleToInsertRatio):
            raise InputError(f"limiter must be a SampleToInsertRatio, found {limiter!r}")
        self.path = os.fspath(path)
        how: dict[str, Any] = {"disks": disks, "limiter": limiter, "seed": integer_or_none("seed", seed, 0, None)}
        how |= {"patience": float(patience), "refresh_every": float(refresh_every)}
        how["store"] = {**store, "capacity": integer_or_none("capacity", capacity)}
        self._begin(how, starts=True)

    @classmethod
    def _attached(cls, path: str, how: dict[str, Any]) -> Self:
        buffer = cls.__new__(cls)
        buffer.path = path
        buffer._begin(how, starts=False)
        return buffer

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process reaches the same stores."""
        return ClusterBuffer._attached, (self.path, self._how)

    def _begin(self, how: dict[str, Any], *, starts: bool) -> None:
        self._how, self._closed = how, False
        self._nodes = Nodes(self.path, how["disks"], how["refresh_every"], how["patience"], starts=starts)
        self._rate: Any = None
        self.limiter: ClusterLimiter | None = None
        if how["limiter"] is not None:
            self._rate = start_rate(self.path, how["limiter"], **ACTOR)
            self.limiter = self._limiter("sample", uuid.uuid4().hex, 0, self._stored)
        self._random, self._uniform = np.random.default_rng(how["seed"]), Uniform(how["seed"])
        self._sent: weakref.WeakKeyDictionary[Sampler, bytes] = weakref.WeakKeyDictionary()
        self._here: tuple[Path, ...] | None = None  # this node's directory, once that is known
        self._reader: ReplayBuffer | None = None
        self._refreshed = 0.0
        self._updates: deque[tuple[Node, Any]] = deque()
        self.dropped_updates = 0
        self._lock = threading.RLock()

    def _limiter(self, side: str, who: str, *counts: Any) -> ClusterLimiter:
        return ClusterLimiter(self._rate, self._how["limiter"], side, who, self.path, *counts)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the buffer of {self.path} was closed; make another one")

    # Writing

    def writer(self, *, timeout: float = 600.0, **how: Any) -> ReplayBuffer | Inbox:
        """Return what adds steps in this process: a `ReplayBuffer` on this node's disk, else an `Inbox` on another node's.

        It continues the store of a writer that has ended, if there is one. Close it at the end.

        Parameters
        ----------
        timeout : float
            Seconds that an `Inbox` waits for a node that does not answer.
        **how
            For `ReplayBuffer`: ``n_envs=``, or ``env=``, and ``autoreset=`` of this process's environments.

        Raises
        ------
        UnreachableError
            This node has no disk, and no node that has one answers.
        SchemaError, InputError
            As of `ReplayBuffer`.
        """
        self._check_open()
        options = {**self._how["store"], **how}
        directory = self._directory()
        if directory is not None:
            here = ReplayBuffer(directory, writer=_WRITERS, **options)
            who, count, writer = f"{identity_of(directory)}/{here.path.name}", int(here.counts()[1].sum()), cast(Any, here)
        else:
            self._nodes.look()
            inbox = Inbox(self._nodes, options, timeout)
            who, count, writer = inbox.name, inbox.added, cast(Any, inbox)
        if self._rate is not None:
            writer.limiter = self._limiter("add", who, count)
            weakref.finalize(writer, writer.limiter.close).atexit = False
        return writer  # type: ignore[no-any-return]

    def _directory(self) -> Path | None:
        """Return this node's directory; None where it has no disk."""
        if self._here is None:
            self._here = (local_directory(self.path),) if self._nodes.has_disk_here else ()
        return self._here[0] if self._here else None

    # Sampling

    def sample(
        self,
        batch_size: int,
        sampler: Sampler | None = None,
        *,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
    ) -> Batch:
        """Draw steps of all nodes and return them, as `ReplayBuffer.sample` does.

        How many come from a node is drawn in proportion to its steps, or, with `Prioritized`, to the sum of its priorities. This
        node's disk is read here, but for draws by priority. A node that does not answer in time is left out, and others take its
        part.

        Parameters
        ----------
        batch_size : int
        sampler : Sampler, optional
            Which steps: each node draws with one of its own that is like it. The newest has a column of priorities.
        device, transform
            As of `ReplayBuffer.sample`.

        Returns
        -------
        dict of str to torch.Tensor
            As of `ReplayBuffer.sample`, and ``node``, (batch_size,) int64: whose step it is, by a number that a directory keeps.
            ``steps`` are ids within the node.

        Raises
        ------
        EmptyBufferError, UnreachableError, LimiterTimeoutError
            There is no complete step; no node that has steps answers; or too little is added. Nothing was sampled.
        """
        self._check_open()
        size, delivering = integer("batch_size", batch_size), Delivering(device, transform)
        self._wait_to_sample()
        batch: Batch = delivering(self._sample(size, sampler))
        self._note_sampled(size, sampler)
        return batch

    def loader(
        self,
        batch_size: int,
        sampler: Sampler | None = None,
        *,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
        prefetch: int = 3,
    ) -> Generator[Batch, None, None]:
        """Yield batches without end, `prefetch` of them ahead of the learner; other arguments are those of `sample`.

        The limiter counts a batch when it is delivered.
        """
        self._check_open()
        size, delivering = integer("batch_size", batch_size), Delivering(device, transform)
        batches = repeated(lambda: delivering(self._sample(size, sampler)), integer("prefetch", prefetch))
        try:
            while True:
                self._wait_to_sample()
                yield next(batches)
                self._note_sampled(size, sampler)
        finally:
            batches.close()

    def _wait_to_sample(self) -> None:
        if self.limiter is not None:
            self.limiter.wait_to_sample()

    def _note_sampled(self, size: int, sampler: Sampler | None) -> None:
        if self.limiter is not None:
            self.limiter.note_sampled(size * (1 if sampler is None else sampler.form.steps))

    def _sample(self, size: int, sampler: Sampler | None) -> Batch:
        if sampler is not None and not isinstance(sampler, Sampler):
            raise InputError(f"sampler must be a sampler, such as diskbuffer.Uniform(), found {sampler!r}")
        by_priority = sampler if isinstance(sampler, Prioritized) else None
        sent = self._describe(sampler or self._uniform)
        parts, until = list[Any](), time.monotonic() + 2 * self._nodes.patience
        while size:
            self._nodes.look(None if by_priority is None else sent)
            local, here = self._local() if by_priority is None else (None, None)
            if not parts and local is not None and here is not None and all(node.number == here for node in self._nodes):
                return cast(Batch, _named(local.sample(size, sampler), torch.full((size,), here)))
            drawn = self._draw(size, sampler, sent, local, here)
            size -= sum(len(part["steps"]) for part in drawn)
            parts += drawn
            self._check_open()
            if size and time.monotonic() > until:
                reasons = "; ".join(f"{node.node_id[:8]}: {node.why}" for node in self._nodes if not node.answers)
                raise UnreachableError(f"no node gave steps for {2 * self._nodes.patience:g} s ({reasons}); stats() tells more")
        every = {name: value for part in parts for name, value in part.items()}
        for part in parts:  # a column that learners wrote on some nodes only is zeros on others, as it is within one
            for name in every.keys() - part.keys():
                part[name] = tree_map(partial(_zeros_like, len(part["steps"])), every[name])
        joined: Batch = tree_map(lambda *arrays: torch.from_numpy(np.concatenate(arrays)), *parts)
        return joined

    def _draw(self, size: int, sampler: Sampler | None, sent: Sent, local: ReplayBuffer | None, here: int | None) -> list[Any]:
        """Return parts of a batch, as arrays: all of it, or less where a node did not give its part in time."""
        others = [node for node in self._nodes if local is None or node.number != here]
        answering = [node for node in others if node.answers]
        by_priority = isinstance(sampler, Prioritized)
        masses = [node.masses.get(sent.pickled, (0.0, 0.0)) for node in answering]
        weights = [mass if by_priority else node.steps for node, (mass, _) in zip(answering, masses, strict=True)]
        weights += [len(local)] if local is not None else []
        if not sum(weights):
            self._nodes.refresh(sent if by_priority else None)
            if others and all(node.answers for node in others) and not any(node.steps for node in others):
                raise EmptyBufferError("the cluster holds no complete step yet; add some before sampling")
            time.sleep(0.01)
            return []
        with self._lock:
            shares = self._random.multinomial(size, np.array(weights) / sum(weights)).tolist()
        calls = [(node, node.handle.sample.remote(n, sent)) for node, n in zip(answering, shares, strict=False) if n]
        parts = []
        if local is not None and shares[-1]:
            batch = tree_map(torch.Tensor.numpy, local.sample(shares[-1], sampler))
            parts.append(_named(batch, np.full(shares[-1], here, np.int64)))
        least = min((least for _, least in masses if least), default=0.0)
        for node, (batch, answer) in self._nodes.collect(calls):
            node.note(answer, sent if by_priority else None)
            if batch is not None:
                if isinstance(sampler, Prioritized) and answer.least:  # weights are relative to the least likely step of all
                    scale = power(np.array([min(least, answer.least) / answer.least]), sampler.beta)
                    batch["weights"] = batch["weights"] * np.float32(scale[0])
                parts.append(_named(batch, np.full(len(batch["steps"]), node.number, np.int64)))
        return parts

    def _local(self) -> tuple[ReplayBuffer | None, int | None]:
        """Return what reads this node's disk, and the node's number; None where it has none, or no steps yet."""
        with self._lock:
            if self._reader is None:
                directory = self._directory()
                if directory is None or not writers_of(directory):
                    return None, None
                self._number = number_of(identity_of(directory))
                self._reader = ReplayBuffer(directory, mode="r", seed=self._how["seed"])
                self._refreshed = time.monotonic()
            elif time.monotonic() - self._refreshed > self._how["refresh_every"]:
                self._reader.refresh()
                self._refreshed = time.monotonic()
            return (self._reader, self._number) if len(self._reader) else (None, None)

    def _describe(self, sampler: Sampler) -> Sent:
        pickled = self._sent.get(sampler)
        if pickled is None:
            pickled = self._sent[sampler] = pickle.dumps(sampler)
        return Sent(pickled, sampler.beta if isinstance(sampler, Prioritized) else None)

    # What learners write

    def update(self, sampler: Prioritized, batch: Batch, priorities: Any) -> None:
        """Set the priorities of a batch's steps, as `Prioritized.update`, without waiting for the nodes.

        Those of a node that does not answer are dropped, and counted in ``stats()["dropped_updates"]``.

        Parameters
        ----------
        sampler, batch
            A batch, and the sampler that drew it.
        priorities : (n,) or (n, length) floats
        """
        self._check_open()
        sent, values = self._describe(sampler), as_array("priorities", priorities)
        for node, steps, mine in self._by_node(batch, values):
            if node is None:
                self.dropped_updates += len(steps)
            else:
                self._updates.append((node, node.handle.update.remote(sent, steps, mine)))
        self._settle(_UPDATES)

    def _settle(self, most: int = 0) -> None:
        """Wait until no more than so many updates are on their way."""
        while len(self._updates) > most:
            if not list(self._nodes.collect([self._updates.popleft()])):
                self.dropped_updates += 1

    def write(self, name: str, batch: Batch, values: Any) -> int:
        """Write a column's values of a batch's steps, as `Columns.write`; return of how many.

        An UnreachableError where a node does not answer; what is on others was written.
        """
        self._check_open()
        parts = list(self._by_node(batch, as_array(name, values)))
        calls = [(node, node.handle.write.remote(name, steps, mine)) for node, steps, mine in parts if node is not None]
        written = [count for _, count in self._nodes.collect(calls)]
        if len(written) < len(parts):
            raise UnreachableError(f"{len(parts) - len(written)} of {len(parts)} nodes do not answer; repeat the call")
        return sum(written)

    def _by_node(self, batch: Batch, values: Any) -> Sequence[tuple[Node | None, Any, Any]]:
        """Return nodes, None where one does not answer, their steps, and the values of these."""
        if "node" not in batch:
            raise InputError('the batch has no "node": give a batch as sample() returns it')
        numbers, steps = as_array("node", batch["node"]), step_ids(batch["steps"], of_sequences=True)
        known = {node.number: node for node in self._nodes if node.answers}
        return [(known.get(n), steps[numbers == n], values[numbers == n]) for n in np.unique(numbers).tolist()]

    def flush(self) -> None:
        """Wait until priorities have arrived, and have nodes sync what learners wrote to their disks; writers sync steps."""
        self._check_open()
        self._settle()
        answering = [node for node in self._nodes if node.answers]
        list(self._nodes.collect([(node, node.handle.flush.remote()) for node in answering]))

    # Looking

    def _stored(self) -> int:
        return sum(node.steps for node in self._nodes)

    def refresh(self) -> None:
        """See what was added by now, on all nodes that answer."""
        self._check_open()
        self._nodes.look()
        self._nodes.refresh()
        self._refreshed = 0.0

    def __len__(self) -> int:
        """Return how many steps can be sampled, as far as nodes have told."""
        self._nodes.look()
        return self._stored()

    def stats(self) -> dict[str, Any]:
        """Return ``steps``, ``dropped_updates``, ``limiter``, and ``nodes``: of each what it has, and whether it answers."""
        self._nodes.look()
        nodes = [
            {
                "node_id": node.node_id,
                "number": node.number,
                "steps": node.steps,
                "added": 0 if node.answer is None else node.answer.added,
                "answers": node.answers,
                "why": node.why,
                "away": 0.0 if node.answers else time.monotonic() - node.away_since,
            }
            for node in self._nodes
        ]
        limiter = {} if self.limiter is None else {"limiter": self.limiter.state()}
        return {"steps": self._stored(), "dropped_updates": self.dropped_updates, "nodes": nodes} | limiter

    # Closing

    def close(self) -> None:
        """Close this handle; stores, and other handles, stay open."""
        if not self._closed:
            self._settle()
            self._closed = True
            if self.limiter is not None:
                self.limiter.close()
            if self._reader is not None:
                self._reader.close()

    def destroy(self) -> None:
        """Close this handle, and end the cluster's actors for this path; the steps stay on the disks."""
        self.close()
        self._nodes.destroy()
        if self._rate is not None:
            ray.kill(self._rate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def _zeros_like(count: int, value: Any) -> Any:
    return np.zeros((count, *value.shape[1:]), value.dtype)


def _named(batch: Any, nodes: Any) -> Any:
    batch["node"] = nodes
    return batch
