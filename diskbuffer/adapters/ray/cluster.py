"""ClusterBuffer: experience on the disks of a Ray cluster, which is sampled as one."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Self, cast

import numpy as np
import ray
import torch
from ray import cloudpickle

from diskbuffer import Prioritized, ReplayBuffer, Sampler, SampleToInsertRatio, Uniform
from diskbuffer.adapters.ray.node_store import Directory, Update, identity_in
from diskbuffer.adapters.ray.nodes import Node, Nodes
from diskbuffer.adapters.ray.packing import unpack
from diskbuffer.adapters.ray.parts import by_number, joined, shares, weights_of_all
from diskbuffer.adapters.ray.rate import ClusterLimiter, answer_of, held_ratio, start_rate, tell_actor
from diskbuffer.errors import ClosedError, EmptyBufferError, InputError, UnreachableError
from diskbuffer.plugin import (
    Batch,
    Transform,
    as_array,
    copied_to,
    device_of,
    integer,
    integer_or_none,
    priorities_of,
    refuse_unknown,
    seconds_of,
    transform_of,
)

_WRITERS = "actor-*"  # of stores on an actor's own node
_UPDATES = 8  # of priorities that may wait for a node
_RESTART = 60.0  # seconds that a draw waits where no node has steps and answers, as Ray may be starting it again


class _Writer(ReplayBuffer):
    """A store whose limiter is the cluster's."""

    def close(self) -> None:
        """Close it, and tell how many steps it has."""
        super().close()
        if self.limiter is not None:
            self.limiter.close()


@dataclass
class _Updates:
    """Updates of priorities for a node: those that wait, and those on their way, of how many steps, to which process."""

    waiting: list[Update] = field(default_factory=list)
    sent: tuple[int, Node, Any] | None = None


class ClusterBuffer:
    """Experience on the disks of a Ray cluster: actors write to their own node's disk, and learners sample from all of them.

    Construct it in the driver, and give it to tasks and actors as an argument. An actor adds steps through `writer`, a learner
    calls `sample` or `loader`. On each node that has a disk, one actor of Ray, a `NodeStore`, reads what is there for learners
    elsewhere. Ray restarts it when it dies.

    Parameters
    ----------
    path : str or path-like
        A directory on each node. Environment variables in it (``"$SCRATCH/pong"``), and "~", are those of the node; else a
        relative path is of where this is called. The directory has an identity: its steps are found wherever its disk is.
    capacity : int, optional
        Steps to keep on each node; by default all.
    disks : str, optional
        The resource that nodes with a disk have (``ray start --resources '{"disk": 1}'``); by default, all nodes have one.
    patience : float
        Seconds after which a node that does not answer is left out of batches, until it does.
    refresh_every : float
        Seconds until learners see what was added.
    limiter : SampleToInsertRatio, optional
        Hold this ratio in the cluster. A buffer that is made later, and without it, holds the same.
    seed : int, optional
        For how a batch is divided among nodes, and for draws from this node's disk. Other nodes draw at random.
    **store
        For each writer's `ReplayBuffer`: ``columns=`` or both spaces, ``extra=``, ``frame_stack=``, ...

    Raises
    ------
    UnreachableError
        No node has a disk.
    InputError
        An argument does not fit.

    Notes
    -----
    What this starts are named actors in Ray's namespace "diskbuffer". They live on until `destroy`, or the end of the cluster.
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
        refuse_unknown(store, ReplayBuffer)
        store["capacity"], seed = integer_or_none("capacity", capacity), integer_or_none("seed", seed, 0, None)
        how = {"patience": seconds_of("patience", patience), "refresh_every": seconds_of("refresh_every", refresh_every)}
        where = os.fspath(path)
        if not where.startswith(("$", "~")):
            where = os.path.abspath(where)  # as other processes have other working directories
        held = limiter or held_ratio(where)
        self._begin({**how, "path": where, "disks": disks, "limiter": held, "seed": seed, "store": store}, starts=True)
        if limiter is not None:
            start_rate(where, limiter)

    def __getstate__(self) -> dict[str, Any]:
        """Return how another process reaches the same stores."""
        return self._how

    def __setstate__(self, how: dict[str, Any]) -> None:
        """Reach the stores; nothing is started by this."""
        self._begin(how, starts=False)

    def _begin(self, how: dict[str, Any], *, starts: bool) -> None:
        self._how, self._closed, self.path = how, False, how["path"]
        self._nodes = Nodes(self.path, how["disks"], how["refresh_every"], how["patience"], starts=starts)
        self._random, self._uniform = np.random.default_rng(how["seed"]), Uniform(how["seed"])
        self._sent: weakref.WeakKeyDictionary[Sampler, bytes] = weakref.WeakKeyDictionary()
        self._loading = set[Future[Any]]()  # draws of loaders
        self._name, self._numbered = uuid.uuid4().hex, 0  # of this learner, and of what it sent last
        self._updates: dict[int, _Updates] = {}  # by the identity of a node's directory
        self.dropped_updates = 0
        self._lock, self._sending = threading.Lock(), threading.Lock()  # of the random numbers; of updates

    @property
    def options(self) -> Mapping[str, Any]:
        """What each writer's `ReplayBuffer` is made with."""
        return MappingProxyType(self._how["store"])

    @cached_property
    def limiter(self) -> ClusterLimiter | None:
        """What a learner waits for: ``limiter.may_sample`` tells whether `sample` would not wait, ``limiter.state()`` why."""
        return self._limiter("sample", uuid.uuid4().hex, 0)

    def _limiter(self, side: str, who: str, count: int) -> ClusterLimiter | None:
        if (held := self._how["limiter"]) is None:
            return None
        stored = self.__len__ if side == "sample" else self._stored  # a learner asks nodes; a writer's steps count in any case
        tell = partial(tell_actor, start_rate(self.path, held))
        return ClusterLimiter(tell, held, side, who, self.path, count, stored)

    @cached_property
    def _here(self) -> Directory | None:
        """The directory of this node; None where it has no disk."""
        return Directory(self.path, self._how["refresh_every"], self._how["seed"]) if self._nodes.has_disk_here else None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the buffer of {self.path} was closed; make another one")

    # Writing

    def writer(self, **how: Any) -> ReplayBuffer:
        """Return what adds steps in this process: a `ReplayBuffer` on this node's disk.

        It continues the store of a writer that has ended, if there is one. Close it at the end.

        Parameters
        ----------
        **how
            For `ReplayBuffer`: ``n_envs=``, or ``env=``, and ``autoreset=`` of this process's environments.

        Raises
        ------
        UnreachableError
            This node has no disk.
        SchemaError, InputError
            As of `ReplayBuffer`.
        """
        self._check_open()
        if self._here is None:
            raise UnreachableError(
                f"this node has no disk for {self.path}: run what adds steps where there is one, with resources="
                f"{{{self._how['disks']!r}: 0.001}}, or have an actor there that takes the steps of others and adds them"
            )
        here: Any = _Writer(self._here.path, writer=_WRITERS, **{**self._how["store"], **how})
        here.limiter = self._limiter("add", f"{self._here.identity}/{here.path.name}", int(here.counts()[1].sum()))
        return here  # type: ignore[no-any-return]

    # Sampling

    def sample(
        self, batch_size: int, sampler: Sampler | None = None, *, device: Any = None, transform: Transform | None = None
    ) -> Any:
        """Draw steps of all nodes and return them, as `ReplayBuffer.sample` does.

        How many come from a node is drawn in proportion to its steps, or, with `Prioritized`, to the sum of its priorities. This
        node's disk is read here, but for draws by priority. A node that does not answer in time is left out, and others take its
        part.

        Parameters
        ----------
        batch_size : int
        sampler : Sampler, optional
            Which steps: each node draws with one of its own that is like it. Those by priority need a ``column=`` each.
        device, transform
            As of `ReplayBuffer.sample`.

        Returns
        -------
        dict of str to torch.Tensor
            As of `ReplayBuffer.sample`, and ``node``, (batch_size,) int64: whose step it is, by a number that a directory keeps
            until its machine is started again. ``steps`` are ids within the node.

        Raises
        ------
        EmptyBufferError, UnreachableError, LimiterTimeoutError
            No node has a step to draw; no node that has steps answers; or too little is added. Nothing was sampled.
        """
        size, deliver = integer("batch_size", batch_size), partial(_delivered, device_of(device), transform_of(transform))
        return self._limited(size, sampler, lambda: deliver(self._sample(size, sampler)))

    def loader(
        self,
        batch_size: int,
        sampler: Sampler | None = None,
        *,
        device: Any = None,
        transform: Transform | None = None,
        prefetch: int = 3,
    ) -> Generator[Any, None, None]:
        """Return batches without end, drawn by `prefetch` threads ahead of the learner; other arguments are those of `sample`.

        The limiter counts a batch when it is delivered. After an error, and to go on after it, call this again.
        """
        size, deliver = integer("batch_size", batch_size), partial(_delivered, device_of(device), transform_of(transform))
        prefetch = integer("prefetch", prefetch)
        self._check_open()

        def batches() -> Generator[Any, None, None]:
            threads, ahead = ThreadPoolExecutor(prefetch, "diskbuffer-load"), deque[Future[Any]]()

            def next_batch() -> Any:
                while len(ahead) <= prefetch:
                    ahead.append(threads.submit(lambda: deliver(self._sample(size, sampler))))
                    self._loading.add(ahead[-1])
                    ahead[-1].add_done_callback(self._loading.discard)
                return ahead.popleft().result()

            try:
                while True:
                    yield self._limited(size, sampler, next_batch)
            finally:  # perhaps in one of the threads, which may collect this as garbage
                if not sys.is_finalizing():
                    threads.shutdown(wait=False, cancel_futures=True)

        return batches()

    def _limited(self, size: int, sampler: Sampler | None, draw: Callable[[], Any]) -> Any:
        """Draw when the limiter allows it, and count it."""
        self._check_open()
        self._send_updates()
        if self.limiter is None:
            return draw()
        self.limiter.wait_to_sample()
        batch = draw()
        self.limiter.note_sampled(size * (1 if sampler is None else sampler.form.steps))
        return batch

    def _sample(self, size: int, sampler: Sampler | None) -> Batch:
        if sampler is not None and not isinstance(sampler, Sampler):
            raise InputError(f"sampler must be a sampler, such as diskbuffer.Uniform(), found {sampler!r}")
        parts: list[Any] = []
        dry: dict[Node, str] = {}
        longest = max(_RESTART, 2 * self._nodes.patience)
        until = time.monotonic() + longest
        while size:
            self._check_open()
            for part in self._draw(size, sampler, dry):
                size -= part["steps"].shape[0]
                parts.append(part)
            if size and time.monotonic() > until:
                reasons = "; ".join(f"{node.node_id[:8]}: {node.why}" for node in self._nodes.every() if not node.answers)
                reasons = reasons or "a node with steps is not there; was the buffer destroyed?"
                raise UnreachableError(f"no node gave steps for {longest:g} s: {reasons}")
        return joined(parts)

    def _draw(self, size: int, sampler: Sampler | None, dry: dict[Node, str]) -> list[Any]:
        """Return parts of a batch: all of it, or less where a node did not give its part.

        `dry` are nodes that have nothing that fits the sampler, and why.
        """
        by_priority = self._describe(sampler) if isinstance(sampler, Prioritized) else None
        here = None if by_priority else self._here  # priorities are with the node's process
        self._nodes.look(by_priority)
        mine = self._nodes.only
        if mine is not None and here is not None and here.number == mine.last.number and mine.last.steps and mine not in dry:
            return self._draw_here(here, mine, size, sampler, dry)
        nodes = list(self._nodes)
        mine = next((node for node in nodes if here is not None and here.number == node.last.number), None)
        some = [node for node in nodes if (node.answers or node is mine) and node not in dry]
        weights = {node: node.mass(by_priority).total if by_priority else node.last.steps for node in some}
        if not sum(weights.values()):
            time.sleep(0.01)
            self._nodes.look(by_priority, now=True)
            # A node may have steps and no mass, as where no episode is long enough.
            empty = {n for n in nodes if not n.last.steps or (by_priority in n.masses and not n.mass(by_priority).total)}
            if nodes and all(node.answers and (node in dry or node in empty) for node in nodes):
                what = "step that fits the sampler" if any(node.last.steps for node in nodes) else "complete step"
                raise EmptyBufferError([*dry.values(), f"the cluster holds no {what} yet; add some before sampling"][0])
            return []
        with self._lock:
            asked = shares(size, weights, self._random)
        sent = by_priority or self._describe(sampler or self._uniform)
        calls = [(node, node.handle.sample.remote(n, sent)) for node, n in asked.items() if n and node is not mine]
        parts = self._draw_here(here, mine, asked[mine], sampler, dry) if here and mine and asked.get(mine) else []
        drawn = list(self._nodes.collect(calls))
        for node, (_, answer) in drawn:
            node.note(answer, by_priority)
        least = min((node.mass(by_priority).least for node in nodes if node.mass(by_priority).least), default=0.0)
        for node, (batch, answer) in drawn:
            if isinstance(batch, str):
                dry[node] = batch
                continue
            batch = unpack(batch)
            if isinstance(sampler, Prioritized):  # weights are relative to the least likely step of all
                batch["weights"] = weights_of_all(batch["weights"], answer.least, least, sampler.beta)
            parts.append(batch | {"node": np.full(len(batch["steps"]), node.last.number)})
        return parts

    @staticmethod
    def _draw_here(here: Directory, mine: Node, rows: int, sampler: Sampler | None, dry: dict[Node, str]) -> list[Any]:
        try:
            return [here.read().sample(rows, sampler) | {"node": torch.full((rows,), here.number)}]
        except EmptyBufferError as error:
            dry[mine] = str(error)
            return []

    def _describe(self, sampler: Sampler) -> bytes:
        pickled = self._sent.get(sampler)
        if pickled is None:
            pickled = self._sent[sampler] = cloudpickle.dumps(sampler)  # as it may have functions of a script
        return pickled

    # What learners write

    def update(self, sampler: Prioritized, batch: Batch, priorities: Any) -> None:
        """Set the priorities of a batch's steps, as `Prioritized.update`, without waiting for the nodes.

        Of two updates of a step the later one stands. What a node that does not answer would get is dropped, and counted in
        ``stats()["dropped_updates"]``, and so is what is of steps that a node gave before its machine was started again.

        Parameters
        ----------
        sampler, batch
            A batch, and the sampler that drew it.
        priorities : (n,) or (n, length) floats
        """
        self._check_open()
        if not isinstance(sampler, Prioritized):
            raise InputError(f"sampler must be the Prioritized that drew the batch, found {sampler!r}")
        sent, values = self._describe(sampler), priorities_of(priorities)
        for node, number, steps, mine in self._by_node(batch, values):
            if node is None:
                self.dropped_updates += len(steps)
            else:
                self._updates.setdefault(node.last.identity, _Updates()).waiting.append((sent, number, steps, mine))
        self._send_updates(_UPDATES)

    def _send_updates(self, most: int | None = None) -> None:
        """Send each node the updates that wait for it, once it has taken those before: else older ones might come last.

        With `most`, wait for nodes for which more than so many wait; with 0, for all that were sent, too.
        """
        with self._sending:
            for identity, updates in list(self._updates.items()):
                while updates.sent is not None or updates.waiting:
                    if updates.sent is None:
                        self._send(identity, updates)
                        continue
                    must_wait = most is not None and (len(updates.waiting) > most or not most)
                    if not must_wait and not ray.wait([updates.sent[2]], timeout=0)[0]:
                        break
                    steps, *call = updates.sent
                    updates.sent = None
                    taken = [dropped for _, dropped in self._nodes.collect([cast(Any, call)])]
                    self.dropped_updates += sum(taken) if taken else steps

    def _send(self, identity: int, updates: _Updates) -> None:
        batch, updates.waiting = updates.waiting, []
        steps = sum(len(each) for _, _, each, _ in batch)
        if (node := self._nodes.of(identity)) is None:
            self.dropped_updates += steps
            return
        self._numbered += 1
        updates.sent = steps, node, node.handle.update.remote(self._name, self._numbered, batch)

    def write(self, name: str, batch: Batch, values: Any) -> int:
        """Write a column's values of a batch's steps, as `Columns.write`; return of how many.

        Steps that a node gave before its machine was started again are left out: a power loss may have taken them. An
        UnreachableError where a node does not answer; what is on others was written.
        """
        self._check_open()
        parts = list(self._by_node(batch, as_array(name, values)))
        calls = [(node, node.handle.write.remote(name, *part)) for node, *part in parts if node is not None]
        return sum(self._all_of(calls, len(parts)))

    def _all_of(self, calls: Sequence[tuple[Node, Any]], expected: int) -> list[Any]:
        results = [result for _, result in self._nodes.collect(calls)]
        if len(results) < expected:
            raise UnreachableError(f"{expected - len(results)} of {expected} nodes do not answer; repeat the call")
        return results

    def _by_node(self, batch: Batch, values: Any) -> Iterator[tuple[Node | None, int, Any, Any]]:
        """Yield nodes, None where one does not answer, their numbers in the batch, their steps, and the values of these."""
        parts = by_number(batch, values)
        self._nodes.look()
        for number, steps, mine in parts:
            yield self._nodes.of(identity_in(number)), number, steps, mine

    def flush(self) -> None:
        """Wait until priorities have arrived, and have nodes sync what learners wrote to their disks; writers sync steps.

        An UnreachableError where a node does not answer; others have synced.
        """
        self._check_open()
        self._send_updates(0)
        self._nodes.look()
        nodes = list(self._nodes)
        self._all_of([(node, node.handle.flush.remote()) for node in nodes if node.answers], len(nodes))

    # Looking

    def _stored(self) -> int:
        return sum(node.last.steps for node in self._nodes)

    def refresh(self) -> None:
        """See what was added by now, on all nodes that answer."""
        self._check_open()
        self._nodes.look(now=True)
        if self._here is not None:
            with contextlib.suppress(EmptyBufferError):
                self._here.read(now=True)

    def __len__(self) -> int:
        """Return how many steps can be sampled, as far as nodes have told."""
        self._nodes.look()
        return self._stored()

    def stats(self) -> dict[str, Any]:
        """Return ``steps`` and ``added`` (ever), ``dropped_updates``, and ``nodes``: what each has, and whether it answers.

        What was ever added does not fall when a node goes.
        """
        self._nodes.look()
        added = self._nodes.added()
        if (held := self._how["limiter"]) is not None:
            added = max(added, answer_of(start_rate(self.path, held).added.remote()))
        told = ("number", "steps", "added")
        nodes: list[dict[str, Any]] = [
            {name: getattr(one, name) for name in ("node_id", "answers", "why")}
            | {name: getattr(one.last, name) for name in told}
            for one in self._nodes.every()
        ]
        return {"steps": self._stored(), "added": added, "dropped_updates": self.dropped_updates, "nodes": nodes}

    # Closing

    def close(self) -> None:
        """Close this handle; stores, and other handles, stay open."""
        if not self._closed:
            self._closed = True
            while self._loading:  # which see that it is closed, before the actors that they wait for are gone
                time.sleep(0.01)
            here, limiter = vars(self).get("_here"), vars(self).get("limiter")  # as far as they were used
            if limiter is not None:
                limiter.close()
            if here is not None and here.reader is not None:
                here.reader.close()
            self._send_updates(0)

    def destroy(self) -> None:
        """Close this handle, and end the cluster's actors for this path; the steps stay on the disks."""
        try:
            self.close()
        finally:
            self._nodes.destroy()
            if (held := self._how["limiter"]) is not None:
                ray.kill(start_rate(self.path, held))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _delivered(device: torch.device | None, transform: Transform | None, batch: Batch) -> Any:
    """Return what the caller gets of a batch: what a function makes of it, on a device."""
    result = batch if transform is None else transform(batch)
    return result if device is None else copied_to(result, device, [])
