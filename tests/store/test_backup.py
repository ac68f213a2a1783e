"""Snapshots that a reader makes of a store that another process writes to, or that a kill left."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import diskbuffer as db
from diskbuffer.store.copies.backup import _Backup
from diskbuffer.store.format.layout import TABLE
from diskbuffer.store.last_writer import State
from diskbuffer.store.segments.table import SegmentTable
from diskbuffer.store.system.files import Files
from tests.support.experience import Experience, Feeder, heads_of
from tests.support.writers import WRITTEN, Writers, written


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("add", {"capacity": 2000, "segment_rows": 64}),
        ("extend", {"capacity": 3000, "segment_rows": 64}),
        ("everything", {"capacity": 2000, "segment_rows": 32}),
        ("everything", {"capacity": None, "segment_rows": 64}),
    ],
)
def test_a_copy_beside_a_writer_is_a_whole_store(
    how: str,
    options: dict[str, Any],
    tmp_path: Path,
    writers: Writers,
) -> None:
    world = Experience(2)
    writers.start(tmp_path / "store", world, how, **options)
    writers.wait_for(60)
    n = 8
    assert judge_copies(tmp_path, world, options["capacity"], n) >= 2 * n // 3
    writers.kill()


@pytest.mark.some(1)
@pytest.mark.parametrize("capacity", [2000, None])
def test_a_copy_of_vectors_beside_a_thread_that_adds(
    capacity: int | None,
    tmp_path: Path,
    amount: Callable[[int, int], int],
) -> None:
    world, over = Experience(2, 30, (9,)), threading.Event()
    with world.open(tmp_path / "store", capacity, segment_rows=64) as buffer, ThreadPoolExecutor(1) as pool:
        feed = Feeder(world, buffer)
        feed.add(1100)

        def add() -> None:
            while not over.wait(0.005):
                feed.add(5)

        adding = pool.submit(add)
        try:
            n = amount(3, 8)
            assert judge_copies(tmp_path, world, capacity, n) >= 2 * n // 3
        finally:
            over.set()
        adding.result()


@pytest.mark.some(1)
@pytest.mark.parametrize(("row", "rows"), [(58, 24), (28, 4)])  # more segments than there is room for; one that is evictable
def test_a_copy_of_the_table_while_the_writer_notes_in_it(
    row: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer adds rows, from a row of its newest segments on, and seals, between any two of the files that are copied."""
    world, contents = Experience(2, 30, (9,)), SegmentTable.contents
    with (
        world.open(tmp_path / "store", None, segment_rows=16) as buffer,
        db.ReplayBuffer(tmp_path / "store", mode="r") as reader,
    ):
        feed = Feeder(world, buffer)
        feed.add(100)
        for at in range(1, len(TABLE)):
            feed.add(int(row - heads_of(buffer)[0]) % 64)  # the table grows by 64 rows of each environment

            def torn(table: SegmentTable) -> dict[str, Any]:
                monkeypatch.setattr(SegmentTable, "contents", contents)
                before = list(contents(table).items())
                feed.add(rows)
                buffer.flush(recompress=True)
                return dict(before[:at]) | dict(list(contents(table).items())[at:])  # noqa: B023

            monkeypatch.setattr(SegmentTable, "contents", torn)
            copy = reader.copies.snapshot(tmp_path / f"copy{at}")
            for path in (copy, tmp_path / "store"):
                report = db.check(path, progress=False)
                assert report.ok, list(map(str, report.problems))


@pytest.mark.parametrize("rows", [1, 3, 60, 130])
def test_a_writer_that_uses_all_of_the_tail_again_while_the_store_is_copied(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that the copied table ends with are in the tail no more when that is copied, and in a shard by then."""
    world, real = Experience(2), _Backup._copy_table
    with (
        world.open(tmp_path / "store", None, segment_rows=64) as buffer,
        db.ReplayBuffer(tmp_path / "store", mode="r") as reader,
    ):
        feed = Feeder(world, buffer)
        for at in range(4):  # of a chunk
            feed.add(53)

            def copied(backup: _Backup) -> Any:
                table = real(backup)
                feed.add(rows)
                return table

            monkeypatch.setattr(_Backup, "_copy_table", copied)
            copy = reader.copies.snapshot(tmp_path / f"copy{at}")
            report = db.check(copy, progress=False)
            assert report.ok, list(map(str, report.problems))
            with db.ReplayBuffer(copy) as other:
                assert world.check(other) > 50


def judge_copies(path: Path, world: Experience, capacity: int | None, copies: int) -> int:
    """Make copies of a store that is being written to, and compare each with what was added; return how many could be made."""
    made, newest = 0, 0
    with db.ReplayBuffer(path / "store", mode="r") as reader:
        for n in range(copies):
            reader.refresh()
            there = len(reader)
            try:
                copy = reader.copies.snapshot(path / f"copy{n}")
            except db.errors.EvictedError:
                assert not (path / f"copy{n}").exists()
                continue
            made += 1
            report = db.check(copy, progress=False)
            assert report.ok, list(map(str, report.problems))
            with db.ReplayBuffer(copy) as buffer:
                steps = buffer.steps()
                assert len(steps) >= (there if capacity is None else min(there, capacity) // 2)  # what was evicted meanwhile
                assert steps.max() >= newest
                newest = int(steps.max())
                world.check(buffer)
                if WRITTEN in buffer.columns:
                    found = buffer.at(steps, columns=[WRITTEN])[WRITTEN].numpy()
                    assert ((found == 0) | (found == written(WRITTEN, steps))).all()
            shutil.rmtree(copy)
    assert [name for name in os.listdir(path) if "copy" in name] == []
    return made


def test_a_copy_has_every_step_of_a_store_that_nobody_writes_to(tmp_path: Path) -> None:
    world = Experience(2)
    with world.open(tmp_path / "store", 300, segment_rows=16, metadata={"a": 1}) as buffer:
        Feeder(world, buffer).add(400)
        buffer.episodes[:3].set_tag("some")
        buffer.copies.mark("one")
        steps, tags = buffer.steps(), buffer.episodes.tag.tolist()
        Feeder(world, buffer)
    for mark in (None, "one"):
        with db.ReplayBuffer(tmp_path / "store", mode="r", mark=mark) as reader:
            copy = reader.copies.snapshot(tmp_path / f"copy of {mark}")
        with db.ReplayBuffer(copy, mode="r") as buffer:
            np.testing.assert_array_equal(buffer.steps(), steps)
            assert buffer.episodes.tag.tolist() == tags
            assert buffer.metadata == {"a": 1}
            world.check(buffer)
        assert db.check(copy, progress=False).ok


@pytest.mark.nightly
def test_a_copy_has_every_step_of_a_store_that_a_kill_left(tmp_path: Path, writers: Writers) -> None:
    world = Experience(2)
    writers.start(tmp_path / "killed", world, "add", capacity=200, segment_rows=16)
    writers.wait_for(500)
    heads = writers.kill()
    with db.ReplayBuffer(tmp_path / "killed", mode="r") as reader:
        copy = reader.copies.snapshot(tmp_path / "copy of what was killed")
        np.testing.assert_array_equal(reader.steps(), db.ReplayBuffer(copy, mode="r").steps())
        with pytest.raises(db.errors.NotAStoreError, match="something at"):
            reader.copies.snapshot(copy)
        with pytest.raises(db.InputError, match="inside"):
            reader.copies.snapshot(tmp_path / "killed" / "copy")
    assert heads.min() > 400
    with db.ReplayBuffer(copy) as buffer:
        world.check(buffer)


def test_a_copy_shares_what_is_sealed_and_nothing_that_is_written_to(tmp_path: Path) -> None:
    world = Experience(1)
    with world.open(tmp_path / "store", segment_rows=64) as buffer, db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
        feed = Feeder(world, buffer)
        feed.add(500)
        buffer.flush(recompress=True)
        reader.refresh()
        copy = reader.copies.snapshot(tmp_path / "copy")
        shared = {file.name for file in (copy / "obs").glob("c.*") if file.stat().st_nlink > 1}
        assert len(shared) >= 5
        with db.ReplayBuffer(copy) as other:
            Feeder(world, other).add(100)
            assert world.check(other) == 600
        feed.add(200)
        assert world.check(buffer) == 700
        with db.ReplayBuffer(copy, mode="r") as other:
            assert world.check(other) == 600


@pytest.mark.some(2)
@pytest.mark.parametrize("last", ["action", "is_last", "reward", "row_checksum", "terminated", "truncated"])
def test_a_writer_that_comes_and_goes_while_a_copy_is_made_is_noticed(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes between two of the files that are copied; the store is closed before and after."""
    world, write = Experience(1), _Backup._write
    with world.open(tmp_path / "store", None, segment_rows=64) as buffer:
        Feeder(world, buffer).add(37)

    def beside(self: _Backup, name: str, values: npt.NDArray[np.uint8]) -> None:
        write(self, name, values)
        if name.startswith(f"{last}/c.0"):
            monkeypatch.setattr(_Backup, "_write", write)
            with world.open(tmp_path / "store", None, segment_rows=64) as buffer:
                Feeder(world, buffer).add(3)

    monkeypatch.setattr(_Backup, "_write", beside)
    with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
        copy = reader.copies.snapshot(tmp_path / "copy")
    with db.ReplayBuffer(copy, mode="r") as buffer:
        assert world.check(buffer) == 40


@pytest.mark.parametrize("moment", ["read", "_hold"])
def test_a_store_that_goes_back_to_a_mark_while_it_is_copied(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the store is opened to be copied, it is copied as it went back; after that, that is an error that says so."""
    path, columns = tmp_path / "store", {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    of, calls = State if moment == "read" else _Backup, list[Any]()
    with db.ReplayBuffer(path, columns=columns, segment_rows=16) as buffer:
        buffer.extend(np.arange(41), np.zeros(40, int), np.zeros(40))
        buffer.copies.mark("first")
    buffer = db.ReplayBuffer(path)
    buffer.extend(100 + np.arange(61), np.zeros(60, int), np.zeros(60))
    buffer.flush(recompress=True)
    buffer._closing.abandon()  # as a kill leaves it
    call = getattr(of, moment)

    def beside(*args: Any) -> Any:
        if calls:
            return call(*args)
        calls.append(args)
        result = call(*args) if moment == "read" else None
        db.ReplayBuffer(path, mark="first").close()
        return result if moment == "read" else call(*args)

    with db.ReplayBuffer(path, mode="r") as reader:
        monkeypatch.setattr(of, moment, beside)
        if moment == "read":
            with db.ReplayBuffer(reader.copies.snapshot(tmp_path / "copy"), mode="r") as copy:
                assert sorted(copy.at(copy.steps())["obs"].tolist()) == list(range(40))
        else:
            with pytest.raises(db.CorruptionError, match="went back to a mark since"):
                reader.copies.snapshot(tmp_path / "copy")
            assert not (tmp_path / "copy").exists()
    assert len(calls) == 1


def test_a_column_that_is_removed_while_its_files_are_held_is_not_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Files.exists
    with db.ReplayBuffer(tmp_path / "store", columns={"obs": db.Column((), "int64")}, segment_rows=16) as buffer:
        buffer.extend(obs=np.arange(41), reward=np.zeros(40))
        buffer.columns.write("score", buffer.steps(), np.ones(40))

        def beside(files: Files, name: str) -> bool:
            found = exists(files, name)
            if name.startswith("score/c.") and "score" in buffer.columns:
                buffer.columns.remove("score")
            return found

        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            monkeypatch.setattr(Files, "exists", beside)
            copy = reader.copies.snapshot(tmp_path / "copy")
    with db.ReplayBuffer(copy, mode="r") as copied:
        assert "score" not in copied.columns
        assert sorted(copied.at(copied.steps())["obs"].tolist()) == list(range(40))
