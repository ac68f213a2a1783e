"""A disk that fails once, at every operation in turn: an error means that nothing was done, and everything can be done again."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from tests.support.specimens import copy_while_open
from tests.support.workloads import Gate

COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
_OPERATIONS = ("open", "replace", "mkdir", "link", "pwrite", "write", "ftruncate", "posix_fallocate", "fsync")
_MANY = 10**6


class Disk:
    """A disk whose operations are counted, and of which one may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left, self._code = -1, 0
        self.made: list[tuple[str, str]] = []  # what was counted last
        for name in _OPERATIONS:
            monkeypatch.setattr(os, name, self._counted(name))

    def _counted(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **keywords: Any) -> Any:
            if self._left >= 0 and not (name == "open" and not args[1] & os.O_CREAT):
                self._left -= 1
                self.made.append((name, str(args[1] if name in ("replace", "link") else args[0])))
                if self._left < 0:
                    raise OSError(self._code, os.strerror(self._code))
            return real(*args, **keywords)

        return call

    def count(self, call: Callable[[], object]) -> int:
        """Return how many operations a call takes."""
        self._left, self.made = _MANY, []
        call()
        self._left = -1
        return len(self.made)

    def fails(self, call: Callable[[], object], operation: int, code: int = errno.EIO) -> bool:
        """Have an operation of a call fail; return whether the call raised."""
        self._left, self._code, self.made = operation, code, []
        try:
            call()
        except OSError:
            return True
        finally:
            self._left = -1
        return False


def extend(buffer: db.ReplayBuffer, first: int, steps: int) -> None:
    obs = np.arange(first, first + steps + 1)
    buffer.extend(obs=obs[:-1], next_obs=obs[1:], action=obs[:-1], reward=np.ones(steps))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    with Gate(free=False):
        yield Disk(monkeypatch)


@pytest.fixture
def buffer(tmp_path: Path, disk: Disk) -> Iterator[db.ReplayBuffer]:
    buffer = db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, segment_rows=16, threads=1)
    extend(buffer, 0, 20)
    yield buffer
    with contextlib.suppress(OSError):  # of a sync that failed
        buffer.close()


def hidden(path: Path) -> list[str]:
    return [entry.name for entry in path.iterdir() if entry.name.startswith(".")]


def test_a_mark_whose_making_raises_replaced_none(buffer: db.ReplayBuffer, disk: Disk, tmp_path: Path) -> None:
    buffer.copies.mark("mark")
    made = disk.count(lambda: buffer.copies.mark("mark", replace=True))
    extend(buffer, 20, 10)
    buffer.flush()
    for operation in range(made - 8, made):
        if disk.fails(lambda: buffer.copies.mark("mark", replace=True), operation):
            assert buffer.copies.marks == ("mark",)
            with db.ReplayBuffer(tmp_path / "store", mark="mark", mode="r") as mark:
                assert len(mark) == 20, operation
            assert hidden(tmp_path / "store" / "_segments" / "length" / "marks") == []
    buffer.copies.mark("mark", replace=True)
    with db.ReplayBuffer(tmp_path / "store", mark="mark", mode="r") as mark:
        assert len(mark) == 30


def test_a_mark_whose_making_raises_is_not_there(buffer: db.ReplayBuffer, disk: Disk) -> None:
    made = disk.count(lambda: buffer.copies.mark("another"))
    for operation in range(made - 6, made):
        if disk.fails(lambda: buffer.copies.mark("mark"), operation):
            assert buffer.copies.marks == ("another",), operation
            buffer.copies.mark("mark")
        buffer.copies.remove("mark")


def test_a_mark_whose_removing_raises_is_there(buffer: db.ReplayBuffer, disk: Disk, tmp_path: Path) -> None:
    buffer.copies.mark("mark")
    made = disk.count(lambda: buffer.copies.remove("mark"))
    for operation in range(made):
        buffer.copies.mark("mark")
        assert disk.fails(lambda: buffer.copies.remove("mark"), operation)
        with db.ReplayBuffer(tmp_path / "store", mark="mark", mode="r") as mark:
            assert len(mark) == 20, operation
        buffer.copies.remove("mark")


@pytest.mark.some(1)
@pytest.mark.parametrize("inside", [False, True])
def test_a_snapshot_whose_making_raises_is_not_there(inside: bool, buffer: db.ReplayBuffer, disk: Disk, tmp_path: Path) -> None:
    def place(name: str) -> Path:
        if inside:
            (tmp_path / name).mkdir()
        return tmp_path / name

    first = place("first")
    made = disk.count(lambda: buffer.copies.snapshot(first))
    for operation in range(made - 8, made):
        path = place(f"{operation}")
        if disk.fails(lambda path=path: buffer.copies.snapshot(path), operation):  # type: ignore[misc]
            assert not list(path.iterdir()) if inside else not path.exists(), operation
            buffer.copies.snapshot(path)
        with db.ReplayBuffer(path, mode="r") as snapshot:
            assert len(snapshot) == 20


def test_a_way_back_to_a_mark_whose_beginning_raises_is_not_gone_later(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with db.ReplayBuffer(path, columns=COLUMNS, segment_rows=16, threads=1) as buffer:
        extend(buffer, 0, 20)
        buffer.copies.mark("mark")
        extend(buffer, 20, 10)
    shutil.copytree(path, tmp_path / "copy")
    disk.count(lambda: db.ReplayBuffer(tmp_path / "copy", mark="mark", threads=1).close())
    first = next(n for n, (_, where) in enumerate(disk.made) if where.startswith("origin.json"))
    last = disk.made.index(("replace", "origin.json")) + 1  # the sync of its directory
    for operation in range(first, last + 1):
        assert disk.fails(lambda: db.ReplayBuffer(path, mark="mark", threads=1), operation)
        with db.ReplayBuffer(path, threads=1) as buffer:
            assert len(buffer) == 30, disk.made[last]
    with db.ReplayBuffer(path, mark="mark", threads=1) as buffer:
        assert len(buffer) == 20


def told(buffer: db.ReplayBuffer) -> tuple[Any, ...]:
    """Return what a change of the store's description changes."""
    steps = buffer.steps()
    actions = buffer.at(steps, columns=["action"])["action"].tolist() if len(steps) else []
    return actions, buffer.capacity, sorted(buffer.columns.derived), set(buffer.episodes.tag.tolist())


CHANGES: dict[str, Callable[[db.ReplayBuffer], object]] = {
    "resize": lambda buffer: buffer.resize(8),
    "remove": lambda buffer: buffer.columns.remove("value"),
    "tag": lambda buffer: buffer.episodes[buffer.episodes.ending != "running"].set_tag("bad"),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("how", CHANGES)
def test_a_change_is_made_whole_or_not_at_all_whatever_fails_and_also_after_a_kill(
    how: str, disk: Disk, tmp_path: Path, amount: Callable[[int, int], int]
) -> None:
    def opened(name: str) -> db.ReplayBuffer:
        found = db.ReplayBuffer(tmp_path / name / "store", 64, columns=COLUMNS, segment_rows=8, threads=1)
        extend(found, 0, 20)
        added(found, "write")
        added(found, "tag")
        extend(found, 40, 20)
        found.cut_off()
        return found

    with opened("first") as buffer:
        before = told(buffer)
        made = disk.count(lambda: CHANGES[how](buffer))
        after = told(buffer)
        names = list(disk.made)
    group = next(n for n, one in enumerate(names) if one == ("replace", "zarr.json"))
    near = range(max(0, group - 6), min(made, group + 8))  # with the file that says what the store is, and its copy
    for operation in sorted({*near, *range(0, made, amount(30, 1))}):
        buffer = opened(str(operation))
        raised = disk.fails(lambda buffer=buffer: CHANGES[how](buffer), operation)  # type: ignore[misc]
        now = told(buffer)
        assert now == before if raised else now == after, (operation, names[operation])
        for more in (0, 5):
            if more:
                extend(buffer, 100, more)
            now = told(buffer)
            killed = tmp_path / str(operation) / f"killed{more}"
            copy_while_open(buffer.path, killed)
            with db.ReplayBuffer(killed, mode="r", threads=1) as again:
                assert told(again) == now, (operation, names[operation], more)
        with contextlib.suppress(OSError):
            buffer.close()
        shutil.rmtree(tmp_path / str(operation))


def added(buffer: db.ReplayBuffer, how: str) -> Any:
    """Add a column to every step."""
    if how == "write":
        return buffer.columns.write("value", buffer.steps(), np.ones(len(buffer), np.float32))
    if how == "map":
        return buffer.columns.map(lambda batch: batch["obs"].float(), 8, "value", progress=False, threads=1)
    if how == "tag":
        return buffer.episodes[buffer.episodes.ending != "running"].set_tag("good")
    return buffer.sample(8, db.Prioritized(seed=0))


@pytest.mark.some(1)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("how", ["write", "tag", "map", "priorities"])
def test_a_column_that_cannot_be_made_stands_in_nobodys_way(
    how: str, code: int, disk: Disk, tmp_path: Path, amount: Callable[[int, int], int]
) -> None:
    def opened(name: str) -> db.ReplayBuffer:
        found = db.ReplayBuffer(tmp_path / name / "store", columns=COLUMNS, segment_rows=16, threads=1)
        extend(found, 0, 20)
        found.cut_off()
        return found

    with opened("first") as buffer:
        made = disk.count(lambda: added(buffer, how))
    assert made > 15
    for operation in range(0, made, amount(10, 1)):
        buffer = opened(str(operation))
        if disk.fails(lambda buffer=buffer: added(buffer, how), operation, code):  # type: ignore[misc]
            buffer.copies.mark("mark")
            buffer.copies.snapshot(tmp_path / str(operation) / "copy")
            assert buffer.check(progress=False).ok, operation
            extend(buffer, 20, 30)
            with contextlib.suppress(OSError):  # a file whose sync has failed is one of which nobody knows what is on the disk
                added(buffer, how)
        for name, mark in (("copy", None), ("store", "mark")):
            path = tmp_path / str(operation) / name
            with contextlib.suppress(db.errors.NotAStoreError, db.InputError), db.ReplayBuffer(path, mode="r", mark=mark) as copy:
                assert len(copy) == 20
        with contextlib.suppress(OSError):
            buffer.close()
        with db.ReplayBuffer(tmp_path / str(operation) / "store", threads=1) as buffer:
            assert buffer.at(buffer.steps())["action"].tolist() == list(range(len(buffer)))
            added(buffer, how)
            assert buffer.check(progress=False).ok
