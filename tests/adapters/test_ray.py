"""Buffers over Ray: what shards acknowledged is there once, whatever is killed; batches are of all shards, in proportion."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from tests.amounts import examples
from tests.chi_square import assert_uniform

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'diskbuffer[ray]'")

from diskbuffer.adapters.ray import RayReplayBuffer  # noqa: E402
from diskbuffer.adapters.ray.blocks import Blocks  # noqa: E402
from diskbuffer.adapters.ray.local_shards import LocalShards  # noqa: E402
from diskbuffer.adapters.ray.names import SHARDS, Together, unique  # noqa: E402
from diskbuffer.adapters.ray.packing import joined, pack, unpack  # noqa: E402
from diskbuffer.writers.description import join  # noqa: E402

COLUMNS = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


class Actor:
    """Adds steps of one environment: of each, its observation tells who it is, and its number."""

    def __init__(self, buffer: RayReplayBuffer, who: int, length: int = 7) -> None:
        self.buffer, self.who, self.length, self.steps = buffer, who, length, 0

    def add(self) -> None:
        n = self.steps
        obs, following = (np.array([self.who, i, i // self.length], np.float32) for i in (n, n + 1))
        following[2] = n // self.length  # the final observation is not the next episode's first
        self.buffer.add(obs, n, float(n), following, n % self.length == self.length - 1, False)
        self.steps += 1

    def extend(self, count: int) -> None:
        n = np.arange(self.steps, self.steps + count)
        obs, following = (np.stack([np.full(count, self.who), i, n // self.length], 1).astype(np.float32) for i in (n, n + 1))
        ends = n % self.length == self.length - 1
        self.buffer.extend(obs=obs, action=n, reward=n.astype(float), next_obs=following, terminated=ends)
        self.steps += count


def is_right(batch: dict[str, Any]) -> bool:
    """Tell whether what belongs to one step came together."""
    numbers = batch["obs"][:, 1]
    alike = (
        (batch["action"] == numbers).all()
        and (batch["reward"] == numbers).all()
        and (batch["next_obs"][:, 1] == numbers + 1).all()
    )
    return bool(alike and (batch["obs"][:, ::2] == batch["next_obs"][:, ::2]).all())


def stored(path: Path) -> Counter[tuple[int, int]]:
    """Count each step in the stores below a directory, by who added it and its number."""
    with db.ReplayBuffer(path, mode="r") as buffer:
        batch = buffer.at(buffer.steps())
        assert is_right(batch)
        return Counter(map(tuple, batch["obs"][:, :2].to(torch.int64).tolist()))


def pids(buffer: RayReplayBuffer) -> list[int]:
    return [ray.get(known.handle.about.remote())["pid"] for known in buffer._shards.known]


def test_a_shard_that_is_killed_keeps_what_it_acknowledged(cluster: None, tmp_path: Path) -> None:
    asked = db.SampleToInsertRatio(1, min_size=50, error_buffer=100, timeout=60)
    how: dict[str, Any] = {"columns": COLUMNS, "block": 8, "near": False, "patience": 20.0, "limiter": asked}
    with RayReplayBuffer(tmp_path / "all", shards=1, **how) as buffer:
        assert buffer.limiter is not None
        actor = Actor(buffer, 1)
        actor.extend(50)
        buffer.flush(sync=False)
        assert len(buffer) == buffer.stats()["acknowledged"] == 50
        for _ in range(50):
            actor.add()
        os.kill(pids(buffer)[0], signal.SIGKILL)  # while steps are under way
        assert buffer.limiter.may_sample
        actor.extend(50)
        buffer.flush(sync=False)
        assert is_right(buffer.sample(64))
        assert buffer.stats()["lost"] == 0
        state = buffer.stats()["limiter"]
        assert (state["inserts"], state["samples"], state["may_add"]) == (100, 64, True)
        names = buffer.steps()[::-3].copy()
        assert buffer.write("value", names, names.astype(float)) == 50
        batch = next(iter(buffer.batches(len(names), steps=names)))
        assert batch["steps"].tolist() == batch["value"].tolist() == names.tolist()
        assert is_right(batch)
    assert stored(tmp_path / "all") == Counter((1, n) for n in range(150))  # each once


@pytest.mark.nightly
def test_a_learner_that_drew_by_priority_is_replaced(cluster: None, tmp_path: Path) -> None:
    @ray.remote(num_cpus=0)
    class Learner:
        def learn(self, buffer: RayReplayBuffer, favourite: int) -> None:
            """Draw, and make a step the only one that matters."""
            self.sampler = db.Prioritized(alpha=1.0, beta=1.0, seed=0)
            buffer.sample(8, self.sampler)
            names = buffer.steps()
            buffer.update(self.sampler, names, np.where(names == favourite, 1e6, 0.0))
            buffer.flush(sync=False)

    with RayReplayBuffer(tmp_path / "all", shards=1, columns=COLUMNS, block=8, patience=20.0, near=False) as buffer:
        Actor(buffer, 1).extend(40)
        buffer.flush(sync=False)
        favourite = int(buffer.steps()[7])

        def draw(sampler: db.Prioritized) -> set[int]:
            return set(map(int, buffer.sample(8, sampler)["steps"]))

        learner: Any = Learner
        first = learner.remote()
        ray.get(first.learn.remote(buffer, favourite))
        ray.kill(first)
        second: Any = db.Prioritized(alpha=1.0, seed=1)
        assert draw(second) == {favourite}  # by the priorities that are there
        del second
        third, fourth = (db.Prioritized(alpha=1.0, seed=seed) for seed in (2, 3))
        assert draw(third) == draw(fourth) == {favourite}
        for _ in range(2):
            with pytest.raises(db.InputError, match="another sampler keeps its priorities in 'priority' since"):
                draw(third)
            buffer.refresh()  # which asks about the third, too
            assert draw(fourth) == {favourite}
        assert draw(db.Prioritized(column="of_another"))
        assert draw(fourth) == {favourite}


@pytest.mark.nightly
def test_shards_that_are_killed_keep_what_they_acknowledged_and_batches_are_of_all(cluster: None, tmp_path: Path) -> None:
    def make(**how: Any) -> RayReplayBuffer:
        return RayReplayBuffer(tmp_path / "all", 100_000, shards=2, columns=COLUMNS, streams=4, block=8, seed=0, **how)

    with make(near=False, patience=20.0) as buffer:
        with pytest.raises(db.errors.EmptyBufferError):
            buffer.sample(4)
        first = Actor(buffer, 1)
        first.extend(50)
        for _ in range(50):
            first.add()
        buffer.flush()
        assert len(buffer) == buffer.stats()["acknowledged"] == 100
        home = buffer.stats()["shard"]
        # Another process's way in, which goes to the other shard.
        other = RayReplayBuffer._attached(*buffer.__reduce__()[1])
        other._adding.lane._nearest = lambda: [known for known in other._shards.known if known.number != home]
        second = Actor(other, 2)
        second.extend(300)
        other.flush(sync=False)
        assert len(buffer) == 400
        batches = [buffer.sample(1_000) for _ in range(10)]
        assert all(map(is_right, batches))
        names = torch.cat([batch["steps"] for batch in batches])
        among = np.unique(names)
        assert len(among) == 400
        assert_uniform(names.numpy(), among)
        assert np.unique(among % SHARDS, return_counts=True)[1].tolist() == ([100, 300] if home == 0 else [300, 100])
        known = dict(zip(names.tolist(), torch.cat([batch["obs"] for batch in batches])[:, :2].tolist(), strict=True))
        assert len(set(map(tuple, known.values()))) == len(known)  # a name is of one step

        sampler = db.Prioritized(alpha=1.0, seed=0)
        batch = buffer.sample(1_000, sampler)
        buffer.update(sampler, among, np.zeros(400))
        buffer.update(sampler, batch["steps"][:1], np.full(1, 1e6))
        buffer.flush(sync=False)
        buffer.refresh()
        assert (buffer.sample(64, sampler)["steps"] == batch["steps"][0]).sum() > 60

        for pid in pids(buffer):  # while steps are under way
            for _ in range(50):
                first.add()
            second.extend(50)
            os.kill(pid, signal.SIGKILL)
        for _ in range(50):
            first.add()
        buffer.flush(sync=False)
        other.flush(sync=False)
        assert is_right(buffer.sample(64))
        assert buffer.stats()["lost"] == other.stats()["lost"] == 0
        other.close()
    expected = Counter((actor.who, n) for actor in (first, second) for n in range(actor.steps))
    assert stored(tmp_path / "all") == expected  # each once

    with make() as buffer:  # opened again, and read past Ray
        assert len(buffer) == sum(expected.values())
        batch = buffer.sample(256)
        assert is_right(batch)
        assert all(shard["near"] for shard in buffer.stats()["shards"])
        assert all(
            known[name] == obs
            for name, obs in zip(batch["steps"].tolist(), batch["obs"][:, :2].tolist(), strict=True)
            if name in known
        )
        loader = buffer.loader(32)
        assert all(is_right(next(loader)) for _ in range(5))
        loader.close()


@pytest.mark.nightly
def test_a_shard_that_is_slow_is_left_out_and_comes_back(cluster: None, tmp_path: Path) -> None:
    with RayReplayBuffer(tmp_path, shards=2, columns=COLUMNS, near=False, patience=1.0, block=4) as buffer:
        actor = Actor(buffer, 0)
        actor.extend(200)
        buffer.flush(sync=False)
        home = buffer._adding.lane._shard
        assert home is not None
        others = [known for known in buffer._shards.known if known is not home]
        other = RayReplayBuffer._attached(*buffer.__reduce__()[1])
        other._adding.lane._nearest = lambda: others
        second = Actor(other, 1)
        second.extend(200)
        other.flush(sync=False)
        buffer.refresh()
        assert set(buffer.sample(256)["obs"][:, 0].tolist()) == {0.0, 1.0}
        pid = pids(buffer)[buffer.stats()["shard"]]
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(6):
                assert set(buffer.sample(64)["obs"][:, 0].tolist()) == {1.0}
            shard = buffer.stats()["shards"][home.number]
            assert not shard["answers"]  # so nobody waits for it any more
            assert shard["skipped"] >= 5
            for _ in range(8):  # goes to the other
                actor.add()
            buffer.flush(sync=False)
            assert buffer.stats()["shard"] == others[0].number
        finally:
            os.kill(pid, signal.SIGCONT)
        until = time.monotonic() + 60
        while not buffer.stats()["shards"][home.number]["answers"] and time.monotonic() < until:
            time.sleep(0.1)
        assert buffer.stats()["shards"][home.number]["rejoined"] >= 1
        assert set(buffer.sample(256)["obs"][:, 0].tolist()) == {0.0, 1.0}
        other.close()
    assert set(stored(tmp_path)) == {(a.who, n) for a in (actor, second) for n in range(a.steps)}


@pytest.mark.nightly
def test_what_does_not_fit_is_refused_and_the_rest_goes_on(cluster: None, tmp_path: Path) -> None:
    with RayReplayBuffer(tmp_path, shards=1, columns=COLUMNS, block=4, n_envs=2, streams=3) as buffer:
        obs = np.zeros((2, 3), np.float32)
        for n in range(10):
            buffer.add(obs + n, [n, n], [n, n], obs + n + 1, [False, False], [n == 9, n == 9])
        buffer.flush()
        assert len(buffer) == 20
        buffer.extend(obs=np.zeros((5, 3)), action=np.zeros(4, int), reward=np.full(4, np.nan))
        buffer.extend(obs=np.zeros((5, 3)), action=np.zeros(4, int), reward=np.zeros(4))
        with pytest.raises(db.InputError, match="NaN"):
            buffer.flush()
        buffer.flush()
        assert len(buffer) == 24
        second = RayReplayBuffer._attached(*buffer.__reduce__()[1])
        with pytest.raises(db.InputError, match="streams"):
            second.extend(obs=np.zeros((5, 3)), action=np.zeros(4, int), reward=np.zeros(4))
    with pytest.raises(db.errors.ClosedError):
        buffer.sample(3)


# What needs no cluster


@given(seed=st.integers(0, 10**6))
@examples(20, 200)
def test_batches_are_the_same_after_they_were_packed(seed: int) -> None:
    random = np.random.default_rng(seed)
    array = random.integers(0, 3, (int(random.integers(1, 40)), 5, 30, 30), np.uint8)
    frames = torch.from_numpy(array)
    views = array[:, :4], array[:, 1:]  # of one array, or of one tensor
    camera, following = map(torch.from_numpy, views) if random.random() < 0.5 else (frames[:, :4], frames[:, 1:])
    batch = {
        "obs": {"camera": camera, "joints": torch.from_numpy(random.random((len(frames), 2)))},
        "next_obs": {"camera": following, "joints": torch.from_numpy(random.random((len(frames), 2)))},
        "done": torch.from_numpy(random.random(len(frames)) < 0.5),
    }
    packed = pack(batch, compress=bool(random.integers(2)))
    assert len(packed.memories) == 4  # of frames, one
    torch.testing.assert_close(unpack(packed), batch, rtol=0, atol=0)
    twice = joined([batch, unpack(packed)])
    assert (twice["obs"]["camera"] == torch.cat([frames[:, :4]] * 2)).all()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=8, unique_by=lambda one: one[0]))
def test_names_are_the_same_wherever_a_step_is_read(shards: list[tuple[int, int]]) -> None:
    room, first = 1024, 0
    together = Together(shards, room)
    for number, streams in shards:
        positions, own = np.arange(50), np.arange(50) % streams
        names = unique(positions * streams + own, number)
        assert (together.unique(positions * room + first + own) == names).all()
        assert (names % SHARDS == number).all()
        first += streams
    assert together.unique(np.array([-1])).tolist() == [-1]
    assert together.shards == {number for number, _ in shards}


def test_a_shard_without_a_store_does_not_take_the_steps_of_those_that_came_after_it(tmp_path: Path) -> None:
    def fill(shard: int) -> None:
        with db.ReplayBuffer(tmp_path, columns=COLUMNS, writer=f"shard-{shard}", n_envs=1) as buffer:
            buffer.extend(obs=np.full((21, 3), shard), action=np.zeros(20, int), reward=np.zeros(20))

    fill(0)
    local = LocalShards(tmp_path, 3600.0, {"seed": 0})
    try:
        with db.ReplayBuffer(tmp_path, writer="shard-0", mode="r") as buffer:
            join(tmp_path, "shard-1", buffer._store.layout)
        fill(2)
        local.refresh()
        assert set((local.sample(64, None)["steps"] % SHARDS).tolist()) == {0, 2}
    finally:
        local.close()


@given(st.lists(st.sampled_from([None, True, False]), max_size=40), st.integers(1, 3), st.integers(1, 9))
def test_blocks_have_every_step_once_in_order(told: list[bool | None], envs: int, size: int) -> None:
    blocks = Blocks(envs, size)
    found: dict[int, list[Any]] = {env: [] for env in range(envs)}
    ready: list[Any] = []
    for n, new in enumerate(told):
        ready += blocks.add({"obs": {"a": np.full((envs, 2), n) if envs > 1 else np.full(2, n)}}, new)
    for env in range(envs):
        ready += blocks.take(env)
    for env, count, values, begins in ready:
        assert count == len(values["obs"]["a"]) <= size
        found[env] += zip(values["obs"]["a"][:, 0].tolist(), [None] * count if begins is None else begins.tolist(), strict=True)
    assert all(steps == list(enumerate(told)) for steps in found.values())
