"""What a `Reader` shows, against what a buffer that is opened to read shows of the same store."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.plugin import Reader, is_observation, writers_of
from tests.support.experience import Experience, Feeder
from tests.support.specimens import KINDS, make
from tests.support.workloads import boot

WITHOUT = """
import sys
from diskbuffer.plugin import Reader
reader = Reader(sys.argv[1])
reader.episodes()
for column in reader.info.columns:
    reader.read(column, reader.episodes().start[:1])
print(*sorted({"numba", "torch", "zarr", "llvmlite"} & sys.modules.keys()))
"""


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value.numpy()}
    return found


def compare(path: Path) -> Reader:
    """Open a store in both ways, and compare all that there is."""
    reader = Reader(path)
    with db.ReplayBuffer(path, mode="r") as buffer:
        index, streams, info = buffer._reader.index, reader.info.streams, reader.info
        assert reader.rows()[1].tolist() == index.heads.tolist()
        assert reader._of.index.table[:, :5].tolist() == index.table[:, :5].tolist()  # all but addresses
        assert [counts.sum() for counts in reader.counts()] == [len(buffer), index.added()]
        assert (info.capacity, info.n_envs, info.columns) == (buffer.capacity, buffer.n_envs, buffer.columns)
        table, episodes = reader.episodes(), buffer.episodes
        assert table.episode.tolist() == episodes.id.tolist()
        for name in ("stream", "start", "length", "ending", "tag"):
            assert table.column(name).tolist() == getattr(episodes, name).tolist(), name
        np.testing.assert_array_equal(table.returns, episodes.returns.sum(axis=tuple(range(1, episodes.returns.ndim))))
        steps = buffer.steps()
        rng = np.random.default_rng(0)
        rng.shuffle(steps)
        batch = flat(buffer.at(steps)) if len(steps) else {}
        for column in set(batch) & set(info.columns):
            stacked = column.startswith("obs") and buffer.frame_stack > 1
            expected = batch[column][:, -1] if stacked else batch[column]
            np.testing.assert_array_equal(reader.read(column, steps), expected, err_msg=column)
            for step, whole in zip(steps[:20].tolist(), batch[column], strict=False) if stacked else ():
                rows = reader.read(column, reader.stack(step))
                filled = whole[: buffer.frame_stack - len(rows)]
                np.testing.assert_array_equal(rows, whole[len(filled) :])
                assert (filled == (rows[0] if info.padding == "first" else 0)).all()
        for episode in (buffer.episodes[n] for n in range(len(episodes))):
            whole = flat(buffer.episode(episode))
            for column in filter(is_observation, info.columns):
                expected = whole[column][:, -1] if buffer.frame_stack > 1 else whole[column]
                found = reader.read(column, episode.start + np.arange(episode.length + 1) * streams)
                np.testing.assert_array_equal(found, expected)
    return reader


@pytest.mark.some(4)
@pytest.mark.parametrize("booted_since", [False, True])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_random_stores_look_as_a_buffer_has_them(kind: str, booted_since: bool, tmp_path: Path, any_seed: int) -> None:
    """Closed, killed, not sealed; nested, flat, of many environments; tagged, evicted."""
    with boot(1):
        make(tmp_path / "store", kind, any_seed)
    with boot(1 + booted_since):
        compare(tmp_path / "store")


def test_rewards_of_several_numbers_are_summed_up_also_where_there_are_no_episodes(tmp_path: Path) -> None:
    columns = {"obs": db.Column((2,)), "action": db.Column(), "reward": db.Column((3,))}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        assert Reader(tmp_path / "store").episodes().returns.tolist() == []
        buffer.extend(obs=np.zeros((11, 2)), action=np.zeros(10), reward=np.ones((10, 3)))
        assert Reader(tmp_path / "store").episodes().returns.tolist() == [30]


def test_a_reader_follows_its_writer(tmp_path: Path, any_seed: int) -> None:
    rng, world = np.random.default_rng(any_seed), Experience(2)
    with world.open(tmp_path / "store", 200, segment_rows=16) as buffer:
        fed = Feeder(world, buffer)
        reader = Reader(tmp_path / "store")
        assert reader.writer is not None
        assert reader.writer["pid"] == os.getpid()
        assert not reader.refresh()
        for _ in range(12):
            before = buffer.episodes[:]
            fed.add(int(rng.integers(1, 60)))
            if rng.random() < 0.4:
                over = buffer.episodes[buffer.episodes.ending != "running"]
                over[rng.random(len(over)) < 0.5].set_tag("some")
            if rng.random() < 0.2:
                buffer.flush(recompress=True)
            version = reader.version
            assert reader.refresh()
            assert reader.version > version
            assert len(reader.episodes()) == len(buffer.episodes)
            assert reader.episodes().tag.tolist() == buffer.episodes.tag.tolist()
            np.testing.assert_array_equal(reader.episodes().returns, buffer.episodes.returns)
            steps = buffer.steps()
            for stream in range(2):
                positions = steps[steps % 2 == stream] // 2
                np.testing.assert_array_equal(reader.read("obs", steps[steps % 2 == stream]), world.frames(stream, positions))
            gone = np.setdiff1d(before.start, buffer.episodes.start)
            evicted = gone[gone // 2 + 16 <= reader.rows()[0][gone % 2]]  # the file of the segment is gone, too
            if len(evicted):
                with pytest.raises(db.errors.EvictedError, match="was evicted"):
                    reader.read("obs", evicted)
    assert reader.writer is None


def test_a_store_that_is_replaced_or_removed(tmp_path: Path) -> None:
    world = Experience()
    for name, steps in (("store", 30), ("other", 50)):
        with world.open(tmp_path / name) as buffer:
            Feeder(world, buffer).add(steps)
    reader = Reader(tmp_path / "store")
    assert len(reader.read("reward", reader.episodes().start)) == len(reader.episodes())
    assert reader.counts()[0].tolist() == [30]
    opened = reader.version[0]
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "other").rename(tmp_path / "store")
    assert reader.refresh()
    assert reader.version[0] > opened
    assert reader.counts()[0].tolist() == [50]
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(db.errors.NotAStoreError):
        reader.refresh()


def test_rows_that_are_not_there(tmp_path: Path) -> None:
    world = Experience()
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(30)
    reader = Reader(tmp_path / "store")
    for steps in ([-1], [reader.rows()[1][0] + 1], [2**62]):
        with pytest.raises(db.InputError, match="has no row"):
            reader.read("obs", steps)
    with pytest.raises(db.InputError, match="there is no column 'nothing'; there are obs"):
        reader.read("nothing", [0])
    assert reader.read("obs", []).shape == (0, 34, 33)


@pytest.mark.parametrize("name", ["zarr.json", "_segments/length/c.0.0", "is_last/c.0", "reward/c.0"])
def test_a_damaged_store_is_an_error_until_it_is_repaired(name: str, tmp_path: Path) -> None:
    world, path = Experience(), tmp_path / "store"
    with world.open(path, segment_rows=16) as buffer:
        Feeder(world, buffer).add(400)
    reader, every = Reader(path), Reader(path).counts()[0].sum()
    (path / name).unlink()
    with pytest.raises(db.CorruptionError, match=f"Run: diskbuffer check {path}$"):
        Reader(path).episodes()
    db.check(path, repair=True, progress=False)
    assert reader.refresh()
    assert reader.episodes().start.tolist() == compare(path).episodes().start.tolist()
    left = reader.counts()[0].sum()
    assert left == every if name in ("zarr.json", "_segments/length/c.0.0") else 0 < left < every


def test_several_writers_stores_are_read_as_one(tmp_path: Path) -> None:
    path, columns = tmp_path / "all", {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    numbers = {"a": np.arange(21), "b": 100 + np.arange(31)}
    for writer, obs in numbers.items():
        with db.ReplayBuffer(path, columns=columns, writer=writer) as buffer:
            buffer.extend(obs, obs[1:], obs[1:] * 0.5)
    assert writers_of(path) == {"a": 1, "b": 1}
    assert writers_of(path / "a") is None
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(path)], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")
    reader = compare(path)
    assert reader.writer is None
    used, each = reader.usage(), [Reader(path / name).usage() for name in numbers]
    assert (used.rows, used.segments, used.last_shutdown) == (21 + 31, 2, "clean")
    for name in ("rows", "segments", "sealed", "tail", "table"):
        assert getattr(used, name) == sum(getattr(one, name) for one in each), name
    assert used.columns == {name: sum(one.columns[name] for one in each) for name in each[0].columns}
    assert used.disk_bytes >= sum(one.disk_bytes for one in each)
    table = reader.episodes("length == 30")
    assert reader.read("obs", table.start + np.arange(31) * reader.info.streams).tolist() == numbers["b"].tolist()
    with db.ReplayBuffer(path, writer="b") as buffer:
        buffer.extend([7, 8], [0], [1.0])
        holder = Reader(path).writer
        assert holder is not None
        assert holder["pid"] == os.getpid()
    assert reader.refresh()
    assert not reader.refresh()
    assert sorted(reader.episodes().length.tolist()) == [1, 20, 30]


@pytest.mark.nightly
def test_reading_imports_neither_numba_nor_torch(tmp_path: Path) -> None:
    path = tmp_path / "store"
    make(path, "pixels, closed", 0)
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(path)], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")
