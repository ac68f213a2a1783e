"""A store's directory is removed, or copied, while it is open: whatever is called says so, in the same words."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.recording import recorder

COLUMNS = {
    "pictures": {"obs": db.Column((34, 33), "uint8"), "action": db.Column((), "int64")},
    "vectors": {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")},
}
WRITING: dict[str, Callable[[db.ReplayBuffer], Any]] = {
    "extend": lambda buffer: extend(buffer, 1, 60_000),
    "flush": lambda buffer: buffer.flush(),
    "mark": lambda buffer: buffer.copies.mark("name"),
    "columns.write": lambda buffer: buffer.columns.write("value", buffer.steps(), np.zeros(len(buffer))),
    "set_tag": lambda buffer: buffer.episodes[:2].set_tag("good"),
    "priorities": lambda buffer: buffer.sample(8, db.Prioritized()),
    "check": lambda buffer: buffer.check(progress=False),
    "resize": lambda buffer: buffer.resize(5000),
    "clear": lambda buffer: buffer.clear(),
    "close": lambda buffer: buffer.close(),
}
READING: dict[str, Callable[[db.ReplayBuffer], Any]] = {
    "sample": lambda buffer: buffer.sample(32),
    "refresh": lambda buffer: buffer.refresh(),
    "marks": lambda buffer: buffer.copies.marks,
    "check": lambda buffer: buffer.check(progress=False),
}
SAYS = "store was moved, removed or replaced since it was opened"


def extend(buffer: db.ReplayBuffer, *lengths: int) -> None:
    for n in lengths:
        buffer.extend(np.zeros((n + 1, *buffer.columns["obs"].shape)), np.zeros(n, int), np.zeros(n), new_episode=True)


@pytest.mark.some(6)
@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("call", WRITING)
def test_a_writer_is_told(call: str, kind: str, tmp_path: Path) -> None:
    buffer = db.ReplayBuffer(tmp_path / "store", columns=COLUMNS[kind], segment_rows=1024)
    extend(buffer, 1000, 300)
    buffer.flush(recompress=True)  # or another thread makes files while they are removed
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(db.errors.NotAStoreError, match=SAYS):
        WRITING[call](buffer)
    with contextlib.suppress(db.errors.NotAStoreError):
        buffer.close()


@pytest.mark.parametrize("call", READING)
def test_a_reader_is_told(call: str, tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS["vectors"]) as writer:
        extend(writer, 1000)
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        shutil.rmtree(tmp_path / "store")
        with pytest.raises(db.errors.NotAStoreError, match=SAYS):
            READING[call](buffer)


@pytest.mark.parametrize("call", ["add", "extend"])
def test_whoever_adds_is_told_within_a_second_and_nothing_is_added(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one file has room for 32,768 steps, which would be minutes of a robot."""
    now = time.monotonic()
    monkeypatch.setattr(recorder, "monotonic", lambda: now)
    buffer = db.ReplayBuffer(tmp_path / "store", columns=COLUMNS["vectors"])
    obs = np.zeros(3, np.float32)

    def one() -> None:
        buffer.add(obs, 0, 0.0, obs, False, False) if call == "add" else extend(buffer, 1)

    for _ in range(3):
        one()
    shutil.rmtree(tmp_path / "store")
    one()  # at the same instant
    now += 1.0
    for _ in range(2):
        with pytest.raises(db.errors.NotAStoreError, match=SAYS):
            one()
    assert len(buffer) == 4
    with pytest.raises(db.errors.NotAStoreError, match=SAYS):
        buffer.close()


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_copy_that_was_made_while_the_store_was_written_to_names_snapshots(mode: Any, tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS["vectors"]) as buffer:
        extend(buffer, 60)
        buffer.flush()
        extend(buffer, 100)
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "store").rename(tmp_path / "moved")
    db.ReplayBuffer(tmp_path / "moved").close()
    with pytest.raises(
        db.CorruptionError,
        match=r"was copied while a buffer wrote to it.*Take a snapshot instead: `diskbuffer snapshot PATH TO`",
    ):
        db.ReplayBuffer(tmp_path / "copy", mode=mode)
    assert db.check(tmp_path / "copy", repair=True, progress=False).repaired
    with db.ReplayBuffer(tmp_path / "copy") as copied:
        assert len(copied) == 60
