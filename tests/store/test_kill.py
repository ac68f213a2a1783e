"""Real kills: what add returned from is there afterwards, the streams go on, and one writer at a time holds the store."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import diskbuffer as db
from tests.store.rows_by_zarr import check, with_zarr_python
from tests.support.experience import Experience, Feeder, heads_of
from tests.support.specimens import contents, copy_while_open
from tests.support.writers import Writers

if TYPE_CHECKING:
    from collections.abc import Callable


ROUNDS = 12
KINDS: dict[str, dict[str, Any]] = {
    "one environment": {"n_envs": 1, "how": "add"},
    "four environments": {"n_envs": 4, "how": "add"},
    "in bulk": {"n_envs": 2, "how": "extend", "capacity": 3000, "segment_rows": 64},
    "tiny segments": {"n_envs": 3, "how": "add", "capacity": 60, "segment_rows": 8},
}


def check_after_kill(path: Path, world: Experience, acknowledged: Any, most_on_the_way: int | None) -> None:
    """Open what a kill left, find all that was acknowledged, and have zarr-python find it, too."""
    with db.ReplayBuffer(path) as buffer:
        heads = heads_of(buffer)
        assert (heads >= acknowledged).all(), f"acknowledged up to {acknowledged}, found up to {heads}"
        if most_on_the_way is not None:
            assert (heads <= np.maximum(acknowledged, 0) + most_on_the_way).all()
        world.check(buffer)
        check(path, buffer, with_zarr_python, closed=False)
    with db.ReplayBuffer(path, mode="r") as buffer:
        assert (heads_of(buffer) == heads).all()
        check(path, buffer, with_zarr_python, closed=True)


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_again_and_again_nothing_that_was_acknowledged_is_lost(
    kind: str, tmp_path: Path, writers: Writers, amount: Callable[[int, int], int]
) -> None:
    job = dict(KINDS[kind])
    world, path, rng = Experience(job.pop("n_envs")), tmp_path / "store", np.random.default_rng(7)
    how, capacity, acknowledged = job.pop("how"), job.get("capacity"), np.full(world.n_envs, -1)
    for round_ in range(amount(4, ROUNDS)):
        writers.start(path, world, how, **job)
        if round_ % 4 != 3:  # every fourth may be killed while it opens the store
            writers.wait_for(30 if round_ % 2 else 0)
        time.sleep(rng.uniform(0, 0.06))
        acknowledged = np.maximum(acknowledged, writers.kill())
        if (path / "zarr.json").exists():
            check_after_kill(path, world, acknowledged, 2 if how == "add" else None)
    with db.ReplayBuffer(path) as buffer:
        heads = heads_of(buffer)
        added = buffer.stats()["added"]
        assert added == sum(int((~world.is_last(s, np.arange(heads[s]))).sum()) for s in range(world.n_envs))
        assert added >= 30  # which were waited for
        assert len(buffer) == added if capacity is None else len(buffer) >= min(added, capacity)


def test_rows_that_are_in_the_shard_of_one_column_and_in_the_tail_of_another_are_there_after_a_kill(tmp_path: Path) -> None:
    columns = {"obs/small": db.Column((32, 32), "uint8"), "obs/large": db.Column((160, 170, 3), "uint8")}
    rows = {path[4:]: np.random.default_rng(0).integers(0, 256, (31, *c.shape), np.uint8) for path, c in columns.items()}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=64) as buffer:
        buffer.extend(obs=rows, reward=np.zeros(30))  # which packs complete chunks without a way through the tail
        assert len({*buffer._store.layout.chunks_of.values()}) == 2
        copy_while_open(tmp_path / "store", tmp_path / "killed")
    with db.ReplayBuffer(tmp_path / "killed") as buffer:
        assert all(np.array_equal(buffer.at(buffer.steps())["obs"][name].numpy(), rows[name][:30]) for name in rows)


def test_a_second_writer_is_refused_and_the_holder_named(tmp_path: Path, writers: Writers) -> None:
    world = Experience()
    with world.open(tmp_path / "mine") as buffer:
        Feeder(world, buffer).add(10)
        for mode in ("a", "r+"):
            with pytest.raises(db.LockedError, match=rf"\b{os.getpid()}\b"):
                db.ReplayBuffer(tmp_path / "mine", mode=mode)
        Feeder(world, buffer).add(10)
        assert world.check(buffer) == 20
    writers.start(tmp_path / "other", world, "add", steps=10)
    writers.wait_for(10)
    with pytest.raises(db.LockedError, match=rf"\b{writers.pid}\b"):
        db.ReplayBuffer(tmp_path / "other")
    writers.kill()


def test_a_refused_writer_changes_nothing(tmp_path: Path, writers: Writers) -> None:
    world = Experience()
    writers.start(tmp_path / "store", world, "add", steps=77, flush_every=None)
    writers.wait_for(77)
    before = contents(tmp_path / "store")
    with pytest.raises(db.LockedError):
        db.ReplayBuffer(tmp_path / "store")
    assert contents(tmp_path / "store") == before
    writers.kill()


@pytest.mark.some(1)
@pytest.mark.parametrize("stack", [1, 4])
def test_a_reader_gets_right_bytes_while_the_writer_evicts_and_seals(stack: int, tmp_path: Path, writers: Writers) -> None:
    world = Experience(2)
    writers.start(tmp_path / "store", world, "add", capacity=200, segment_rows=16)
    writers.wait_for(500)
    newest, batches = 0, 0
    with db.ReplayBuffer(tmp_path / "store", mode="r", frame_stack=stack, seed=3) as reader:
        while min(batches - 200, newest - 2000) <= 0:
            if batches % 3 != 2:
                reader.refresh()
                assert len(reader) <= 202  # fewer, where the writer is ahead, and for frames of stacks that it does not know
            batch = reader.sample(64)
            world.check_batch(batch, stack)
            assert (batch["steps"] >= 0).all()
            newest, batches = max(newest, int(batch["steps"].max())), batches + 1
    assert batches > 200
    assert newest > 2000, "the writer did not move on"
    writers.kill()
