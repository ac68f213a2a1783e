"""A buffer is flushed by itself, again and again, by one thread of the process."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.last_writer import State
from diskbuffer.store.system.files import Files
from tests.support.in_fork import in_fork

COLUMNS = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}
OFTEN = 0.002  # seconds


def opened(path: Path, **options: Any) -> db.ReplayBuffer:
    return db.ReplayBuffer(path, columns=COLUMNS, segment_rows=16, threads=1, **options)


def extend(buffer: db.ReplayBuffer, first: int, steps: int) -> None:
    obs = np.zeros((steps + 1, 40, 40), np.uint8)
    obs[:, 0, 0] = np.arange(first, first + steps + 1)
    buffer.extend(obs=obs[:-1], next_obs=obs[1:], action=np.arange(first, first + steps), reward=np.ones(steps))


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, as long as a test may take."""
    while not is_so():
        time.sleep(OFTEN)


def left(buffer: db.ReplayBuffer) -> State:
    """Return what a power loss would go back to."""
    state = State.read(Files(buffer.path), buffer._store.layout)
    assert state is not None
    return state


def synced(buffer: db.ReplayBuffer) -> int:
    """Return how many rows the disk is known to have."""
    return left(buffer).synced[0] + 1


def flushing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "diskbuffer-flush"]


def test_steps_are_brought_to_the_disk_without_a_call(tmp_path: Path) -> None:
    with opened(tmp_path / "store", flush_every=OFTEN) as buffer:
        for first in range(0, 90, 30):
            extend(buffer, first, 30)
            until(lambda first=first: synced(buffer) == first + 31)  # type: ignore[misc]
        assert buffer.stats()["flush_error"] is None
        buffer.clear()  # and nothing else
        until(lambda: left(buffer).begins == (91,))


def test_one_thread_flushes_all_buffers_and_ends_with_the_last(tmp_path: Path) -> None:
    some = [opened(tmp_path / str(n), flush_every=OFTEN) for n in range(3)]
    (thread,) = flushing()
    some[0].close()
    assert flushing() == [thread]
    extend(some[1], 0, 5)
    until(lambda: synced(some[1]) == 6)
    some[1].close()
    some.clear()  # the last one is dropped
    gc.collect()
    thread.join()
    with opened(tmp_path / "0", flush_every=OFTEN) as buffer:  # another thread
        extend(buffer, 0, 5)
        until(lambda: synced(buffer) == 6)
    assert not flushing()


def test_none_flushes_where_none_is_to(tmp_path: Path) -> None:
    with opened(tmp_path / "store", flush_every=None), db.ReplayBuffer(tmp_path / "store", mode="r", flush_every=OFTEN):
        assert not flushing()
    for wrong in (0, -1.0, "30", float("nan")):
        with pytest.raises(db.InputError, match="flush_every must be"):
            opened(tmp_path / "store", flush_every=wrong)


def test_a_forks_child_flushes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "store", flush_every=OFTEN) as buffer:
        extend(buffer, 0, 5)

        def child() -> None:
            assert not flushing()
            assert len(buffer) == 5
            with opened(tmp_path / "of the child", flush_every=OFTEN) as own:
                assert len(flushing()) == 1
                extend(own, 0, 7)
                until(lambda: synced(own) == 8)

        assert in_fork(child) == 0
        extend(buffer, 5, 5)
        until(lambda: synced(buffer) == 11)


def test_what_stands_in_the_way_is_told_until_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails, real = True, os.fsync

    def fsync(fd: int) -> None:
        if fails and threading.current_thread().name.startswith("diskbuffer-flush"):
            raise OSError(errno.ENOSPC, "no space")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with opened(tmp_path / "store", flush_every=OFTEN) as buffer:
        extend(buffer, 0, 5)
        until(lambda: buffer.stats()["flush_error"] is not None)
        assert "the disk is full" in buffer.stats()["flush_error"]
        assert (len(buffer), synced(buffer)) == (5, 0)
        fails = False
        buffer.flush()
        assert buffer.stats()["flush_error"] is None
        assert synced(buffer) == 6


def test_a_learners_values_are_brought_to_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store", writer="actor") as actor:
        extend(actor, 0, 20)
        names, real = set[str](), Files.sync

        def sync(self: Files, name: str) -> None:
            if threading.current_thread().name == "diskbuffer-flush":
                names.add(name)
            real(self, name)

        monkeypatch.setattr(Files, "sync", sync)
        with db.ReplayBuffer(tmp_path / "store", mode="r", threads=1, flush_every=OFTEN) as learner:
            learner.columns.write("value", learner.steps(), np.ones(20, np.float32))
            until(lambda: any("value/actor" in name for name in names))
