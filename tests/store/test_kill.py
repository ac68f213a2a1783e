"""Real kills: what add returned from is there afterwards, the streams go on, and one writer at a time holds the store."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import diskbuffer as db
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


def rows_in_zarr(path: Path, name: str, stream: int) -> dict[int, Any]:
    """Read the rows of a stream with zarr-python alone, by position."""
    root = zarr.open_group(str(path), mode="r")
    table = {field: np.asarray(root[f"_segments/{field}"]) for field in ("stream", "first_row", "length")}
    table["length"] = table["length"][:, 0]
    column, found = root[name], dict[int, Any]()
    assert isinstance(column, zarr.Array)
    rows = column.chunks[0] if column.shards is None else column.shards[0]
    for slot in np.flatnonzero((table["length"] > 0) & (table["stream"] == stream)):
        values = np.asarray(column[slot * rows : slot * rows + table["length"][slot]])
        found.update(zip(range(table["first_row"][slot], table["first_row"][slot] + len(values)), values, strict=True))
    return found


def check_after_kill(path: Path, world: Experience, acknowledged: Any, most_on_the_way: int | None) -> None:
    """Open what a kill left, find all that was acknowledged, and have zarr-python find it, too."""
    with db.ReplayBuffer(path) as buffer:
        heads = heads_of(buffer)
        assert (heads >= acknowledged).all(), f"acknowledged up to {acknowledged}, found up to {heads}"
        if most_on_the_way is not None:
            assert (heads <= np.maximum(acknowledged, 0) + most_on_the_way).all()
        world.check(buffer)
        for stream in range(world.n_envs):
            actions = rows_in_zarr(path, "action", stream)
            at = np.array([p for p in actions if p < heads[stream] and not world.is_last(stream, np.array(p))], int)
            np.testing.assert_array_equal([actions[p] for p in at], world.actions(stream, at))
    for stream in range(world.n_envs):  # closed: every row is in its column
        frames = rows_in_zarr(path, "obs", stream)
        assert len(frames) == 0 or max(frames) == heads[stream]
        at = np.array(sorted(frames), int)
        if len(at):
            np.testing.assert_array_equal([frames[p] for p in at], world.frames(stream, at))


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


def test_after_a_kill_the_stream_and_its_episode_go_on(tmp_path: Path, writers: Writers) -> None:
    world = Experience(episode=1000)
    writers.start(tmp_path / "store", world, "add", steps=100)
    writers.wait_for(100)
    writers.kill()
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        assert len(buffer) == 100
        Feeder(world, buffer).add(10)
        assert buffer.episodes[0] == (0, 0, 110, "running", "", 0)
        assert len(buffer.episodes) == 1
        world.check(buffer)


def test_rows_that_are_in_the_shard_of_one_column_and_in_the_tail_of_another_are_there_after_a_kill(tmp_path: Path) -> None:
    columns = {"obs/small": db.Column((32, 32), "uint8"), "obs/large": db.Column((160, 170, 3), "uint8")}
    rows = {path[4:]: np.random.default_rng(0).integers(0, 256, (31, *c.shape), np.uint8) for path, c in columns.items()}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=64) as buffer:
        buffer.extend(obs=rows, reward=np.zeros(30))  # which packs complete chunks without a way through the tail
        assert len({*buffer._store.layout.chunks_of.values()}) == 2
        copy_while_open(tmp_path / "store", tmp_path / "killed")
    with db.ReplayBuffer(tmp_path / "killed") as buffer:
        assert all(np.array_equal(buffer.at(buffer.steps())["obs"][name].numpy(), rows[name][:30]) for name in rows)


def test_opening_right_after_a_kill_works_for_a_dead_holder_is_no_holder(tmp_path: Path, writers: Writers) -> None:
    for _ in range(3):
        writers.start(tmp_path / "store", Experience(), "add")
        writers.wait_for(1)
        with pytest.raises(db.LockedError):
            db.ReplayBuffer(tmp_path / "store")
        writers.kill()
        db.ReplayBuffer(tmp_path / "store").close()


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


def test_a_reader_beside_a_living_writer_sees_new_steps_when_refreshed(tmp_path: Path) -> None:
    world = Experience(2)
    with world.open(tmp_path / "store") as writer, db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
        feed = Feeder(world, writer)
        feed.add(30)
        assert len(reader) == 0
        reader.refresh()
        assert world.check(reader) == 60
        feed.add(300)
        assert len(reader) == 60
        world.check(reader)  # what it knew of is still what it was
        reader.refresh()
        assert world.check(reader) == 660


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


@pytest.mark.nightly
def test_a_loader_of_a_reader_gets_right_bytes_beside_a_living_writer(tmp_path: Path, writers: Writers) -> None:
    world = Experience(2)
    writers.start(tmp_path / "store", world, "add", capacity=200, segment_rows=16)
    writers.wait_for(500)
    with db.ReplayBuffer(tmp_path / "store", mode="r", seed=3) as reader:
        for n, batch in enumerate(reader.loader(64, threads=2)):
            world.check_batch(batch)
            reader.refresh()
            if n == 200:
                break
    writers.kill()
