"""Columns that were written later can be removed, at any moment; those that would have nothing in them are not made."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store import directory
from diskbuffer.store.system.files import Files
from tests.support.experience import Experience, Feeder
from tests.support.specimens import copy_while_open

NAMES = ("alpha", "beta", "gamma", "tag")


def matches(buffer: db.ReplayBuffer, model: dict[str, Any]) -> None:
    """Compare a buffer's derived columns with arrays by step."""
    at = buffer.steps()
    batch = buffer.at(at)
    assert buffer.columns.derived == {*model}
    assert {*NAMES} & {*batch} == {*model}
    for name, values in model.items():
        np.testing.assert_array_equal(batch[name].numpy(), values[at], err_msg=name)
    some = buffer.sample(8)
    for name, values in model.items():
        np.testing.assert_array_equal(some[name].numpy(), values[some["steps"].numpy()], err_msg=name)


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(3))
def test_columns_come_and_go_as_in_a_dict(seed: int, tmp_path: Path) -> None:
    rng, world, model = np.random.default_rng(seed), Experience(2, 20), dict[str, Any]()
    marks: dict[str, dict[str, Any]] = {}
    buffer = world.open(tmp_path / "store", 150, segment_rows=16)
    feed = Feeder(world, buffer)
    feed.add(60)
    reader = db.ReplayBuffer(tmp_path / "store", mode="r")
    for n in range(40):
        what = rng.choice(["write", "write", "tag", "remove", "remove", "add", "read", "mark", "reopen"])
        name = NAMES[rng.integers(3)]
        if what == "write":
            dtype = np.dtype(["float32", "int16"][rng.integers(2)])
            if name in model and model[name].dtype != dtype:
                with pytest.raises(db.errors.SchemaError):
                    buffer.columns.write(name, buffer.steps()[:3], np.ones(3, dtype))
                continue
            values = model.setdefault(name, np.zeros(10_000, dtype))
            some = rng.permutation(buffer.steps())[:40]
            values[some] = rng.integers(1, 1000, len(some))
            buffer.columns.write(name, some, values[some])
        elif what == "tag":
            buffer.episodes[:1].set_tag("red")
        elif what == "remove":
            name = NAMES[rng.integers(4)]
            if name not in model:
                with pytest.raises(db.errors.SchemaError, match=name):
                    buffer.columns.remove(name)
                continue
            buffer.columns.remove(name)
            del model[name]
            assert not (tmp_path / "store" / name).exists()
            if name == "tag":
                assert buffer.episodes.tag_names == ()
        elif what == "add":
            feed.add(15)
        elif what == "mark":
            buffer.copies.mark(f"mark{n}")
            marks[f"mark{n}"] = {key: values.copy() for key, values in model.items()}
        elif what == "reopen":
            buffer.close()
            buffer = world.open(tmp_path / "store")
            feed = Feeder(world, buffer)
        if what in ("tag", "reopen", "add") and "tag" in buffer.columns.derived:
            model["tag"] = np.zeros(10_000, np.uint16)
            model["tag"][buffer.steps()] = buffer.at(buffer.steps())["tag"].numpy()
        matches(buffer, model)
        if what == "read" or n % 7 == 0:
            reader.refresh()
            matches(reader, model)
    buffer.close()
    reader.refresh()
    matches(reader, model)
    reader.close()
    assert db.check(tmp_path / "store", progress=False).ok
    for mark, then in marks.items():
        with db.ReplayBuffer(tmp_path / "store", mode="r", mark=mark) as kept:
            assert kept.columns.derived == {*then}
            at = kept.steps()
            for name, values in then.items():
                if name != "tag":
                    np.testing.assert_array_equal(kept.at(at)[name].numpy(), values[at])
    for mark, then in list(marks.items())[:1]:
        with db.ReplayBuffer(tmp_path / "store", mark=mark) as back:
            assert back.columns.derived == {*then}


def test_a_reader_that_has_not_refreshed_misses_the_files_and_reads_on_without_them(tmp_path: Path) -> None:
    world = Experience(1, 20, (9,))
    with world.open(tmp_path / "store", segment_rows=16) as buffer:
        Feeder(world, buffer).add(60)
        at = buffer.steps()
        for name in ("alpha", "beta"):
            buffer.columns.write(name, at, np.ones(len(at), np.float32))
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            buffer.columns.remove("alpha")
            batch = reader.at(at)
            assert "alpha" not in batch
            assert batch["beta"].all()
            buffer.columns.write("alpha", at, np.full(len(at), 7, np.int16))
            reader.refresh()
            assert (reader.at(at)["alpha"] == 7).all()
            buffer.columns.remove("alpha")
            buffer.columns.write("alpha", at[:20], np.full(20, 9, np.int16))  # of the same name, dtype and place
            reader.refresh()
            batch = reader.at(at)
            assert (batch["alpha"].numpy() == np.where(np.arange(len(at)) < 20, 9, 0)).all()
            buffer.columns.remove("beta")
            reader.refresh()
            with pytest.raises(db.InputError, match="no column 'beta'"):
                reader.at(at, columns=["beta"])


def test_what_cannot_be_removed_is_refused(tmp_path: Path) -> None:
    world = Experience(1, 20, (9,))
    with world.open(tmp_path / "store", segment_rows=16) as buffer:
        Feeder(world, buffer).add(60)
        for name, why in (("reward", "recorded"), ("is_last", "recorded"), ("nothing", "no column"), ("obs", "recorded")):
            with pytest.raises(db.errors.SchemaError, match=why):
                buffer.columns.remove(name)
        sampler = db.Prioritized(seed=0)
        buffer.sample(4, sampler)
        with pytest.raises(db.errors.SchemaError, match="sampler"):
            buffer.columns.remove("priority")
        del sampler
        buffer.columns.remove("priority")
        assert buffer.columns.derived == set()
        again = db.Prioritized(seed=0)
        buffer.sample(4, again)
        assert (buffer.at(buffer.steps(), columns=["priority"])["priority"] == 1).all()
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            for change in (lambda: reader.columns.remove("priority"), lambda: reader.columns.write("value", [0], [1.0])):
                with pytest.raises(db.errors.ReadOnlyError):
                    change()


class Killed(BaseException):
    """In place of a SIGKILL."""


def failing(real: Any, left: list[int]) -> Any:
    """Return a function that is killed once none is left."""

    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return real(self, *args, **keywords)

    return call


def test_a_kill_while_a_column_is_removed_leaves_it_whole_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amount: Callable[[int, int], int]
) -> None:
    world, path = Experience(1, 20, (9,)), tmp_path / "store"
    with world.open(path, segment_rows=16) as buffer:
        Feeder(world, buffer).add(40)
        at = buffer.steps()
        for name in ("alpha", "beta"):
            buffer.columns.write(name, at, np.ones(len(at), np.float32))
        buffer.flush(recompress=True)
    pristine, found, nth, done = tmp_path / "pristine", set(), 0, False
    path.rename(pristine)
    while not done:
        shutil.copytree(pristine, path)
        buffer, left = world.open(path), [nth]
        with monkeypatch.context() as patch:
            for name in ("create", "rename", "remove", "remove_directory", "sync"):
                patch.setattr(Files, name, failing(getattr(Files, name), left))
            try:
                buffer.columns.remove("alpha")
                done = True
            except Killed:
                done = False
        copy_while_open(path, tmp_path / "killed")
        buffer.close()
        shutil.rmtree(path)
        (tmp_path / "killed").rename(path)
        assert db.check(path, progress=False).ok
        with db.ReplayBuffer(path, mode="r") as reader:
            there = "alpha" in reader.columns.derived
            assert ("alpha" in reader.sample(4)) == there
        with world.open(path) as again:
            assert ("alpha" in again.columns.derived) == there
            assert (path / "alpha").exists() == there
            assert (path / "_segments" / "checksum" / "alpha").exists() == there
            assert again.at(at)["beta"].all()
            if there:
                assert again.at(at)["alpha"].all()
                again.columns.remove("alpha")
            again.columns.write("alpha", at[:3], np.full(3, 2, np.int16))
            np.testing.assert_array_equal(again.at(at)["alpha"].numpy(), np.where(np.arange(len(at)) < 3, 2, 0))
        assert db.check(path, progress=False).ok
        shutil.rmtree(path)
        found.add(there)
        nth += amount(4, 1)
    assert nth > 8
    assert found == {True, False}


@pytest.mark.parametrize("length", [None, 50])
def test_a_draw_that_fails_makes_no_column(length: int | None, tmp_path: Path) -> None:
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        sampler = db.Prioritized(length=length, seed=0)
        for steps in (0, 10) if length else (0,):
            if steps:
                buffer.extend(obs=np.arange(steps + 1), action=np.zeros(steps, int), reward=np.ones(steps))
            with pytest.raises(db.errors.EmptyBufferError):
                buffer.sample(4, sampler)
            with pytest.raises(db.errors.EmptyBufferError):
                next(iter(buffer.loader(4, sampler)))
            assert buffer.columns.derived == set()
        other = db.Prioritized(length=length, column="action")
        with pytest.raises(db.errors.SchemaError):
            buffer.sample(4, other)
        with pytest.raises(db.errors.SchemaError):
            buffer.sample(4, db.Prioritized(column="no name"))
        buffer.extend(obs=np.arange(101), action=np.zeros(100, int), reward=np.ones(100))
        assert len(buffer.sample(4, sampler)["weights"]) == 4
        assert buffer.columns.derived == {"priority"}
    assert os.listdir(tmp_path / "store" / "priority")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "interrupt"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_removal_that_fails_leaves_what_can_be_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, nth: int
) -> None:
    """It read through the maps of a column that was gone by then."""
    columns = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend(np.zeros((101, 3)), np.arange(100), np.zeros(100))
        buffer.columns.write("v", np.arange(50), np.ones(50))
        buffer.sample(8)
        real, calls = directory.replace_group, 0

        def fail(*args: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise error
            return real(*args, **keywords)

        monkeypatch.setattr(directory, "replace_group", fail)
        is_gone = nth == 2 and isinstance(error, OSError)  # and its files will be
        with contextlib.nullcontext() if is_gone else pytest.raises(type(error)):
            buffer.columns.remove("v")
        monkeypatch.undo()
        assert ("v" in buffer.sample(8)) == ("v" in buffer.columns.derived) == (nth == 1)
        buffer.columns.write("v", np.arange(50), np.ones(50))
        assert "v" in buffer.sample(8)
    assert db.check(tmp_path / "store", progress=False).ok


def test_a_column_that_a_pass_writes_to_is_not_removed(tmp_path: Path) -> None:
    columns = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend(np.zeros((101, 3)), np.arange(100), np.zeros(100))
        buffer.columns.write("v", np.arange(50), np.ones(50))

        def function(batch: Any) -> Any:
            with pytest.raises(db.errors.SchemaError, match="being written to by map"):
                buffer.columns.remove("v")
            return batch["action"].double()

        buffer.columns.map(function, 32, "v", progress=False)
        buffer.columns.remove("v")


def test_a_map_is_not_resumed_into_a_column_that_was_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskbuffer.columns.map_steps._NOTED_EVERY", 0.0)
    monkeypatch.setattr("diskbuffer.columns.map_steps._SHARE", float("inf"))
    columns = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend(np.zeros((1001, 3)), np.arange(1000), np.zeros(1000))
        calls = 0

        def function(batch: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 8:
                raise KeyboardInterrupt
            return batch["action"].float() + 1, batch["action"].float() + 2

        with pytest.raises(KeyboardInterrupt):
            buffer.columns.map(function, 50, ("a", "b"), progress=False)
        buffer.columns.remove("b")
        buffer.columns.map(function, 50, ("a", "b"), resume=True, progress=False)
        batch = buffer.at(np.arange(1000))
        np.testing.assert_array_equal(batch["b"], np.arange(1000) + 2)
