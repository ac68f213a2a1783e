"""A full disk is told in words, by an error of its own, and what was added is kept."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db

COLUMNS = {"obs": db.Column((34, 33), "uint8"), "action": db.Column((), "int64")}
SAYS = r"the disk is full: no room for .*store.*\. What was added before is kept\. Free some space, and call again"


def add(buffer: db.ReplayBuffer, steps: int) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (steps + 1, 34, 33)).astype(np.uint8)
    for step in range(steps):
        buffer.add(frames[step], step, 0.0, frames[step + 1], False, step == steps - 1)


class Disk:
    """The system's calls that take space, which fail while the disk is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = 0  # the number of the error
        for name in ("posix_fallocate", "pwrite", "ftruncate", "mkdir", "fsync"):
            monkeypatch.setattr(os, name, self._or_error(getattr(os, name)))

    def _or_error(self, call: Any) -> Any:
        def called(*args: Any, **named: Any) -> Any:
            if self.full:
                raise OSError(self.full, os.strerror(self.full))
            return call(*args, **named)

        return called


def test_adding_flushing_closing_and_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, path = Disk(monkeypatch), tmp_path / "store"
    buffer = db.ReplayBuffer(path, columns=COLUMNS, segment_rows=16, seed=0)
    add(buffer, 30)
    disk.full = errno.ENOSPC
    with pytest.raises(db.errors.DiskFullError, match=SAYS) as raised:
        add(buffer, 200)
    assert raised.value.errno == errno.ENOSPC
    assert isinstance(raised.value, OSError)
    there = len(buffer)
    assert there >= 30
    assert buffer.sample(32)["obs"].shape == (32, 34, 33)
    calls: list[Callable[[], object]] = [buffer.flush, lambda: buffer.copies.mark("name"), buffer.close]
    calls.append(lambda: db.ReplayBuffer(path))
    for call in calls:
        with pytest.raises(db.errors.DiskFullError, match=SAYS):
            call()
    with pytest.raises(db.errors.DiskFullError, match="the disk is full"):
        db.ReplayBuffer(tmp_path / "another", columns=COLUMNS)
    assert not (tmp_path / "another").exists()
    disk.full = 0
    with db.ReplayBuffer(path) as buffer:
        assert len(buffer) == there


def test_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    buffer = db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, segment_rows=16, seed=0)
    disk.full = errno.EDQUOT
    with pytest.raises(db.errors.DiskFullError, match="the quota of the disk is used up: no room for"):
        add(buffer, 200)
    disk.full = 0
    buffer.close()
