"""The nodes of a cluster that have a store: finding and starting what holds them, and what each was last known to have."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diskbuffer.adapters.ray.node_store import Answer, NodeStore, Sent, number_of
from diskbuffer.errors import DiskBufferError, InputError, UnreachableError

ACTOR: dict[str, Any] = {  # options of all actors: other drivers find them, and Ray starts them again and repeats calls
    "namespace": "diskbuffer",
    "get_if_exists": True,
    "lifetime": "detached",
    "max_restarts": -1,
    "max_task_retries": -1,
}
_STARTING = 120.0  # seconds for actors to start, and to open their stores
_SCAN_EVERY = 5.0  # seconds until a node that joins the cluster is seen


@dataclass(eq=False)
class Node:
    """A node with a store; `handle` is of its `NodeStore`, `answer` the last, `masses` those of pickled samplers.

    `why` tells why it does not answer; it is empty while it does.
    """

    node_id: str
    handle: Any
    answer: Answer | None = None
    masses: dict[bytes, tuple[float, float]] = field(default_factory=dict)
    why: str = "has not answered yet"
    away_since: float = field(default_factory=time.monotonic)
    asked: tuple[Any, Sent | None] | None = None

    @property
    def answers(self) -> bool:
        """Whether it answered when it was last asked something."""
        return not self.why

    @property
    def identity(self) -> str:
        """Of its directory."""
        assert self.answer is not None
        return self.answer.identity

    @property
    def number(self) -> int:
        """What batches name its directory by."""
        return number_of(self.identity)

    @property
    def steps(self) -> int:
        """How many can be sampled."""
        return 0 if self.answer is None else self.answer.steps

    def note(self, answer: Answer, sent: Sent | None) -> None:
        """Take an answer in."""
        self.answer, self.why = answer, ""
        if sent is not None:
            self.masses[sent.pickled] = answer.mass, answer.least

    def note_away(self, why: str) -> None:
        """Leave it out until it answers."""
        if not self.why:
            self.away_since = time.monotonic()
        self.why = why


class Nodes:
    """Know the nodes that have a directory: all, or those with a resource of Ray. Start what holds it, where it `starts`."""

    def __init__(self, path: str, resource: str | None, refresh_every: float, patience: float, *, starts: bool) -> None:
        self._path, self._resource, self._starts = path, resource, starts
        self._refresh_every, self.patience = refresh_every, patience
        self._known: dict[str, Node] = {}
        self._scanned = self._asked = -1e9
        self._lock = threading.RLock()
        if starts:
            self._scan()
            self.ask(wait=_STARTING)
            if not self._known:
                raise UnreachableError(f"no node {f'has the resource {resource!r}' if resource else 'is alive'}, to store {path}")

    def __iter__(self) -> Iterator[Node]:
        """Iterate over nodes that have answered, each directory once."""
        with self._lock:
            distinct: dict[str, Node] = {}
            for node in self._known.values():
                if node.answer is None:
                    continue
                other = distinct.setdefault(node.identity, node)
                if other.answers and node.answers and other.answer is not None and other.answer.place != node.answer.place:
                    raise InputError(
                        f"{self._path} on nodes {other.node_id} and {node.node_id} is a directory and its copy; remove "
                        "_shared/identity from the copy to use both"
                    )
                if node.answers and not other.answers:
                    distinct[node.identity] = node
            return iter(list(distinct.values()))

    @property
    def has_disk_here(self) -> bool:
        """Whether the node that this process runs on has a disk."""
        return ray.get_runtime_context().get_node_id() in self._alive()

    def of(self, identity: str) -> Node | None:
        """Return the node that has a directory now, if it answers."""
        return next((node for node in self if node.identity == identity and node.answers), None)

    def look(self, sent: Sent | None = None) -> None:
        """See what nodes have, without waiting: at most every `refresh_every` seconds, or where a sampler is new to a node."""
        now = time.monotonic()
        with self._lock:
            if now - self._scanned > _SCAN_EVERY:
                self._scan()
                if all(node.answer is None for node in self._known.values()):
                    self.ask(sent, wait=self.patience)
            if now - self._asked > self._refresh_every:
                self.ask(sent, wait=0)
            if sent is not None and any(node.answers and sent.pickled not in node.masses for node in self):
                self.refresh(sent)

    def refresh(self, sent: Sent | None = None) -> None:
        """Wait for what nodes that answer have by now: `ask` may take in what they had when they were asked before."""
        for node, answer in self.collect([(node, node.handle.answer.remote(sent)) for node in self if node.answers]):
            node.note(answer, sent)

    def ask(self, sent: Sent | None = None, *, wait: float) -> None:
        """Ask all nodes what they have; take in what has come within so many seconds."""
        with self._lock:
            self._asked = time.monotonic()
            for node in self._known.values():
                if node.asked is None:
                    node.asked = node.handle.answer.remote(sent), sent
            by_ref = {node.asked[0]: node for node in self._known.values() if node.asked is not None}
            done, _ = ray.wait(list(by_ref), num_returns=len(by_ref), timeout=wait) if by_ref else ([], [])
            for ref in done:
                node = by_ref[ref]
                assert node.asked is not None
                (_, asked_about), node.asked = node.asked, None
                for answer in self._received(node, ref):
                    node.note(answer, asked_about)

    def _received(self, node: Node, ref: Any) -> list[Any]:
        """Return the result that has come, nothing where the node is gone; what it raised is raised here."""
        try:
            return [ray.get(ref)]
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DiskBufferError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            node.note_away(str(error).splitlines()[0])
            if isinstance(error, ray.exceptions.ActorDiedError):
                self._known.pop(node.node_id, None)
            return []

    def collect(self, calls: Sequence[tuple[Node, Any]]) -> Iterator[tuple[Node, Any]]:
        """Yield the results that come within the patience; nodes whose do not are left out from now on."""
        by_ref = {ref: node for node, ref in calls}
        done, late = ray.wait(list(by_ref), num_returns=len(by_ref), timeout=self.patience) if by_ref else ([], [])
        for ref in late:
            by_ref[ref].note_away(f"did not answer within {self.patience:g} s")
        for ref in done:
            for result in self._received(by_ref[ref], ref):
                yield by_ref[ref], result

    def _scan(self) -> None:
        """Find what holds the stores of the nodes that are alive; start it where it is missing."""
        self._scanned = time.monotonic()
        alive = self._alive()
        for gone in set(self._known) - alive:
            del self._known[gone]
        for node_id in sorted(alive - set(self._known)):
            handle = self._holder(node_id)
            if handle is not None:
                self._known[node_id] = Node(node_id, handle)

    def _alive(self) -> set[str]:
        """Return the ids of nodes that are alive and have a disk."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        return {node["NodeID"] for node in nodes if not self._resource or node["Resources"].get(self._resource)}

    def _holder(self, node_id: str) -> Any:
        name = f"{self._path}:{node_id}"
        if not self._starts:
            try:
                return ray.get_actor(name, namespace=ACTOR["namespace"])
            except ValueError:
                return None
        affinity = NodeAffinitySchedulingStrategy(node_id, soft=False)
        how = {**ACTOR, "num_cpus": 0, "scheduling_strategy": affinity}
        return NodeStore.options(name=name, **how).remote(self._path, self._refresh_every)  # type: ignore[attr-defined]

    def destroy(self) -> None:
        """Close all stores, and end what holds them."""
        refs = [node.handle.close.remote() for node in self._known.values() if node.answers]
        ray.wait(refs, num_returns=len(refs), timeout=30.0)
        for node in self._known.values():
            ray.kill(node.handle)
        self._known.clear()
