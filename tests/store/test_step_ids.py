"""Steps keep their ids, and no other step is ever given one of them: whatever a power loss takes back, and after `clear`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.last_writer import State
from tests.support.simulated_disk import Kind, build
from tests.support.tracing import Trace
from tests.support.workloads import Gate, boot

COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}


def opened(path: Path, capacity: int | None = None, **options: Any) -> db.ReplayBuffer:
    return db.ReplayBuffer(path, capacity, columns=COLUMNS, segment_rows=8, threads=1, **options)


def extend(buffer: db.ReplayBuffer, first: int, steps: int, **options: Any) -> None:
    """Add a trajectory whose observations count on from `first`."""
    obs = np.arange(first, first + steps + 1)
    buffer.extend(obs=obs[:-1], next_obs=obs[1:], action=obs[:-1], reward=np.ones(steps), **options)


def lose_power(base: Path, use: Callable[[Path], db.ReplayBuffer], to: Path, kind: Kind = "nothing", seed: int = 0) -> None:
    """Use a store below `base`, and build below `to` what a power loss leaves of it: nothing that was not synced, by default."""
    base.mkdir(exist_ok=True)
    to.mkdir()
    with boot(1), Trace(base) as trace, Gate(free=False):
        buffer = use(base / "store")
        events, disk = trace.events[: trace.look("power loss")], trace.disk()
        buffer.close()
    for event in events:
        disk.apply(event)
    build(disk.crash(kind, np.random.default_rng(seed)), to)


@pytest.mark.some(1)
@pytest.mark.parametrize("capacity", [None, 40])
def test_ids_go_on_after_clear_and_a_power_loss(capacity: int | None, tmp_path: Path) -> None:
    ids = list[int]()

    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path, capacity)
        extend(buffer, 0, 100)
        ids.extend(buffer.steps().tolist())
        buffer.clear()
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after")
    with boot(2), opened(tmp_path / "after" / "store", capacity) as buffer:
        assert len(buffer) == 0
        extend(buffer, 1000, 20)
        assert buffer.steps().min() > max(ids)
        assert buffer.at(buffer.steps())["action"].tolist() == list(range(1000, 1020))
        assert buffer.check(progress=False).ok


@pytest.mark.some(1)
@pytest.mark.parametrize("steps", [3, 8, 50])
def test_ids_of_steps_that_a_power_loss_took_are_not_given_again(steps: int, tmp_path: Path) -> None:
    ids = list[int]()

    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path)
        extend(buffer, 0, 20)
        buffer.flush()
        extend(buffer, 20, steps)
        ids.extend(buffer.steps().tolist())
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after")
    store = tmp_path / "after" / "store"
    with boot(2), opened(store, mode="r") as reader:
        found = reader.steps().tolist(), reader.stats()["added"]
    with boot(2), opened(store) as buffer:
        assert (buffer.steps().tolist(), buffer.stats()["added"]) == found
        left = buffer.steps()
        assert len(left) >= 20
        extend(buffer, 1000, 30)
        new = np.setdiff1d(buffer.steps(), left)
        assert new.min() > max(ids)
        assert buffer.at(new)["action"].tolist() == list(range(1000, 1030))
        assert buffer.at(left)["action"].tolist() == list(range(len(left)))
        assert buffer.check(progress=False).ok
    with boot(2), opened(store) as buffer:
        assert len(buffer) == len(left) + 30
        assert buffer.check(progress=False).ok


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6))
def test_a_ring_that_comes_back_at_an_earlier_step_gives_no_id_twice(seed: int, tmp_path: Path) -> None:
    ids = list[int]()

    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path, 100)
        extend(buffer, 0, 200)
        buffer.flush()
        for first in range(200, 500, 30):
            extend(buffer, first, 30)
        ids.extend(buffer.steps().tolist())
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after", "random" if seed else "nothing", seed)
    store = tmp_path / "after" / "store"
    with boot(2), opened(store, 100, mode="r") as reader:
        found = reader.steps().tolist(), reader.stats()["added"]
    with boot(2), opened(store, 100) as buffer:
        assert (buffer.steps().tolist(), buffer.stats()["added"]) == found
        extend(buffer, 1000, 30)
        assert buffer.steps()[-30:].min() > max(ids)
        assert buffer.at(buffer.steps()[-30:])["action"].tolist() == list(range(1000, 1030))
        for _ in range(10):  # what stands in the place of lost steps is evicted like others
            extend(buffer, 2000, 30)
        assert len(buffer) <= 100 + 2 * 8
        assert buffer.check(progress=False).ok


def test_a_learners_values_are_not_those_of_other_steps_after_a_power_loss(tmp_path: Path) -> None:
    def use(path: Path) -> db.ReplayBuffer:
        writer = opened(path, 1000, writer="one")
        extend(writer, 300, 50)
        writer.clear()
        return writer

    path = tmp_path / "before" / "store"
    with opened(path, 1000, writer="one") as writer:
        extend(writer, 0, 300)
        with db.ReplayBuffer(path, mode="r") as learner:
            learner.columns.write("value", learner.steps(), np.ones(len(learner), np.float32))
    lose_power(tmp_path / "before", use, tmp_path / "after", "metadata only")
    with boot(2):
        writer = opened(tmp_path / "after" / "store", 1000, writer="one")
        extend(writer, 0, 300)
        with db.ReplayBuffer(tmp_path / "after" / "store", mode="r") as learner:
            assert len(learner) == 300
            assert not learner.at(learner.steps())["value"].any()
        writer.close()


def test_repair_after_a_power_loss_gives_no_id_twice(tmp_path: Path) -> None:
    ids = list[int]()

    def use(path: Path) -> db.ReplayBuffer:
        buffer = opened(path)
        extend(buffer, 0, 20)
        buffer.flush()
        extend(buffer, 20, 30)
        ids.extend(buffer.steps().tolist())
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after")
    store = tmp_path / "after" / "store"
    with boot(2):
        db.check(store, repair=True, progress=False)
        assert db.check(store, progress=False).ok
        with opened(store) as buffer:
            left = len(buffer)
            assert left >= 20
            extend(buffer, 1000, 30)
            assert buffer.steps()[left:].min() > max(ids)


def test_a_store_of_pictures_goes_on_after_a_power_loss(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (60, 40, 40), np.uint8)
    columns = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}
    ids = list[int]()

    def add(buffer: db.ReplayBuffer, first: int, n: int) -> None:
        for t in range(first, first + n):
            buffer.add(frames[t], t, 1.0, frames[t + 1], False, False)

    def use(path: Path) -> db.ReplayBuffer:
        buffer = db.ReplayBuffer(path, columns=columns, segment_rows=16, threads=1)
        add(buffer, 0, 21)
        buffer.flush()
        add(buffer, 21, 20)
        ids.extend(buffer.steps().tolist())
        return buffer

    lose_power(tmp_path / "before", use, tmp_path / "after")
    for _ in range(2):
        with boot(2), db.ReplayBuffer(tmp_path / "after" / "store", threads=1) as buffer:
            left = buffer.steps()
            assert (buffer.at(left)["obs"].numpy() == frames[buffer.at(left)["action"].numpy()]).all()
            add(buffer, 45, 10)
            new = np.setdiff1d(buffer.steps(), left)
            assert new.min() > max(ids)
            assert (buffer.at(new)["obs"].numpy() == frames[45:55]).all()
            assert buffer.check(progress=False).ok


@pytest.mark.parametrize("capacity", [None, 100])
def test_a_note_of_more_rows_than_there_can_have_been_is_not_believed(capacity: int | None, tmp_path: Path) -> None:
    """A stranger's store must not fill the disk of whoever opens it."""
    with boot(1), opened(tmp_path / "store", capacity) as buffer:
        extend(buffer, 0, 20)
        files, salt = buffer._store.files, buffer._store.layout.salt
    state = State.read(files, salt)
    assert state is not None
    dataclasses.replace(state, clean=False, reserved=(2**50,)).note(files)
    refused = contextlib.nullcontext() if capacity else pytest.raises(db.CorruptionError, match="more than the store can")
    with boot(2), refused, opened(tmp_path / "store", capacity) as buffer:
        assert len(buffer) == 0
        extend(buffer, 0, 20)
        assert buffer.steps().min() >= 2**50
        assert buffer.check(progress=False).ok
