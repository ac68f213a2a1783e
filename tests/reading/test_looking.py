"""Finding and reading what is there: paths, names of steps, whole episodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.adapters.torchrl import DiskStorage
from diskbuffer.schema.nested import flatten

COLUMNS = {"obs/a": db.Column((2,), "float32"), "obs/b": db.Column((), "int64"), "action": db.Column((), "int64")}


def made(path: Path | str, lengths: tuple[int, ...] = (), **options: Any) -> db.ReplayBuffer:
    """A buffer with episodes of these lengths; ``obs/b`` and actions count on."""
    buffer = db.ReplayBuffer(path, columns=COLUMNS, **options)
    n = 0
    for length in lengths:
        extend(buffer, n, length)
        n += length + 1
    return buffer


def extend(buffer: db.ReplayBuffer, first: int, length: int) -> None:
    count = np.arange(first, first + length + 1)
    obs = {"a": np.stack([count, -count], axis=1).astype(np.float32), "b": count}
    buffer.extend(obs, count[:-1], np.ones(length), terminated=count[:-1] == first + length - 1)


# Paths


def test_the_home_of_the_user_is_meant_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with made("~/runs/store", (3,)) as buffer:
        assert buffer.path == tmp_path / "runs" / "store"
        assert buffer.copies.snapshot("~/copy") == tmp_path / "copy"
    assert db.check("~/runs/store", progress=False).ok
    assert db.marks("~/copy") == ()
    assert DiskStorage(10, "~/torchrl").path == tmp_path / "torchrl"
    assert sorted(os.listdir(tmp_path)) == ["copy", "runs"]
    made("./~/store").close()  # a directory of that name


@pytest.mark.parametrize("path", ["s3://bucket/store", "gs://bucket/store", "https://example.org/store", "memory://x"])
def test_a_url_is_no_path(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (made, db.check, db.marks):
        with pytest.raises(db.InputError, match="is a URL"):
            use(path)
    with made("store", (3,)) as buffer, pytest.raises(db.InputError, match="is a URL"):
        buffer.copies.snapshot(path)
    assert os.listdir(tmp_path) == ["store"]


@pytest.mark.parametrize("path", [3, None, b"store", "~nobody-of-this-name/store"])
def test_what_is_no_path_is_refused(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(db.InputError, match=r"path|home"):
        made(path)
    assert os.listdir(tmp_path) == []


# Names of steps


def test_names_of_steps_are_listed_where_counting_does_not_find_them(tmp_path: Path) -> None:
    with made(tmp_path / "store", (3, 4), capacity=1000) as buffer:
        assert buffer.steps().tolist() == [0, 1, 2, 4, 5, 6, 7]
        assert buffer.at(buffer.steps())["action"].tolist() == [0, 1, 2, 4, 5, 6, 7]
        with pytest.raises(db.InputError, match=r"step 3 cannot be read.*steps\(\) returns all names"):
            buffer.at(np.arange(len(buffer)))
    with made(tmp_path / "empty") as buffer:
        assert buffer.steps().shape == (0,)


# Whole episodes


def test_an_episode_has_an_observation_more_than_steps(tmp_path: Path) -> None:
    with made(tmp_path / "store", (3, 1, 5)) as buffer:
        for which, first, length in ((0, 0, 3), (4, 4, 1), (6, 6, 5), (buffer.episodes[2], 6, 5), (np.int64(4), 4, 1)):
            episode = buffer.episode(which)  # type: ignore[arg-type]
            assert episode["obs"]["b"].tolist() == list(range(first, first + length + 1))
            assert episode["obs"]["a"].shape == (length + 1, 2)
            assert episode["action"].tolist() == list(range(first, first + length))
            assert episode["terminated"].tolist() == [False] * (length - 1) + [True]
            assert episode["steps"].tolist() == list(range(first, first + length))
            assert "next_obs" not in episode
        assert set(buffer.episode(0, columns=["reward"])) == {"reward", "steps"}
        assert buffer.episode(0, columns=["obs/b"])["obs"]["b"].tolist() == [0, 1, 2, 3]
        with pytest.raises(db.InputError, match="list of names"):
            buffer.episode(0, columns="obs")
        with pytest.raises(db.InputError, match="list of names"):
            buffer.episodes.read(columns="reward")
        for wrong in (1, 12, -1, 2**70, "first", 1.5, None):
            with pytest.raises(db.InputError, match="episode"):
                buffer.episode(wrong)  # type: ignore[arg-type]


def test_episodes_are_iterated_and_those_that_are_evicted_left_out(tmp_path: Path) -> None:
    with made(tmp_path / "store", (7,) * 6, capacity=24, segment_rows=8) as buffer:
        kept = [int(episode["action"][0]) for episode in buffer.episodes.read()]
        assert kept == buffer.at(buffer.episodes.start)["action"].tolist()
        some = buffer.episodes[buffer.episodes.length == 7]
        assert len(list(some.read(columns=["action"]))) == len(some)
        seen, n = [], 48
        for episode in buffer.episodes.read():
            seen.append(int(episode["action"][0]))
            assert len(episode["obs"]["b"]) == len(episode["action"]) + 1
            for _ in range(2):
                extend(buffer, n, 7)
                n += 8
        assert len(seen) < len(kept)
        assert set(seen) <= set(kept)
        with pytest.raises(db.InputError, match="evicted"):
            buffer.episode(some[0])
        assert list(some.read()) == []
    with made(tmp_path / "empty") as buffer:
        assert list(buffer.episodes.read()) == []


@pytest.mark.parametrize("frames", [1, 3])
def test_steps_are_read_by_age_and_as_arrays(tmp_path: Path, frames: int) -> None:
    with made(tmp_path / "store", (7, 5), frame_stack=frames) as buffer:
        steps = buffer.steps()
        for columns in (None, ["obs/b", "reward"]):
            tensors = flatten(buffer.at(steps, columns=columns))
            for found in (
                buffer.at(steps, columns=columns, numpy=True),
                buffer.at(ages=np.arange(12)[::-1], columns=columns, numpy=True),
            ):
                arrays = flatten(found)
                assert list(arrays) == list(tensors)
                for path, values in arrays.items():
                    assert isinstance(values, np.ndarray)
                    np.testing.assert_array_equal(values, tensors[path].numpy())
        returns = buffer.at(ages=[11, 4], n_step=3, gamma=0.5)["reward"].tolist()
        assert returns == [1.75, 1.75]
        for wrong in ({"steps": steps, "ages": [0]}, {"ages": [0], "length": 2}):
            with pytest.raises(db.InputError, match="ages= tell which"):
                buffer.at(**wrong)  # type: ignore[arg-type]
        with pytest.raises(db.InputError, match="there is none of age 12"):
            buffer.at(ages=[12])


# Some columns


@pytest.mark.parametrize("columns", [["reward"], ["obs/b"], ["terminated", "obs/a", "action"]])
def test_recent_steps_have_the_columns_that_are_asked_for(columns: list[str], tmp_path: Path) -> None:
    with made(tmp_path / "store", (4, 3)) as buffer:
        everything, some = buffer.at(buffer.steps([5, 0, 2])), buffer.at(buffer.steps([5, 0, 2]), columns=columns)
        assert some["steps"].tolist() == everything["steps"].tolist()
        paths = flatten(some)
        wanted = {*columns, *(f"next_{path}" for path in columns if path.startswith("obs"))}
        assert set(paths) - {"steps"} == wanted
        for path in wanted:
            np.testing.assert_array_equal(paths[path], flatten(everything)[path])


def test_columns_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with made(tmp_path / "store", (4, 3)) as buffer:
        with pytest.raises(db.InputError, match="n_step= and copy= go with single steps"):
            buffer.at(buffer.steps([0]), 3, n_step=3)
        with pytest.raises(db.InputError, match="no column 'nope'"):
            buffer.at(buffer.steps([0]), columns=["nope"])
        assert len(buffer.at(buffer.steps([0]))["steps"]) == 1
