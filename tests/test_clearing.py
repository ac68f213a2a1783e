"""Dropping every step, and another capacity: what goes, what stays, and who sees it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db

Array = np.ndarray[Any, Any]
COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}


def made(path: Path, capacity: int | None = None, **options: Any) -> db.ReplayBuffer:
    return db.ReplayBuffer(path, capacity, columns=COLUMNS, **options)


def add(buffer: db.ReplayBuffer, first: int, n: int) -> None:
    """Add a trajectory whose observations count on from `first`."""
    buffer.extend(np.arange(first, first + n + 1), np.arange(first, first + n), np.ones(n))


def actions(buffer: db.ReplayBuffer) -> list[int]:
    return [int(action) for action in buffer.at(buffer.steps())["action"]]


@pytest.mark.some(3)
@pytest.mark.parametrize("capacity", [None, 40])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 16, 50])
def test_a_cleared_buffer_is_empty_and_goes_on(n: int, capacity: int | None, tmp_path: Path) -> None:
    with made(tmp_path / "store", capacity, segment_rows=8, metadata={"a": 1}) as buffer:
        buffer.clear()  # of nothing
        add(buffer, 0, n)
        buffer.columns.write("value", buffer.steps(), np.ones(len(buffer), np.float32))
        last = buffer.steps()[-1]
        kept = buffer.sample(4)
        before = kept["action"].tolist()
        buffer.clear()
        assert (len(buffer), len(buffer.episodes), buffer.steps().tolist()) == (0, 0, [])
        figures = buffer.stats()
        assert (figures["steps"], figures["episodes"], figures["added"]) == (0, 0, n)
        assert figures["segments"] in (1, 2)  # where the newest row fills one, the next may be there, too
        with pytest.raises(db.errors.EmptyBufferError):
            buffer.sample(1)
        with pytest.raises(db.InputError, match="cannot be read"):
            buffer.at([last])
        assert buffer.columns.write("value", [last], np.ones(1, np.float32)) == 0  # it was evicted
        assert kept["action"].tolist() == before
        add(buffer, n, 20)  # from where the episode was
        assert actions(buffer)[-15:] == list(range(n + 5, n + 20))
        assert buffer.steps().min() > last
        assert (buffer.at(buffer.steps())["value"] == 0).all()
        buffer.clear()
        buffer.clear()
        add(buffer, 100, 3)
    for mode in ("r", "a"):
        with db.ReplayBuffer(tmp_path / "store", mode=mode) as buffer:
            assert actions(buffer) == [100, 101, 102]
            assert buffer.capacity == capacity
            assert buffer.metadata == {"a": 1}
            assert len(buffer.episodes) == buffer.stats()["episodes"] == 1
            assert buffer.check(progress=False).ok


@pytest.mark.nightly
def test_rollouts_take_the_space_of_one(tmp_path: Path) -> None:
    with made(tmp_path / "store", segment_rows=64) as buffer:
        sizes = []
        for rollout in range(20):
            add(buffer, 1000 * rollout, 500)
            assert actions(buffer) == list(range(1000 * rollout, 1000 * rollout + 500))
            assert buffer.columns.returns_and_advantages(values=None) == 500
            assert buffer.columns.map(lambda batch: batch["obs"].float(), 100, "value", progress=False) == 500
            sizes.append(buffer.stats()["segments"])
            buffer.clear()
        assert max(sizes) <= 10


def test_readers_samplers_and_loaders_see_it(tmp_path: Path) -> None:
    with made(tmp_path / "store", segment_rows=16) as buffer, db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
        sampler, slices = db.Prioritized(seed=1), db.Slices(3, 1, replace=False)
        add(buffer, 0, 100)
        reader.refresh()
        assert len(reader) == 100
        for one in (sampler, slices):
            buffer.sample(8, one)
        loop = iter(buffer.loader(8, db.Uniform(1)))
        next(loop)
        buffer.clear()
        with pytest.raises(db.errors.EmptyBufferError):
            next(loop)
        reader.refresh()
        assert len(reader) == 0
        add(buffer, 500, 50)
        every: list[db.Sampler] = [sampler, slices, db.Uniform(2)]
        for sampler_ in every:
            for some in itertools.islice(buffer.loader(32, sampler_), 10):
                assert (some["action"] >= 500).all()
        reader.refresh()
        assert actions(reader) == list(range(500, 550))


def test_marks_stay(tmp_path: Path) -> None:
    with made(tmp_path / "store", 100, segment_rows=8) as buffer:
        add(buffer, 0, 30)
        buffer.copies.mark("before")
        buffer.clear()
        assert len(buffer) == 0
        add(buffer, 30, 5)
    with db.ReplayBuffer(tmp_path / "store", mark="before", mode="r") as mark:
        assert actions(mark) == [*range(30)]
    with db.ReplayBuffer(tmp_path / "store", mark="before") as buffer:
        assert actions(buffer) == [*range(30)]
        copy = buffer.copies.snapshot(tmp_path / "copy")
        buffer.clear()
        add(buffer, 900, 4)
    for path, expected in ((copy, [*range(30)]), (tmp_path / "store", [*range(900, 904)])):
        with db.ReplayBuffer(path) as buffer:
            assert actions(buffer) == expected
            assert buffer.check(progress=False).ok


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_a_rollout_of_a_vector_goes_on_in_the_middle_of_episodes(autoreset: Any, tmp_path: Path) -> None:
    """Every environment ends an episode now and then; a reset step behind a rollout is still no step."""
    none = np.zeros(2, np.bool_)
    with made(tmp_path / "store", n_envs=2, autoreset=autoreset, segment_rows=8) as buffer:
        now, ended, added = np.array([0, 1000]), np.zeros(2, bool), 0
        for step in range(60):
            reset = ended if autoreset == "next_step" else none
            following = np.where(reset, now + 100, now + 1)
            ends = np.array([step % 5 == 4, step % 7 == 6]) & ~reset
            info = {"final_obs": list(following)} if autoreset == "same_step" else None
            given = following
            if autoreset == "same_step":
                given = np.where(ends, following + 100, following)
            added += buffer.add(now, now, np.where(reset, 0.0, 1.0), given, ends, none, info=info)
            now, ended = given, ends
            if autoreset == "disabled":
                now = np.where(ends, now + 100, now)
            if step % 10 == 9:
                batch = buffer.at(buffer.steps())
                assert len(buffer) == added
                assert (batch["next_obs"] == batch["obs"] + 1).all()
                assert (batch["reward"] == 1).all()
                buffer.clear()
                added = 0


def test_a_reader_neither_clears_nor_resizes(tmp_path: Path) -> None:
    made(tmp_path / "store").close()
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        for call in (buffer.clear, functools.partial(buffer.resize, 10)):
            with pytest.raises(db.errors.ReadOnlyError):
                call()


# Another capacity


@pytest.mark.some(1)
@pytest.mark.parametrize("each", [False, True])
def test_a_capacity_can_be_changed_when_a_store_is_opened_again(
    each: bool, tmp_path: Path, amount: Callable[[int, int], int]
) -> None:
    def step(buffer: db.ReplayBuffer, first: int, n: int) -> None:
        for k in range(first, first + n):
            two = np.array([k, 10_000 + k])
            buffer.add(two, two, np.ones(2), two + 1, np.zeros(2, bool), np.zeros(2, bool))

    with made(tmp_path / "store", 200, segment_rows=8, n_envs=2, capacity_each=each, autoreset="disabled") as buffer:
        step(buffer, 0, amount(150, 300))
    with pytest.raises(db.errors.SchemaError, match=r"capacity: stored 200, asked for 400(.|\n)*resize\(\)"):
        db.ReplayBuffer(tmp_path / "store", 400)
    at, few = amount(150, 300), ((400, 250), (60, 0), (60, 50), (None, 120), (100, 0), (200, 150), (16, 20))
    many = ((400, 400), (60, 0), (60, 100), (None, 500), (100, 0), (1000, 700), (16, 20))
    for capacity, n in (few, many)[amount(0, 1)]:
        with db.ReplayBuffer(tmp_path / "store") as buffer:
            before = len(buffer)
            buffer.resize(capacity)
            step(buffer, at, n)
            at += n
            assert buffer.capacity == capacity
            if capacity is None:
                assert len(buffer) == before + 2 * n
            else:
                assert min(capacity, before + 2 * n) <= len(buffer) <= capacity + 2 * 9
            kept = sorted(actions(buffer))
            mine = len(kept) // 2
            assert kept[:mine] == list(range(at - mine, at))
        with db.ReplayBuffer(tmp_path / "store", capacity) as buffer:
            assert sorted(actions(buffer)) == kept
            assert buffer.check(progress=False).ok


def test_a_capacity_that_cannot_be_is_refused(tmp_path: Path) -> None:
    def refuse(call: Callable[[], Any], what: str) -> None:
        with pytest.raises(db.InputError, match=what):
            call()

    with made(tmp_path / "store", 100, n_envs=2, autoreset="next_step", capacity_each=True, frame_stack=4) as buffer:
        for wrong in (0, -1, 1.5, "many", True):
            refuse(functools.partial(buffer.resize, wrong), "capacity must be")  # type: ignore[arg-type]
        refuse(lambda: buffer.resize(3), "stack of 4 frames")
        refuse(lambda: buffer.resize(7), "of each environment")
        assert buffer.capacity == 100


@pytest.mark.parametrize("envs", [1, 3])
def test_a_capacity_after_a_time_without_one_counts_what_there_is(envs: int, tmp_path: Path) -> None:
    def add_rounds(first: int, n: int) -> None:
        obs = np.repeat(np.arange(first, first + n + 1)[:, None], envs, axis=1)
        obs = obs if envs > 1 else obs[:, 0]
        buffer.extend(obs[:-1], obs[:-1], np.ones(obs[1:].shape), next_obs=obs[1:])

    with made(tmp_path / "store", 20 * envs, n_envs=envs, autoreset="disabled", segment_rows=8) as buffer:
        add_rounds(0, 30)
        buffer.resize(None)
        add_rounds(30, 20)
        assert len(buffer) == 40 * envs
        buffer.clear()
        buffer.resize(10 * envs)
        assert len(buffer) == 0
        add_rounds(50, 5)
        assert len(buffer) == 5 * envs
        add_rounds(55, 30)
        assert sorted(actions(buffer)) == sorted([*range(75, 85)] * envs)
    with made(tmp_path / "store", 10 * envs, n_envs=envs, autoreset="disabled", mode="r") as buffer:
        assert len(buffer) == 10 * envs


def test_a_capacity_can_be_given_where_times_are_damaged(tmp_path: Path) -> None:
    """When steps were added decides what is evicted first, and nothing else."""
    with made(tmp_path / "store", n_envs=2, autoreset="disabled", segment_rows=8) as buffer:
        obs = np.repeat(np.arange(51)[:, None], 2, axis=1)
        buffer.extend(obs[:-1], obs[:-1], np.ones((50, 2)), next_obs=obs[1:])
        buffer.flush(recompress=True)
    file = tmp_path / "store" / "row_checksum" / "c.0.0"
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    with made(tmp_path / "store", n_envs=2, autoreset="disabled") as buffer:
        buffer.resize(20)
        assert len(buffer) == 20
    with made(tmp_path / "store", 20, n_envs=2, autoreset="disabled") as buffer:
        assert len(buffer) == 20
