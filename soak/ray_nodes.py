"""A Ray cluster on this machine, each node of which is killed and comes back while actors add and a learner learns.

Every node has a disk of its own, a shard on it, and is killed in turn: its raylet, and all its processes with it. Actors on the
head node add steps, and note which of them were acknowledged. A learner fits a small network to what it samples, half of the
time by priority, and a limiter holds the ratio of the two. In the end every acknowledged step must be in the stores, and the
ratio be what was asked for, to 1 %; steps that are there twice are counted.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from soak.table import Row
from soak.workers import scratch

COLUMNS = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
EPISODE, ACTORS, BATCH = 50, 2, 64
RATIO, OFF = 2.0, 0.01  # samples of each step, and how far the ratio may be off
PATIENCE = 2.0  # seconds until a shard that does not answer is left out
DOWN = 3.0  # seconds that a node stays away
_LEAST = 1.0  # minutes: a node that is killed takes some seconds to be missed, and to come back
_QUICK = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}


class Actor:
    """Add steps that tell whose they are, until it is told to stop."""

    def __init__(self, buffer: Any, who: int) -> None:
        self._buffer, self._who, self._added, self._acknowledged = buffer, who, 0, 0
        self._errors = 0

    def act(self, seconds: float) -> tuple[int, int]:
        """Add for a while; return how many steps are acknowledged, and how often no shard took any."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            n = self._added
            obs, following = (np.array([self._who, i, n // EPISODE], np.float32) for i in (n, n + 1))
            try:
                self._added += 1  # whatever is raised, the step is kept and sent again
                self._buffer.add(obs, n, float(n), following, n % EPISODE == EPISODE - 1, False)
                if n % 200 == 199:
                    self._buffer.flush(sync=False)
                    self._acknowledged = self._added
            except db.errors.LimiterTimeoutError:
                self._added -= 1  # the learner is behind, or has stopped
            except db.errors.UnreachableError:
                self._errors += 1
            time.sleep(0.001)
        with contextlib.suppress(db.errors.UnreachableError):
            self._buffer.flush(sync=False)
            self._acknowledged = self._added
        return self._acknowledged, self._errors


@contextlib.contextmanager
def cluster(nodes: int, memory: int = 80 << 20) -> Iterator[tuple[Any, list[Any]]]:
    """Have a cluster with a head, and nodes that have a disk each."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "resources": {"head": 100},
            "object_store_memory": memory,
            "include_dashboard": False,
            "_system_config": _QUICK,
        },
    )
    try:
        there = [join(made, n, memory) for n in range(nodes)]
        ray.init(address=made.address, logging_level="error", log_to_driver=False)
        yield made, there
    finally:
        ray.shutdown()
        made.shutdown()


def join(made: Any, number: int, memory: int = 80 << 20) -> Any:
    """Add the node that has a disk."""
    return made.add_node(num_cpus=1, resources={f"disk-{number}": 1}, object_store_memory=memory, include_dashboard=False)


def campaign(minutes: float, seed: int, nodes: int, root: Path) -> Row:
    """Kill each node once, and report."""
    import ray

    from diskbuffer.adapters.ray import RayReplayBuffer

    random = np.random.default_rng(seed)
    with cluster(nodes) as (made, there):
        places = [{f"disk-{n}": 0.01} for n in range(nodes)]
        how: dict[str, Any] = {
            "columns": COLUMNS,
            "block": 16,
            "patience": PATIENCE,
            "near": False,
            "seed": seed,
            "segment_rows": 1024,
        }
        asked = db.SampleToInsertRatio(RATIO, min_size=500, error_buffer=4 * BATCH, timeout=PATIENCE)
        buffer = RayReplayBuffer(root, 1_000_000, shards=places, limiter=asked, **how)
        actor = ray.remote(num_cpus=0, resources={"head": 1})(Actor)
        actors = [actor.remote(buffer, who) for who in range(ACTORS)]
        seconds = 60 * minutes
        acting = [one.act.remote(seconds) for one in actors]
        begin, learner = time.monotonic(), Learner(buffer)
        kills = [begin + seconds * (n + 0.5 + 0.3 * random.random()) / (nodes + 1) for n in range(nodes)]
        back: dict[int, float] = {}
        while time.monotonic() < begin + seconds:
            learner.learn(alone=bool(back))
            now = time.monotonic()
            if kills and now > kills[0]:
                number = nodes - len(kills)
                made.remove_node(there[number], allow_graceful=False)
                kills.pop(0)
                back[number] = now + DOWN
            for number in [n for n, at in back.items() if now > at]:
                there[number] = join(made, number)
                del back[number]
        acknowledged = [one[0] for one in ray.get(acting)]
        until = time.monotonic() + 60
        while not all(shard["answers"] for shard in buffer.stats()["shards"]) and time.monotonic() < until:
            time.sleep(0.5)
        stats = buffer.stats()
        for one in actors:
            ray.kill(one)
        buffer.close()
    found = stored(root)
    lost = sum((who, n) not in found for who, count in enumerate(acknowledged) for n in range(count))
    twice = sum(count - 1 for count in found.values())
    away = [shard["number"] for shard in stats["shards"] if not shard["answers"]]
    limited = stats["limiter"]
    off = abs(limited["surplus"]) > max(OFF * RATIO * limited["inserts"], 8 * BATCH)
    broken = lost + off + learner.wrong + len(kills) + len(away)
    rejoined = [shard["rejoined"] for shard in stats["shards"]]
    notes = [
        f"{nodes - len(kills)} nodes killed, {len(away)} of them not back; their shards rejoined {rejoined} times",
        f"{sum(acknowledged):,} steps acknowledged, {lost} lost, {twice} there twice; {learner.wrong} wrong batches; longest "
        f"wait for a batch {learner.longest:.2f} s; {learner.beside:,} batches while a node was gone",
        f"{limited['samples']:,} samples of {limited['inserts']:,} steps, {limited['surplus']:+.0f} at the end; the counter was "
        f"{'restarted' if limited['restarted'] else 'not restarted'}; the learner waited {limited['waited']:.1f} s for steps",
    ]
    return Row("nodes of a Ray cluster killed beside a learner: batches", learner.batches, broken, notes)


class Learner:
    """Sample, half of the time by priority, check the rows, and take a step of a small network."""

    def __init__(self, buffer: Any) -> None:
        import torch

        self._buffer, self._sampler = buffer, db.Prioritized(seed=0)
        self._net = torch.nn.Linear(3, 1)
        self._optimizer = torch.optim.SGD(self._net.parameters(), 1e-12)
        self.batches, self.beside, self.wrong, self.longest = 0, 0, 0, 0.0

    def learn(self, *, alone: bool) -> None:
        """Learn from a batch; where there is nothing yet, wait."""
        begin = time.monotonic()
        by_priority = self.batches % 2 == 1
        try:
            batch = self._buffer.sample(BATCH, self._sampler if by_priority else None)
        except (db.errors.EmptyBufferError, db.errors.UnreachableError, db.errors.LimiterTimeoutError):
            time.sleep(0.05)
            return
        finally:
            if self.batches:
                self.longest = max(self.longest, time.monotonic() - begin)
        n = batch["action"]
        right = (batch["obs"][:, 1] == n) & (batch["reward"] == n) & (batch["next_obs"][:, 1] == n + 1)
        self.wrong += not bool(right.all())
        error = (self._net(batch["obs"])[:, 0] - batch["reward"]) ** 2
        self._optimizer.zero_grad()
        error.mean().backward()
        self._optimizer.step()
        if by_priority:
            self._buffer.update(self._sampler, batch["steps"], error.detach().clamp(max=1e6))
        self.batches += 1
        self.beside += alone


def stored(root: Path) -> Counter[tuple[int, int]]:
    """Count each step in the stores below a directory."""
    with db.ReplayBuffer(root, mode="r") as buffer:
        obs = buffer.at(buffer.steps(), columns=["obs"])["obs"][:, :2].long().tolist()
    return Counter((who, n) for who, n in obs)


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Have each of three nodes killed once in three minutes, times `scale`, but in a minute at least."""
    with scratch() as directory:
        return campaign(max(3 * scale, _LEAST), seed, 3, directory / "store")
