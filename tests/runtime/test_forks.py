"""Signals and locks around a fork, and threads at the end of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.runtime import forks
from tests.support.in_fork import in_fork

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
_COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(tmp_path / "store", columns=_COLUMNS) as buffer:
        buffer.extend(np.zeros((51, 2), np.float32), np.zeros(50, int), np.zeros(50))
        yield buffer


# Signals


def interrupted_fork(function: Callable[[], Any], line: int) -> tuple[bool, int]:
    """Fork, with a Ctrl-C at a line of a function around it; return whether it was there, and how often it was raised."""
    came, interrupts = False, 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal came
        if frame.f_code is not function.__code__:
            return None
        if event == "line" and frame.f_lineno == line:
            came = True
            signal.raise_signal(signal.SIGINT)
        return trace

    pid = -1
    sys.settrace(trace)
    try:
        try:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
        finally:
            sys.settrace(None)
        until = time.monotonic() + 60
        while came and time.monotonic() < until:
            time.sleep(0.001)
    except KeyboardInterrupt:
        interrupts += 1
    os.waitpid(pid, 0)
    return came, interrupts


def lines_of(function: Callable[[], Any]) -> list[int]:
    """Return the lines of a function, but for the first: what is raised there is raised before anything was done."""
    return sorted({line for _, _, line in function.__code__.co_lines() if line is not None})[2:]


@pytest.mark.some(1)
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("function", [forks._before, forks._in_parent], ids=["before", "after"])
def test_a_ctrl_c_around_a_fork_comes_after_it_and_leaves_no_lock(buffer: db.ReplayBuffer, function: Callable[[], Any]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        count = 0
        for line in lines_of(function):
            came, interrupts = interrupted_fork(function, line)
            assert interrupts == came, line
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            count += came
            elsewhere = threading.Thread(target=buffer.sample, args=(4,))
            elsewhere.start()
            elsewhere.join(60)
            assert not elsewhere.is_alive(), f"line {line} left the store locked"
        assert count > 1
    finally:
        signal.signal(signal.SIGINT, handler)


# Locks


def held_elsewhere(lock: Any) -> Callable[[], None]:
    """Have another thread hold a lock; return what ends that."""
    has, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    has.wait()

    def end() -> None:
        may_end.set()
        thread.join()

    return end


def test_the_lock_of_copies_is_free_in_a_fork(buffer: db.ReplayBuffer) -> None:
    end = held_elsewhere(buffer._closing.copying)
    try:
        assert in_fork(buffer._closing.copying.acquire) == 0
    finally:
        end()


def test_a_buffer_that_was_closed_does_not_disturb_a_fork(tmp_path: Path, buffer: db.ReplayBuffer) -> None:
    closed = db.ReplayBuffer(tmp_path / "closed", columns=_COLUMNS)
    closed.close()
    assert in_fork(lambda: buffer.sample(4)) == 0
    buffer.sample(4)


# The end of a process

_AT_EXIT = """
import atexit, sys, threading
import numpy as np
import diskbuffer as db

columns = {"obs": db.Column((64, 64), "uint8"), "action": db.Column((), "int64")}
buffer = db.ReplayBuffer(sys.argv[1], columns=columns, segment_rows=32)
obs = np.zeros((64, 64), np.uint8)
buffer.add(obs, 0, 0.0, obs, False, False)

def end():
    if sys.argv[2] == "none":  # as from Python 3.12 on
        def start(thread):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        threading.Thread.start = start
    slots = buffer._store.table.slots
    for n in range(300):
        buffer.add(obs, n, 0.0, obs, False, False)
    assert (buffer._store.table.column("length") > 0).sum() + len(buffer._store.free) == buffer._store.table.slots
    assert len(buffer.sample(64)["steps"]) == 64
    buffer.flush(recompress=True)
    assert buffer.stats()["unsealed"] == 0
    buffer.close()
    print("done", flush=True)

atexit.register(end)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("threads", ["some", "none"])
def test_steps_are_added_at_the_end_of_the_process(tmp_path: Path, threads: str) -> None:
    command = [sys.executable, "-c", _AT_EXIT, str(tmp_path / "store"), threads]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert db.check(tmp_path / "store", progress=False).problems == []
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        assert len(buffer) == 301
