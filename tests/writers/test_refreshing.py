"""A learner's refresh: stores of which nothing has become are not read, and those that others evict from are not read anew."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.reading.follow_index import IndexFollower
from diskbuffer.writers import watching
from tests.writers.test_multi_writer import Writer, of_all

TICK = 20_000_000  # nanoseconds, more than the kernel's clock takes for a tick


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have directories' times be relied on soon."""
    monkeypatch.setattr(watching, "SETTLED", TICK)


def settle(learner: db.ReplayBuffer) -> None:
    """Have everything be seen, and nothing be in doubt."""
    time.sleep(2 * TICK / 1e9)
    learner.refresh()


def same(learner: db.ReplayBuffer, writers: list[Writer]) -> None:
    """Compare what a learner reads with what writers keep."""
    assert learner._multi_writer is not None
    entries = {member.entry.name: member.entry.first_stream for member in learner._multi_writer.members}
    names, whole = of_all({writer.name: writer for writer in writers}, entries)
    found = learner.at(np.sort(learner.steps()))
    assert found["steps"].tolist() == sorted(names)
    for key in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
        assert np.array_equal(found[key], whole[key]), key


def step(writer: Writer, number: int, ends: bool) -> None:
    obs = np.full(5, number, np.int32)
    writer.buffer.add(obs, number, 0.0, obs, ends, False, new_episode=False)


def reopen(writer: Writer) -> None:
    writer.buffer.close()
    writer.open()


CHANGES: dict[str, Callable[[Writer], object]] = {
    "a step": lambda writer: step(writer, 1, False),
    "a step that ends its episode": lambda writer: step(writer, 2, True),
    "one that comes after": lambda writer: step(writer, 3, False),
    "a cut": lambda writer: writer.buffer.cut_off(),
    "segments": lambda writer: writer.extend(0, 3000, itertools.count(10), ends=True),
    "a seal": lambda writer: writer.buffer.flush(recompress=True),
    "a column": lambda writer: writer.buffer.columns.write("score", writer.buffer.steps(), np.ones(len(writer.buffer))),
    "none of it": lambda writer: writer.buffer.columns.remove("score"),
    "a close": lambda writer: reopen(writer),
    "nothing": lambda writer: None,
    "all gone": lambda writer: writer.buffer.clear(),
    "another episode": lambda writer: writer.extend(0, 7, itertools.count(20), ends=False),
}


def test_each_change_is_seen_and_others_stores_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = [Writer(tmp_path / "all", f"w{n}", 1, (5,), None, 1) for n in range(3)]
    for writer in writers:
        writer.extend(0, 20, itertools.count(), ends=True)
    read: list[str] = []
    reads = IndexFollower.read

    def noted(follower: IndexFollower) -> Any:
        read.append(follower._store.root.name)
        return reads(follower)

    monkeypatch.setattr(IndexFollower, "read", noted)
    with db.ReplayBuffer(tmp_path / "all", mode="r") as learner:
        settle(learner)
        for what, change in CHANGES.items():
            read.clear()
            change(writers[1])
            learner.refresh()
            assert set(read) <= {"w1"}, what
            same(learner, writers)
            settle(learner)
            same(learner, writers)
            settle(learner)
            read.clear()
            index = learner._reader.index
            learner.refresh()
            assert not read, what
            assert learner._reader.index is index, what
        writers[1].buffer.close()
        shutil.rmtree(tmp_path / "all" / "w1")
        settle(learner)
        same(learner, [writers[0], writers[2]])
        read.clear()
        settle(learner)
        assert not read
        writers[1].open()
        writers[1].extend(0, 7, itertools.count(), ends=True)
        learner.refresh()
        same(learner, writers)
    for writer in writers:
        writer.buffer.close()
