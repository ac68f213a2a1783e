"""Small rings that turn fast, with threads held at random.

A segment is evicted while the sealing thread is at it, and its slot given to the next: through the core and through every
adapter, with vectors and with frames, in segments of 8 to 1,024 rows. Every store is closed, checked, opened again, read whole,
and compared with a list.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from soak.holding import Held
from soak.table import Row, seeded
from soak.workers import failure

Array = npt.NDArray[Any]
_FRAME = (34, 33)
# What is called, and how often.
_CALLS = {"add": 20, "extend": 6, "flush": 2, "seal": 1, "sample": 8, "write": 3, "mark": 0.5, "snapshot": 0.3, "reopen": 0.7}


def observations(numbers: Array, frames: bool) -> Array:
    """Return observations that tell their number: vectors, (n, 3), or frames, (n, 34, 33)."""
    if not frames:
        return np.stack([numbers, numbers + 0.5, -numbers], axis=1).astype(np.float32)
    flat = np.repeat((np.asarray(numbers) % 251).astype(np.uint8)[:, None], _FRAME[0] * _FRAME[1], axis=1)
    flat[:, :8] = np.ascontiguousarray(numbers, "<i8").view(np.uint8).reshape(-1, 8)
    return flat.reshape(-1, *_FRAME)


def numbers_of(values: Any, frames: bool) -> Array:
    """Return the numbers that observations tell; an AssertionError where they are none that were made here."""
    found = np.asarray(values)
    flat = np.ascontiguousarray(found.reshape(len(found), -1))
    numbers = flat[:, :8].copy().view("<i8")[:, 0] if frames else flat[:, 0].astype(np.int64)
    np.testing.assert_array_equal(found, observations(numbers, frames))
    return np.asarray(numbers)


class Steps:
    """A list of the steps of some environments, in which every observation has a number of its own."""

    def __init__(self, n_envs: int, rng: np.random.Generator, episode: int) -> None:
        self._rng, self._episode = rng, episode
        self.n_envs = n_envs
        self.taken: list[list[tuple[int, int, bool]]] = [[] for _ in range(n_envs)]  # number of obs, of next_obs, whether over
        self._next = np.arange(n_envs) * 1_000_000 + 1

    def take(self, env: int) -> tuple[int, int, bool]:
        """Take a step of an environment."""
        now, over = int(self._next[env]), bool(self._rng.random() < 1 / self._episode)
        self.taken[env].append((now, now + 1, over))
        self._next[env] += 2 if over else 1
        return now, now + 1, over

    def array(self, env: int, n: int) -> Array:
        """Take n steps of an environment; return (n, 3)."""
        return np.array([self.take(env) for _ in range(n)], np.int64).reshape(-1, 3)

    def every(self) -> Array:
        """Take a step of every environment; return (n_envs, 3)."""
        return np.array([self.take(env) for env in range(self.n_envs)], np.int64)

    def add(self, buffer: db.ReplayBuffer, frames: bool) -> None:
        """Add a step of every environment."""
        taken, none = self.every(), np.zeros(self.n_envs, bool)
        now, then = (observations(taken[:, k], frames) for k in (0, 1))
        buffer.add(now, taken[:, 0], np.zeros(self.n_envs), then, taken[:, 2] > 0, none)

    def extend(self, buffer: db.ReplayBuffer, frames: bool, n: int) -> None:
        """Add n steps of an environment."""
        env = int(self._rng.integers(self.n_envs))
        taken = self.array(env, n)
        now, then = (observations(taken[:, k], frames) for k in (0, 1))
        buffer.extend(now, taken[:, 0], np.zeros(n), then, taken[:, 2] > 0, env=env)

    def compare(self, buffer: db.ReplayBuffer, frames: bool, capacity: int | None) -> None:
        """Read all of a buffer; an AssertionError where it is not the newest of this list, or fewer than there must be."""
        there, ever = buffer.counts()
        added = [len(steps) for steps in self.taken]
        assert ever.tolist() == added, f"{ever.tolist()} steps were ever added, expected {added}"
        least = sum(added) if capacity is None else min(capacity, sum(added))
        assert there.sum() >= least, f"{there.sum()} steps are there, expected {least} at least"
        for env in range(self.n_envs):
            if not there[env]:
                continue
            batch = buffer.at(buffer.steps(np.arange(there[env]), env))
            expected = np.array(self.taken[env][: -there[env] - 1 : -1], np.int64)
            np.testing.assert_array_equal(numbers_of(batch["obs"], frames), expected[:, 0])
            np.testing.assert_array_equal(numbers_of(batch["next_obs"], frames), expected[:, 1])
            np.testing.assert_array_equal(batch["action"].numpy().reshape(len(expected)), expected[:, 0])


def check_sample(batch: Any, frames: bool) -> None:
    """Require that what was drawn belongs together."""
    found = numbers_of(batch["obs"], frames)
    np.testing.assert_array_equal(numbers_of(batch["next_obs"], frames), found + 1)
    np.testing.assert_array_equal(batch["action"].numpy(), found)


def check(path: Path) -> None:
    """Require that a check of a store finds nothing."""
    report = db.check(path, progress=False)
    assert report.problems == [], report.problems


def judge(path: Path, steps: Steps, frames: bool, capacity: int | None) -> None:
    """Require that a closed store is whole."""
    check(path)
    with db.ReplayBuffer(path) as buffer:
        steps.compare(buffer, frames, capacity)
        report = buffer.check(progress=False)
        assert report.problems == [], report.problems


def ring(path: Path, capacity: int, n_envs: int, rows: int | None, frames: bool, threads: int) -> db.ReplayBuffer:
    """Create a ring."""
    columns = {"obs": db.Column(_FRAME, "uint8") if frames else db.Column((3,), "float32"), "action": db.Column((), "int64")}
    return db.ReplayBuffer(
        path, capacity, columns=columns, n_envs=n_envs, autoreset="disabled", segment_rows=rows, threads=threads, seed=1
    )


# The core


def _core(path: Path, rng: np.random.Generator, held: Held, **shape: Any) -> None:
    """Add, extend, flush, seal, mark, write, sample and reopen, at random."""
    frames, n_envs = shape.get("frames", bool(rng.random() < 0.4)), shape.get("n_envs", int(rng.integers(1, 5)))
    rows = shape.get("segment_rows", int(2 ** rng.integers(3, 11)))
    capacity = shape.get("capacity") or int(rng.integers(1, 6 * (rows or 64)))
    steps = Steps(n_envs, rng, int(rng.choice([2, 20, 300])))
    weights = shape.get("weights", _CALLS)
    chances = np.array(list(weights.values())) / sum(weights.values())
    buffer = ring(path, capacity, n_envs, rows, frames, threads=2)
    held.at_lock_of(buffer)
    prioritized, snapshots = db.Prioritized(seed=1), 0
    try:
        for _ in range(shape.get("calls", int(rng.integers(10, 120)))):
            name = str(rng.choice(list(weights), p=chances))
            if name == "add":
                for _ in range(shape.get("burst", int(rng.integers(1, 80)))):
                    steps.add(buffer, frames)
            elif name == "extend":
                steps.extend(buffer, frames, shape.get("burst", int(rng.integers(1, 3 * capacity + 2))))
            elif name in ("flush", "seal"):
                buffer.flush(recompress=name == "seal")
            elif name == "sample" and len(buffer):
                check_sample(buffer.sample(32), frames)
                check_sample(buffer.sample(8, prioritized), frames)
            elif name == "write" and len(buffer):
                batch = buffer.sample(16)
                buffer.columns.write("value", batch["steps"], batch["action"].float())
                values = buffer.at(batch["steps"], columns=["value", "action"])
                np.testing.assert_array_equal(values["value"], values["action"].float())
            elif name == "mark":
                buffer.copies.mark("one", replace=True)
            elif name == "snapshot":
                snapshots += 1
                judge(buffer.copies.snapshot(path.with_name(f"snapshot-{snapshots}")), steps, frames, capacity)
            elif name == "reopen":
                buffer.close()
                judge(path, steps, frames, capacity)
                buffer, prioritized = db.ReplayBuffer(path, threads=2, seed=1), db.Prioritized(seed=1)
                held.at_lock_of(buffer)
    finally:
        marks = buffer.copies.marks
        buffer.close()
    judge(path, steps, frames, capacity)
    for mark in marks:
        with db.ReplayBuffer(path, mark=mark, mode="r") as marked:
            if len(marked):
                check_sample(marked.sample(64), frames)


# Adapters


def _sb3_replay(path: Path, rng: np.random.Generator, held: Held, **shape: Any) -> None:
    from gymnasium import spaces

    from diskbuffer.adapters.sb3 import DiskReplayBuffer

    n_envs, capacity = shape.get("n_envs", int(rng.integers(1, 5))), shape.get("capacity", int(rng.integers(8, 800)))
    steps = Steps(n_envs, rng, int(rng.choice([3, 50])))
    space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    rows = shape.get("segment_rows", int(2 ** rng.integers(3, 8)))
    buffer = DiskReplayBuffer(capacity, space, spaces.Discrete(2**30), "cpu", n_envs, path=path, segment_rows=rows)
    for n in range(shape.get("steps", int(rng.integers(50, 1500)))):
        taken = steps.every()
        infos = [{"TimeLimit.truncated": False}] * n_envs
        now, then = (observations(taken[:, k], False) for k in (0, 1))
        buffer.add(now, then, taken[:, :1], np.zeros(n_envs), taken[:, 2] > 0, infos)
        if n == 0:
            held.at_lock_of(buffer.stored.buffer)
        elif rng.random() < 0.02:
            found = buffer.sample(32)
            np.testing.assert_array_equal(numbers_of(found.next_observations, False), numbers_of(found.observations, False) + 1)
    buffer.close()
    judge(path, steps, False, (capacity // n_envs) * n_envs)


def _sb3_rollout(path: Path, rng: np.random.Generator, held: Held, **shape: Any) -> None:
    import torch
    from gymnasium import spaces

    from diskbuffer.adapters.sb3 import DiskRolloutBuffer

    n_envs, length = shape.get("n_envs", int(rng.integers(1, 5))), shape.get("length", int(rng.integers(4, 300)))
    rows = shape.get("segment_rows", int(2 ** rng.integers(3, 8)))
    space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    buffer = DiskRolloutBuffer(length, space, spaces.Discrete(4), "cpu", n_envs=n_envs, path=path, segment_rows=rows)
    steps = Steps(n_envs, rng, 40)
    starts = np.ones(n_envs)
    for rollout in range(shape.get("rollouts", int(rng.integers(3, 14)))):
        buffer.reset()
        for n in range(length):
            taken = steps.every()
            zeros = torch.zeros(n_envs)
            buffer.add(observations(taken[:, 0], False), np.zeros((n_envs, 1)), np.zeros(n_envs), starts, zeros, zeros)
            starts = (taken[:, 2] > 0).astype(np.float32)
            if rollout == 0 and n == 1:
                held.at_lock_of(buffer.stored.buffer)
        buffer.compute_returns_and_advantage(torch.zeros(n_envs), starts)
        found = np.sort(np.concatenate([numbers_of(batch.observations, False) for batch in buffer.get(64)]))
        newest = [number for taken in steps.taken for number, _, _ in taken[-length:]]
        np.testing.assert_array_equal(found, np.sort(newest))
    buffer.stored.close()
    check(path)
    with db.ReplayBuffer(path) as reopened:
        for env in range(n_envs):
            found = numbers_of(reopened.at(reopened.steps(np.arange(reopened.counts()[0][env]), env))["obs"], False)
            numbers = [number for number, _, _ in steps.taken[env]]
            assert len(found) >= length, f"{len(found)} steps are there, expected {length} at least"
            np.testing.assert_array_equal(found, numbers[: -len(found) - 1 : -1])


def _torchrl(path: Path, rng: np.random.Generator, held: Held, **shape: Any) -> None:
    import torch
    from tensordict import TensorDict
    from torchrl.data import ReplayBuffer

    from diskbuffer.adapters.torchrl import DiskStorage

    size = shape.get("size", int(rng.integers(16, 2000)))
    rows = shape.get("segment_rows", int(2 ** rng.integers(3, 8)))
    storage = DiskStorage(size, path, segment_rows=rows)
    ring = ReplayBuffer(storage=storage, batch_size=32)
    number, expected = 0, torch.zeros(size, dtype=torch.int64)
    for n in range(shape.get("extends", int(rng.integers(4, 40)))):
        numbers = number + torch.arange(shape.get("batch", int(rng.integers(1, size + 1))))
        vectors = torch.from_numpy(observations(numbers.numpy(), False))
        ring.extend(TensorDict({"number": numbers, "obs": vectors}, batch_size=[len(numbers)]))
        if n == 0:
            held.at_lock_of(storage.stored.buffer)
        expected[numbers % size] = numbers
        number += len(numbers)
        if rng.random() < 0.3:
            found = ring.sample()
            np.testing.assert_array_equal(numbers_of(found["obs"], False), found["number"])
    storage.stored.close()
    check(path)
    again = DiskStorage(size, path)
    np.testing.assert_array_equal(again[:]["number"], expected[: min(number, size)])
    again.stored.close()


def _tianshou(path: Path, rng: np.random.Generator, held: Held, **shape: Any) -> None:
    from tianshou.data import Batch, VectorReplayBuffer

    from diskbuffer.adapters.tianshou import DiskVectorReplayBuffer

    n_envs, size = shape.get("n_envs", int(rng.integers(1, 5))), shape.get("size", int(rng.integers(20, 900)))
    rows = shape.get("segment_rows", int(2 ** rng.integers(3, 8)))
    ours, theirs = DiskVectorReplayBuffer(size, n_envs, path=path, segment_rows=rows), VectorReplayBuffer(size, n_envs)
    steps = Steps(n_envs, rng, int(rng.choice([3, 50])))
    for n in range(shape.get("steps", int(rng.integers(50, 900)))):
        ready = np.flatnonzero(rng.random(n_envs) < 0.8) if n else np.arange(n_envs)
        if not len(ready):
            continue
        taken = np.array([steps.take(int(env)) for env in ready], np.int64)
        now, then = (observations(taken[:, k], False) for k in (0, 1))
        values: dict[str, Any] = {
            "obs": now,
            "act": taken[:, 0],
            "rew": np.zeros(len(ready)),
            "terminated": taken[:, 2] > 0,
            "obs_next": then,
        }
        for buffer in (ours, theirs):
            buffer.add(Batch(**values, truncated=np.zeros(len(ready), bool), info=Batch(), policy=Batch()), buffer_ids=ready)
        if n == 0:
            held.at_lock_of(ours.stored.buffer)
    ours.stored.close()
    check(path)
    again, indices = DiskVectorReplayBuffer(size, n_envs, path=path), theirs.sample_indices(0)
    np.testing.assert_array_equal(np.sort(again.sample_indices(0)), np.sort(indices))
    found, expected = again[indices], theirs[indices]
    for name in ("obs", "act", "obs_next", "terminated"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


KINDS: dict[str, Callable[..., None]] = {
    "core": _core,
    "sb3 replay": _sb3_replay,
    "sb3 rollout": _sb3_rollout,
    "torchrl": _torchrl,
    "tianshou": _tianshou,
}
_FLAT = {"frames": False, "n_envs": 1, "segment_rows": None}
FIXED: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "rollouts of 128 x 4, 12 of them": (_sb3_rollout, {"n_envs": 4, "length": 128, "rollouts": 12, "segment_rows": None}),
    "1,000 places, 4 environments": (_sb3_replay, {"n_envs": 4, "capacity": 1000, "steps": 1000, "segment_rows": None}),
    "extend, 10 x 1,500 in 2,000": (_core, {**_FLAT, "capacity": 2000, "weights": {"extend": 1}, "calls": 10, "burst": 1500}),
    "extend, 20 x 3,000 in 10,000": (_core, {**_FLAT, "capacity": 10_000, "weights": {"extend": 1}, "calls": 20, "burst": 3000}),
    "add, segments of 16, 112 steps": (
        _core,
        {**_FLAT, "segment_rows": 16, "capacity": 112, "weights": {"add": 1}, "calls": 10, "burst": 100},
    ),
    "TorchRL, 30 x 400 in 2,000": (_torchrl, {"size": 2000, "batch": 400, "extends": 30, "segment_rows": None}),
}


# The campaign


def run(kind: str, seed: int, often: float) -> str:
    """Run one store, threads held so often; return what went wrong, or nothing."""
    function, shape = FIXED[kind] if kind in FIXED else (KINDS[kind], dict[str, Any]())
    rng = np.random.default_rng([seed, len(kind)])
    with Held(seed, often) as held:
        return failure(lambda path: function(path / "store", rng, held, **shape))


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Run rings of every kind, and of fixed shapes, for half an hour, times `scale`."""
    kinds = (*KINDS, *FIXED)
    runs = ((kind, seed * 1_000_000 + n, often) for n in itertools.count() for often in (0.0, 0.1) for kind in kinds)
    return seeded("small rings that turn fast", "soak.rings", runs, timeout=300, seconds=1800 * scale)
