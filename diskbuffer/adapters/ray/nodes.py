"""The nodes of a cluster that have a disk: finding and starting their `NodeStore`s, and what each was last known to have."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diskbuffer.adapters.ray.node_store import SAMPLERS, Answer, NodeStore
from diskbuffer.errors import DiskBufferError, InputError, UnreachableError

ACTOR: dict[str, Any] = {  # options of all actors: other drivers find them, and Ray starts them again and repeats calls
    "namespace": "diskbuffer",
    "get_if_exists": True,
    "lifetime": "detached",
    "max_restarts": -1,
    "max_task_retries": -1,
}
_STARTING = 120.0  # seconds for actors to start, and to open their stores
_FOREVER = 1e6  # seconds, for `ray.wait`, which takes no infinity
_SCAN_EVERY = 5.0  # seconds until a node that joins the cluster is seen
_NodeStoreActor = ray.remote(max_concurrency=8)(NodeStore)


def cause_of(error: ray.exceptions.RayTaskError) -> Exception:
    """Return what was raised on a node, if it was on purpose; else Ray's error, which has the lines where that was."""
    return error.cause if isinstance(error.cause, DiskBufferError) else error


class Mass(NamedTuple):
    """What a sampler by priority draws by on a node: the sum, the least of it, and when that was told."""

    total: float = 0.0
    least: float = 0.0
    told: float = -math.inf


_UNTOLD = Mass()


@dataclass(eq=False)
class Node:
    """A node with a disk; `handle` is of its `NodeStore`, `last` its last answer, `masses` those of pickled samplers.

    `why` tells why it does not answer; it is empty while it does. `asked` is a question that it has not answered yet.
    """

    node_id: str
    handle: Any
    last: Answer = field(default_factory=Answer)
    masses: dict[bytes, Mass] = field(default_factory=dict)
    why: str = "has not answered yet"
    asked: tuple[Any, bytes | None] | None = None

    @property
    def answers(self) -> bool:
        """Whether it answered when it was last asked something."""
        return not self.why

    def mass(self, sent: bytes | None) -> Mass:
        """Return that of a pickled sampler; zeros where it is not known."""
        return _UNTOLD if sent is None else self.masses.get(sent, _UNTOLD)

    def note(self, answer: Answer, sent: bytes | None) -> None:
        """Take an answer in."""
        if answer.problem:
            self.last, self.why = self.last._replace(problem=answer.problem), answer.problem
            return
        self.last, self.why = answer, ""
        if sent is not None:
            self.masses[sent] = Mass(answer.mass, answer.least, time.monotonic())
            if len(self.masses) > SAMPLERS:
                self.masses.pop(next(iter(self.masses)), None)  # it is asked for again, if need be


class Nodes:
    """Know the nodes that have a directory: all, or those with a resource of Ray. Start their `NodeStore`s, where it `starts`."""

    def __init__(self, path: str, resource: str | None, refresh_every: float, patience: float, *, starts: bool) -> None:
        self._path, self._resource, self._starts = path, resource, starts
        self._refresh_every, self.patience = refresh_every, min(patience, _FOREVER)
        self._known: dict[str, Node] = {}
        self._added: dict[int, int] = {}  # steps that there ever were, by directory, whether it is there or not
        self.only: Node | None = None  # where one node alone had told something when all were last asked
        self._scanned = self._looked = -1e9
        self._lock = threading.RLock()
        if starts:
            self.look(wait=_STARTING)
            if not self._known:
                missing = f"has the resource {resource!r}, which ray start --resources gives to one" if resource else "is alive"
                raise UnreachableError(f"no node {missing}; {path} would be there")
            if problems := [node.last.problem for node in self._known.values() if node.last.problem]:
                raise InputError(f"{path} cannot be used on {len(problems)} of {len(self._known)} nodes: {problems[0]}")

    def __iter__(self) -> Iterator[Node]:
        """Iterate over nodes that have answered, each directory once: where two had it, the one that answers."""
        with self._lock:
            distinct: dict[int, Node] = {}
            for node in sorted(self._known.values(), key=attrgetter("why")):  # those that answer first
                if node.last.number:
                    other = distinct.setdefault(node.last.identity, node)
                    if node.answers and other.last.place != node.last.place:
                        raise InputError(
                            f"{self._path} on nodes {other.node_id} and {node.node_id} is a directory and its copy; remove "
                            "_shared/identity from the copy to use both"
                        )
            return iter(distinct.values())

    def added(self) -> int:
        """Return how many steps there ever were, as far as nodes have told, of those that are gone, too."""
        with self._lock:
            for node in self:
                self._added[node.last.identity] = max(node.last.added, self._added.get(node.last.identity, 0))
            return sum(self._added.values())

    def every(self) -> list[Node]:
        """Return all that are known, those that have told nothing yet at the end."""
        with self._lock:
            return [*self, *(node for node in self._known.values() if not node.last.number)]

    @property
    def has_disk_here(self) -> bool:
        """Whether the node that this process runs on has a disk."""
        return ray.get_runtime_context().get_node_id() in self._alive()

    def of(self, identity: int) -> Node | None:
        """Return the node that has a directory now, if it answers."""
        return next((node for node in self if node.last.identity == identity and node.answers), None)

    def look(self, sent: bytes | None = None, *, now: bool = False, wait: float | None = None) -> None:
        """Ask what nodes have: `now`, or where they told that, or a sampler's mass, `refresh_every` seconds ago.

        It waits for those that answer, as long as the patience allows, or for all of them as many seconds as `wait` says.
        """
        with self._lock:
            if time.monotonic() - self._scanned > _SCAN_EVERY:
                self._scan()
                if wait is None and not any(node.last.number for node in self._known.values()):
                    wait = self.patience
            due, looked = time.monotonic() - self._refresh_every, self._looked
            if sent is not None:
                looked = min([node.mass(sent).told for node in self if node.answers], default=looked)
            if not now and wait is None and min(looked, self._looked) > due:
                return
            self._looked = time.monotonic()
            for node in self._known.values():
                node.asked = node.asked or (node.handle.answer.remote(sent, now=now), sent)
            asked = {node.asked[0]: node for node in self._known.values() if node.asked is not None}
            awaited = [ref for ref, node in asked.items() if node.answers or wait is not None]
            for node, answer in self._results(asked, awaited, self.patience if wait is None else wait):
                if node.asked is not None:
                    node.note(answer, node.asked[1])
                node.asked = None
            told = [node for node in self._known.values() if node.last.number]
            self.only = told[0] if len(told) == 1 else None

    def collect(self, calls: Sequence[tuple[Node, Any]]) -> Iterator[tuple[Node, Any]]:
        """Yield the results that come within the patience; nodes whose do not are left out from now on."""
        by_ref = {ref: node for node, ref in calls}
        return self._results(by_ref, list(by_ref), self.patience)

    def _results(self, nodes: dict[Any, Node], awaited: list[Any], wait: float) -> Iterator[tuple[Node, Any]]:
        """Yield nodes' results that have come after waiting for some of them; what one raised is raised here."""
        ray.wait(awaited, num_returns=len(awaited), timeout=wait) if awaited else None
        done, late = ray.wait(list(nodes), num_returns=len(nodes), timeout=0) if nodes else ([], [])
        for ref in late:
            if nodes[ref].answers:
                nodes[ref].why = f"did not answer within {wait:g} s"
        raised: list[Exception] = []
        for ref in done:
            try:
                yield nodes[ref], ray.get(ref)
            except ray.exceptions.RayTaskError as error:
                nodes[ref].asked = None
                raised.append(cause_of(error))
            except ray.exceptions.RayError as error:
                nodes[ref].why = str(error).splitlines()[0]
                nodes[ref].asked = None
                if isinstance(error, ray.exceptions.ActorDiedError):
                    with self._lock:
                        self._known.pop(nodes[ref].node_id, None)
        if raised:
            raise raised[0] from None

    def _scan(self) -> None:
        """Find the `NodeStore`s of nodes that are alive; start one where it is missing."""
        self._scanned, alive = time.monotonic(), self._alive()
        for gone in set(self._known) - alive:
            del self._known[gone]
        for node_id in sorted(alive - set(self._known)):
            handle = self._store_of(node_id)
            if handle is not None:
                self._known[node_id] = Node(node_id, handle)

    def _alive(self) -> set[str]:
        """Return the ids of nodes that are alive and have a disk."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        return {node["NodeID"] for node in nodes if not self._resource or node["Resources"].get(self._resource)}

    def _store_of(self, node_id: str) -> Any:
        name = f"{self._path}:{node_id}"
        if not self._starts:
            try:
                return ray.get_actor(name, namespace=ACTOR["namespace"])
            except ValueError:
                return None
        there = NodeAffinitySchedulingStrategy(node_id, soft=False)
        options = _NodeStoreActor.options(name=name, num_cpus=0, scheduling_strategy=there, **ACTOR)
        return options.remote(self._path, self._refresh_every)

    def destroy(self) -> None:
        """Close all stores, and end what holds them."""
        if not self._starts:  # it may not have looked yet
            self._scan()
        refs = [node.handle.close.remote() for node in self._known.values() if node.answers]
        ray.wait(refs, num_returns=len(refs), timeout=30.0) if refs else None
        for node in self._known.values():
            ray.kill(node.handle)
        self._known.clear()
