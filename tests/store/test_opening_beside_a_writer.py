"""A writer may come while a reader opens what the last writer left; the reader sees that writer's steps, and no damage."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.segments.table import SegmentTable
from diskbuffer.store.system.files import Files
from tests.support.specimens import copy_while_open
from tests.support.workloads import boot

ROWS, CAPACITY, MOMENTS = 8, 24, 10
OPERATIONS = ("map", "stat", "read")


def open_to_write(path: Path) -> db.ReplayBuffer:
    columns = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}
    return db.ReplayBuffer(path, CAPACITY, columns=columns, segment_rows=ROWS, autoreset="disabled", threads=1, seed=0)


def add(writer: db.ReplayBuffer, n: int, known: dict[int, int], *, ends: bool = True) -> None:
    """Add steps whose actions nothing else has, and note which names they have."""
    actions = np.arange(n) + len(known)
    obs = np.repeat(np.append(actions, -1)[:, None], 2, axis=1).astype(np.float32)
    truncated = (np.arange(n) == n - 1) & ends
    writer.extend(obs=obs, action=actions, reward=np.zeros(n), truncated=truncated, new_episode=True)
    known.update(zip(writer.steps()[-n:].tolist(), actions.tolist(), strict=True))


def left_by_a_writer(path: Path, how: str, known: dict[int, int]) -> None:
    """Have a writer add some steps, and leave them closed, or as a kill does."""
    writer = open_to_write(path / "first")
    add(writer, 13, known)
    add(writer, 6, known, ends=False)
    if how == "closed":
        writer.close()
        (path / "first").rename(path / "left")
    else:
        copy_while_open(path / "first", path / "left")
        writer.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["closed", "killed", "cut off from power"])
def test_a_writer_that_comes_while_a_reader_opens_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_seed: int, how: str
) -> None:
    rng, operations, left = np.random.default_rng(any_seed), 0, dict[int, int]()
    with boot(1):
        left_by_a_writer(tmp_path, how, left)
    for moment in range(MOMENTS):
        path, known, writers = tmp_path / str(moment), dict(left), list[db.ReplayBuffer]()
        shutil.copytree(tmp_path / "left", path)

        def come(path: Path = path, known: dict[int, int] = known, writers: list[db.ReplayBuffer] = writers) -> None:
            writers.append(open_to_write(path))
            for _ in range(9):
                add(writers[0], 7, known)

        # At first never; then in the second half of all operations, which is where rows are looked at.
        at = operations - (operations // 2) * moment // MOMENTS - int(rng.integers(3)) if moment else 10**6
        with boot(2 if how == "cut off from power" else 1), monkeypatch.context() as patch:
            until = call_in_the_middle(patch, at, come)
            with db.ReplayBuffer(path, mode="r", threads=1) as reader:
                operations = operations or at - until[0]
                patch.undo()
                for _ in range(2):
                    batch = reader.at(reader.steps())
                    names, actions = batch["steps"].tolist(), batch["action"].tolist()
                    assert actions == [known[name] for name in names]
                    assert (batch["obs"].numpy() == np.array(actions)[:, None]).all()
                    reader.refresh()
                assert len(writers) == (moment > 0)
                for writer in writers:
                    assert names == writer.steps().tolist()
                    writer.close()


def call_in_the_middle(patch: pytest.MonkeyPatch, at: int, call: Callable[[], None]) -> list[int]:
    """Make a call before the file operation that comes after so many others; return how many are left, which goes on."""
    left = [at]

    def replaced(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                call()
            return real(*args, **keywords)

        return operation

    for name in OPERATIONS:
        patch.setattr(Files, name, replaced(getattr(Files, name)))
    return left


def test_a_writer_that_evicts_while_a_reader_opens_does_not_count_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading which segments there are, and how many rows each has."""
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", 64, columns=columns, segment_rows=8) as writer:

        def extend() -> None:
            writer.extend(obs=np.arange(17), action=np.zeros(16, np.int64), reward=np.zeros(16), new_episode=True)

        for _ in range(8):
            extend()
        used, waiting = SegmentTable.used, [extend]

        def used_and_evicted(table: SegmentTable) -> Any:
            found = used(table)
            if waiting and not table._writable:
                waiting.pop()()
            return found

        monkeypatch.setattr(SegmentTable, "used", used_and_evicted)
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            assert not waiting
            assert reader.steps().tolist() == writer.steps().tolist()


def test_a_column_that_is_removed_while_a_reader_opens_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amount: Callable[[int, int], int]
) -> None:
    """It is removed at each of the moments at which a file is looked at, or at some of them."""
    with open_to_write(tmp_path / "store") as writer:
        add(writer, 13, {})
        for moment in itertools.count(1, amount(5, 1)):
            writer.columns.write("value", writer.steps(), np.arange(13))
            with monkeypatch.context() as patch:
                left = call_in_the_middle(patch, moment, lambda: writer.columns.remove("value"))
                with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
                    patch.undo()
                    assert len(reader) == 13
            if left[0] > 0:
                break
        assert moment > 20
