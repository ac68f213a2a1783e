"""Stores of format 2 on a disk that fails where a store keeps its own books: what was added stays, and goes on."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.system.files import Files

COLUMNS = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}


@pytest.fixture(autouse=True)
def _of_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskbuffer.open_store.FORMAT", 2)


def add(buffer: db.ReplayBuffer, steps: int) -> None:
    for _ in range(steps):
        buffer.add(np.zeros(3), 0, 1.0, np.zeros(3), False, False, new_episode=False)


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_table_that_could_not_grow_grows_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, segment_rows=8) as buffer:
        with monkeypatch.context() as patched:
            patched.setattr(Files, "replace", full)
            for _ in range(2):
                with pytest.raises(OSError, match="No space left"):
                    add(buffer, 1)
        add(buffer, 20)
        assert len(buffer) == 20


def test_steps_are_added_where_there_is_no_room_to_note_what_was_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with db.ReplayBuffer(tmp_path / "store", 32, columns=COLUMNS, segment_rows=8) as buffer:
        add(buffer, 40)
        buffer.flush()
        real, manifest = Files.pwrite, tmp_path / "store/_segments/manifest"

        def pwrite(self: Files, fd: int, data: Any, offset: int) -> None:
            if os.path.samestat(os.fstat(fd), manifest.stat()):
                full()
            real(self, fd, data, offset)

        with monkeypatch.context() as patched:
            patched.setattr(Files, "pwrite", pwrite)
            added = 0
            with contextlib.suppress(OSError):  # once a segment is due, and before it is added to
                for added in range(100):  # noqa: B007
                    add(buffer, 1)
            assert 4 < added < 99
            assert buffer.stats()["added"] == 40 + added
        add(buffer, 60)
        buffer.flush()
        assert len(list((tmp_path / "store/obs").glob("c.*"))) <= 32 / 8 + 3
        assert buffer.check(progress=False).ok
