"""A Ray cluster on this machine whose processes and nodes are killed while actors add steps and a learner learns.

Each of some nodes has a disk; the head has none. Writers on the nodes add to their own disk, and one of them is silent nearly all
the time. Some have two environments, which are reset in rows of their own. Short tasks come and go. Writers, the processes of
nodes' stores, the one that counts, a second driver, which learns, too, and whole nodes are killed. Then the cluster is started
again with a node missing, and the others in another order. Every step that was acknowledged must be stored, none twice and
nothing else, and all be sampled in the end; of several priorities that a step was given in a row, the last must stand.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from soak.table import SHOWN, Row
from soak.workers import scratch

COLUMNS = {"obs": db.Column((2,), "int64"), "action": db.Column((), "int64")}
NODES, WRITERS, EPISODE, BATCH = 3, 2, 50, 512
MOST = 8  # rows in a call
PAIR = np.array([EPISODE, 37])  # steps of each of two environments' episodes, after which a row is a reset
RATIO, OFF = 2.0, 0.02  # samples of each step, and how far the ratio may be off
LIMITER = db.SampleToInsertRatio(RATIO, min_size=500, error_buffer=BATCH / 2, timeout=5.0)
DOWN = 3.0  # seconds that a node stays away
PASSED = 1280  # samples by which calls of both sides may pass a bound: two of learners, and what writers may add in one
KILL_EVERY = 3.0  # seconds: a process takes two or three to start
STARTING = 300.0  # seconds within which the learner has its first batch, and nothing is killed
_LEAST = 1.0  # minutes: a node that is killed takes some seconds to be missed, and to come back
_QUICK = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
_DISK = "SOAK_DISK"  # where a node's disk is


def made(**how: Any) -> Any:
    """Return the buffer: of the cluster's driver, or of a second one."""
    from diskbuffer.adapters.ray import ClusterBuffer

    return ClusterBuffer(
        f"${_DISK}/store", 1_000_000, columns=COLUMNS, segment_rows=1024, disks="disk", patience=2.0, limiter=LIMITER, **how
    )


class Life:
    """What one process adds from its start to its end; in a file, how many of these rows were acknowledged.

    Its environments are numbered one after the other. Of a pair, some rows are resets.
    """

    def __init__(self, root: Path, *, is_pair: bool = False) -> None:
        self.number, self._is_pair = 2 * secrets.randbits(40), is_pair
        name = f"{self.number}-{os.getpid()}-{'pair' if is_pair else 'one'}"
        self._acknowledged = np.memmap(root / name, np.int64, "w+", shape=(1,))

    def add(self, writer: Any, count: int) -> None:
        """Add so many rows, one by one or at once."""
        first = int(self._acknowledged[0])
        if self._is_pair:
            for row in range(first, first + count):
                obs, at = np.array([[self.number, row], [self.number + 1, row]]), row % (PAIR + 1)
                reward = np.where(at == PAIR, 0, row % 1000)
                writer.add(obs, np.full(2, row), reward, obs + [0, 1], at == PAIR - 1, np.zeros(2, bool))
                self._acknowledged[0] = row + 1
            return
        n = np.arange(first, first + count + 1)
        obs = np.stack([np.full(count + 1, self.number), n], 1)
        ends = n[:-1] % EPISODE == EPISODE - 1
        if count == 1:
            writer.add(obs[0], first, float(first % 1000), obs[1], bool(ends[0]), False)
        else:
            arrays = {"obs": obs[:-1], "next_obs": obs[1:], "terminated": ends}
            writer.extend(action=n[:-1], reward=(n[:-1] % 1000).astype(np.float32), **arrays)
        self._acknowledged[0] = first + count


def acknowledged_in(file: Path, more: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the environment and of the row of each step that was acknowledged, and of so many more rows."""
    number, _, kind = file.name.split("-")
    rows = np.arange(int(np.fromfile(file, np.int64)[0]) + more)
    for env, steps in enumerate(PAIR if kind == "pair" else PAIR[:1]):
        is_step = (rows % (steps + 1) != steps) | (kind != "pair")
        yield from ((int(number) + env, n) for n in rows[is_step].tolist())


def keep_adding(buffer: Any, root: Path, pause: float, seed: int, *, is_pair: bool = False) -> None:
    """Add until the file "stop" is there: with a new writer where one was lost."""
    rng, stop = np.random.default_rng(seed), root / "stop"
    how = {"n_envs": 2, "autoreset": "next_step"} if is_pair else {}
    while not stop.exists():
        with contextlib.suppress(db.TryAgainError, db.LockedError), buffer.writer(**how) as writer:
            life = Life(root, is_pair=is_pair)
            while not stop.exists():
                with contextlib.suppress(db.errors.LimiterTimeoutError):
                    life.add(writer, int(rng.integers(1, MOST + 1)))
                until = time.monotonic() + pause * rng.random()
                while (left := until - time.monotonic()) > 0 and not stop.exists():
                    time.sleep(min(left, 1.0))
        time.sleep(0.1)


class Writer:
    """An actor of Ray, which it starts again."""

    def __init__(self, buffer: Any, root: Path, pause: float, seed: int, *, is_pair: bool = False) -> None:
        self._thread = threading.Thread(target=keep_adding, args=(buffer, root, pause, seed), kwargs={"is_pair": is_pair})
        self._thread.start()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()


def short(buffer: Any, root: Path) -> None:
    """Be a task that adds four steps."""
    with contextlib.suppress(db.TryAgainError), buffer.writer() as writer:
        Life(root).add(writer, 4)


@contextlib.contextmanager
def cluster(root: Path, memory: int = 80 << 20) -> Iterator[Any]:
    """Have a cluster that is only a head."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ[_DISK] = str(root / "head")
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "resources": {"head": 100}, "object_store_memory": memory, "include_dashboard": False}
    running = Cluster(initialize_head=True, head_node_args={**head, "_system_config": _QUICK})
    try:
        ray.init(address=running.address, logging_level="error", log_to_driver=False)
        yield running
    finally:
        ray.shutdown()
        running.shutdown()


def join(running: Any, root: Path, number: int) -> Any:
    """Add the node that has a disk."""
    (root / f"disk-{number}").mkdir(exist_ok=True)
    how = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    env = {_DISK: str(root / f"disk-{number}")}
    return running.add_node(resources={"disk": 1, f"disk-{number}": 100}, env_vars=env, **how)


class Killer:
    """Kills writers, nodes' stores, what counts, a second driver, and each node once."""

    def __init__(self, running: Any, root: Path, rng: np.random.Generator) -> None:
        self._running, self._root, self._rng = running, root, rng
        self._nodes = [join(running, root, n) for n in range(NODES)]
        self.buffer = made(seed=int(rng.integers(2**31)))
        self._due: list[tuple[float, int]] = []
        self._back: dict[int, float] = {}
        self._driver: subprocess.Popen[bytes] | None = None
        self.kills = Counter[str]()

    def begin(self, seconds: float) -> None:
        """Choose when each node is killed within so many seconds."""
        now, rng = time.monotonic(), self._rng
        self._due = sorted((now + seconds * (n + 0.5 + 0.3 * rng.random()) / (NODES + 1), n) for n in range(NODES))

    def work(self, seconds: float) -> None:
        """Kill something, at random times, and nodes when they are due."""
        now = time.monotonic()
        if self._due and now > self._due[0][0]:
            _, number = self._due.pop(0)
            self._running.remove_node(self._nodes[number], allow_graceful=False)
            self._back[number] = now + DOWN
            self.kills["nodes"] += 1
        for number in [n for n, at in self._back.items() if now > at]:
            self._nodes[number] = join(self._running, self._root, number)
            del self._back[number]
        if self._rng.random() < seconds / KILL_EVERY:
            self._kill_one()

    def _kill_one(self) -> None:
        import ray

        what = str(self._rng.choice(["writers", "stores", "counters", "drivers"], p=[0.6, 0.25, 0.05, 0.1]))
        if what == "writers":
            pids = sorted({int(path.name.split("-")[1]) for path in self._root.glob("acknowledged/*-*")})
            alive = [pid for pid in pids if _is_ours(pid)]
            if not alive:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self._rng.choice(alive)), signal.SIGKILL)
        elif what == "stores":
            nodes = list(self.buffer._nodes)
            if not nodes:
                return
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(nodes[int(self._rng.integers(len(nodes)))].handle, no_restart=False)
        elif what == "counters":
            from diskbuffer.adapters.ray.rate import start_rate  # which finds what was started

            with contextlib.suppress(ray.exceptions.RayError, db.errors.UnreachableError):
                ray.kill(start_rate(self.buffer.path, LIMITER), no_restart=False)
        else:
            if self._driver is None:
                command = [sys.executable, "-m", "soak.ray_cluster", self._running.address, str(self._root)]
                self._driver = subprocess.Popen(command, stderr=subprocess.DEVNULL)
                return
            self.end_driver()
        self.kills[what] += 1

    def end_driver(self) -> None:
        """Kill the second driver."""
        if self._driver is not None:
            self._driver.kill()
            self._driver.wait()
            self._driver = None

    def bring_back(self) -> None:
        """Have all nodes there."""
        self.end_driver()
        for number in self._back:
            join(self._running, self._root, number)
        self._back.clear()


def _is_ours(pid: int) -> bool:
    """Return whether a process is a worker of Ray, and no other one that has got its number."""
    try:
        return b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Learner:
    """Sample, half of the time by priority, and check the rows."""

    def __init__(self, buffer: Any) -> None:
        self._buffer, self._sampler = buffer, db.Prioritized(seed=0)
        self._ordered, self._value = db.Prioritized(alpha=1.0, seed=0, column="ordered"), 0
        self.batches, self.wrong, self.longest, self.older, self.compared = 0, 0, 0.0, 0, 0

    def update_in_a_row(self) -> None:
        """Give the steps of a batch one priority after the other; see that the last one stands, where no node was away."""
        buffer, told = self._buffer, (db.TryAgainError, db.LockedError)
        with contextlib.suppress(*told):
            batch, dropped = buffer.sample(64, self._ordered), buffer.dropped_updates
            for _ in range(8):
                self._value = self._value % 1000 + 1
                buffer.update(self._ordered, batch, np.full(64, float(self._value)))
            buffer.flush()
            again = buffer.sample(4 * 64, self._ordered)
            if buffer.dropped_updates == dropped:
                given = set(zip(batch["node"].tolist(), batch["steps"].tolist(), strict=True))
                found = zip(again["node"].tolist(), again["steps"].tolist(), again["ordered"].tolist(), strict=True)
                values = [value for node, step, value in found if (node, step) in given]
                self.compared += len(values)
                self.older += sum(abs(value - self._value) > 0.01 for value in values)

    def learn(self) -> None:
        """Learn from a batch; where there is nothing yet, or nobody answers, wait."""
        begin, by_priority = time.monotonic(), self.batches % 2 == 1
        try:
            batch = self._buffer.sample(BATCH, self._sampler if by_priority else None)
            if by_priority:
                self._buffer.update(self._sampler, batch, batch["reward"].abs())
        except (db.TryAgainError, db.LockedError):
            time.sleep(0.05)
            return
        finally:
            if self.batches:
                self.longest = max(self.longest, time.monotonic() - begin)
        n = batch["obs"][:, 1]
        right = (batch["action"] == n) & (batch["reward"] == n % 1000) & (batch["next_obs"][:, 1] == n + 1)
        self.wrong += not bool((right & (batch["obs"][:, 0] == batch["next_obs"][:, 0])).all())
        self.batches += 1


def campaign(minutes: float, seed: int, root: Path) -> Row:
    """Kill, start the cluster again with a node missing, and compare."""
    import ray

    rng, seconds, notes = np.random.default_rng(seed), 60 * minutes, []
    acknowledged = root / "acknowledged"
    acknowledged.mkdir()
    with cluster(root) as running:
        killer = Killer(running, root, rng)
        buffer, learner = killer.buffer, Learner(killer.buffer)
        writer, task = ray.remote(num_cpus=0, max_restarts=-1)(Writer), ray.remote(num_cpus=0, max_retries=0)(short)
        places = [{f"disk-{n}": 1} for n in range(NODES) for _ in range(WRITERS)]
        writers = [
            writer.options(resources=at).remote(buffer, acknowledged, 0.02, n, is_pair=n % WRITERS > 0)
            for n, at in enumerate(places)
        ]
        writers.append(writer.options(resources={"disk-0": 1}).remote(buffer, acknowledged, seconds, seed))  # silent mostly
        begin = time.monotonic()
        while not learner.batches and time.monotonic() < begin + STARTING:
            learner.learn()
        killer.begin(seconds)
        begin = last = time.monotonic()
        while time.monotonic() < begin + seconds:
            learner.learn()
            if learner.batches % 20 == 0:
                learner.update_in_a_row()
            now = time.monotonic()
            killer.work(now - last)
            if rng.random() < now - last:
                task.options(resources=places[int(rng.integers(len(places)))]).remote(buffer, acknowledged)
            last = now
        killer.bring_back()
        (acknowledged / "stop").touch()
        _, late = ray.wait([one.join.remote() for one in writers], num_returns=len(writers), timeout=120)
        notes += [f"{len(late)} writers did not end"] * bool(late)
        state = buffer.limiter.state()
        buffer.destroy()
    lives, there = list(acknowledged.glob("*-*")), stored(root)
    steps = [step for file in lives for step in acknowledged_in(file)]
    lost = [f"step {n} of environment {env} is lost" for env, n in steps if (env, n) not in there]
    twice = [f"step {n} of environment {env} is there {count} times" for (env, n), count in there.items() if count > 1]
    added = {step for file in lives for step in acknowledged_in(file, MOST)}  # a call that was interrupted may have come
    wrong = [f"row {n} of environment {env} is stored, and is no step that was added" for env, n in there.keys() - added]
    orphans = sampled_after_restart(root, there)
    off = abs(state["surplus"]) > OFF * RATIO * state["inserts"] + state["error_buffer"] + PASSED
    told = ", ".join(f"{count} {what}" for what, count in sorted(killer.kills.items()))
    notes = [
        f"killed: {told}; {len(lives)} lives of writers, {len(steps):,} steps acknowledged, {len(lost)} lost, "
        f"{len(twice)} there twice; {learner.wrong} wrong batches; {learner.older} of "
        f"{learner.compared:,} priorities older than the last; longest wait for a batch {learner.longest:.2f} s",
        f"{state['samples']:,} samples of {state['inserts']:,} inserts, {state['surplus']:+.0f} at the end",
        f"started again with a node missing, and the others in another order: {orphans or 'all steps were sampled'}",
        *notes,
        *[*lost, *twice, *wrong][:SHOWN],
    ]
    broken = len(lost) + len(twice) + len(wrong) + learner.wrong + learner.older + off + bool(orphans) + len(late)
    return Row("processes and nodes of a Ray cluster killed beside a learner: batches", learner.batches, broken, notes)


def stored(root: Path) -> Counter[tuple[int, int]]:
    """Count each step on all disks."""
    found = Counter[tuple[int, int]]()
    for file in root.glob("disk-*/store/zarr.json"):  # where a writer was
        with db.ReplayBuffer(file.parent, mode="r") as buffer:
            found.update(map(tuple, buffer.at(buffer.steps(), columns=["obs"])["obs"].tolist()))
    return found


def sampled_after_restart(root: Path, there: Counter[tuple[int, int]]) -> str:
    """Start the nodes again, in another order and one of them late; return what is not seen then."""
    with cluster(root) as running:
        for number in range(NODES - 1, 0, -1):
            join(running, root, number)
        with made() as buffer:
            before = len(buffer)
            join(running, root, 0)
            until = time.monotonic() + 60
            while len(buffer) < len(there) and time.monotonic() < until:
                time.sleep(0.5)
            after, nodes = len(buffer), len(buffer.stats()["nodes"])
            buffer.destroy()
    if before < after == len(there) and nodes == NODES:
        return ""
    return f"{before:,} steps on {NODES - 1} nodes, {after:,} on {nodes}, {len(there):,} stored"


def second_driver(address: str, root: Path) -> None:
    """Construct the buffer again, elsewhere; sample until this process is killed."""
    import ray

    ray.init(address=address, logging_level="error", log_to_driver=False)
    buffer = made()
    learner = Learner(buffer)
    while not (root / "acknowledged" / "stop").exists():
        learner.learn()
        assert not learner.wrong


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Kill for three minutes, times `scale`, but for a minute at least."""
    with scratch() as directory:
        return campaign(max(3 * scale, _LEAST), seed, directory)


if __name__ == "__main__":
    second_driver(sys.argv[1], Path(sys.argv[2]))
