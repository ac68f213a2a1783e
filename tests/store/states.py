"""Stores as writers leave them: live, killed, closed, opened again, wrapped around; and one of many dtypes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from tests.support.experience import Experience, Feeder
from tests.support.writers import Writers

# Makes a store, and returns its buffer and whether all rows are in their columns, none in the tail alone.
State = Callable[[Path, Experience, Writers], tuple[db.ReplayBuffer, bool]]


def of_nested_dicts(root: Path) -> db.ReplayBuffer:
    """A buffer with observations in nested dicts, packed and flat, of many dtypes, and a packed column of steps."""
    columns = {
        "obs/camera/left": db.Column((34, 33), "uint8"),
        "obs/camera/depth": db.Column((40, 30), "float32"),
        "obs/joints": db.Column((3,), "float64"),
        "action/move": db.Column((2,), "int16"),
        "action/grip": db.Column((), "bool"),
        "reward": db.Column((), "float64"),
    }
    extra = {"state": db.Column((70, 8), "complex64"), "count": db.Column((), "uint32")}
    return db.ReplayBuffer(root, columns=columns, extra=extra, segment_rows=16)


def add_nested(buffer: db.ReplayBuffer, steps: int) -> None:
    def obs(t: int) -> dict[str, Any]:
        rng = np.random.default_rng(t)
        left, depth = rng.integers(1, 9, (34, 33)).astype(np.uint8), rng.normal(size=(40, 30)).astype(np.float32)
        return {"camera": {"left": left, "depth": depth}, "joints": rng.normal(size=3)}

    for t in range(steps):
        rng = np.random.default_rng(1000 + t)
        buffer.add(
            obs(t),
            {"move": rng.integers(-99, 99, 2), "grip": t % 3 == 0},
            rng.normal(),
            obs(t + 1),
            False,
            t == 20,
            state=(rng.normal(size=(70, 8)) + 1j * rng.normal(size=(70, 8))).astype(np.complex64),
            count=t + 2**31,
        )
        if t == 20:
            buffer.cut_off()


def live(root: Path, world: Experience, writers: Writers) -> tuple[db.ReplayBuffer, bool]:
    buffer = world.open(root, segment_rows=32)
    feed = Feeder(world, buffer)
    feed.add(100)
    buffer.flush(recompress=True)
    feed.extend(1, 77)
    feed.add(75)
    buffer.flush(recompress=True)  # or files were replaced while they are read
    return buffer, False


def killed(root: Path, world: Experience, writers: Writers) -> tuple[db.ReplayBuffer, bool]:
    writers.start(root, world, "seal", steps=203, segment_rows=32)
    writers.wait_for(204)
    writers.kill()
    return db.ReplayBuffer(root, mode="r"), False


def killed_and_opened_again(root: Path, world: Experience, writers: Writers) -> tuple[db.ReplayBuffer, bool]:
    killed(root, world, writers)[0].close()
    buffer = db.ReplayBuffer(root)
    Feeder(world, buffer).add(9)
    buffer.flush(recompress=True)
    return buffer, False


def closed(root: Path, world: Experience, writers: Writers) -> tuple[db.ReplayBuffer, bool]:
    live(root, world, writers)[0].close()
    return db.ReplayBuffer(root, mode="r"), True


def closed_and_opened_again(root: Path, world: Experience, writers: Writers) -> tuple[db.ReplayBuffer, bool]:
    live(root, world, writers)[0].close()
    buffer = db.ReplayBuffer(root)
    Feeder(world, buffer).add(3)
    return buffer, False


def wrapped_around(root: Path, world: Experience, writers: Writers) -> tuple[db.ReplayBuffer, bool]:
    buffer = world.open(root, 120, segment_rows=16)
    feed = Feeder(world, buffer)
    for _ in range(5):
        feed.add(100)
        feed.extend(0, 150)
    assert len(buffer) < 200
    buffer.flush(recompress=True)
    return buffer, False


def wrapped_around_and_closed(root: Path, world: Experience, writers: Writers) -> tuple[db.ReplayBuffer, bool]:
    wrapped_around(root, world, writers)[0].close()
    return db.ReplayBuffer(root, mode="r"), True
