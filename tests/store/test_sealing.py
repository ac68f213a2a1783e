"""The thread that seals, beside a writer whose ring evicts what it is at."""

from __future__ import annotations

import errno
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.system.files import Files
from diskbuffer.store.writing import sealer
from diskbuffer.store.writing.compression import Compression

COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}


def add(buffer: db.ReplayBuffer, steps: range) -> None:
    for n in steps:
        now, then = (np.full(2, k, np.float32) for k in (n, n + 1))
        buffer.add(now, n, 0.0, then, False, False)


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, operation: str, nth: int) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Hold the sealing thread at its nth file operation of a kind; yield (it is there, let it on)."""
    there, on, real, calls = threading.Event(), threading.Event(), getattr(Files, operation), 0

    def wait(self: Files, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if threading.current_thread().name == "diskbuffer-seal":
            calls += 1
            if calls == nth:
                there.set()
                on.wait(2)  # where a step that is added has to wait for this, for good
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Files, operation, wait)
    try:
        yield there, on
    finally:
        on.set()


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("operation", "nth"), [("map", 1), ("map", 3), ("sync", 1), ("sync", 5), ("sync", 7), ("sync", 10), ("sync", 13)]
)
@pytest.mark.parametrize("steps", [20, 33, 64, 71])
def test_a_slot_that_holds_other_rows_by_now_is_not_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, nth: int, steps: int
) -> None:
    path = tmp_path / "store"
    monkeypatch.setattr(sealer, "_TOGETHER", 1)  # or segments of flat columns wait for others
    with db.ReplayBuffer(path, 16, columns=COLUMNS, segment_rows=8) as buffer:
        with held(monkeypatch, operation, nth) as (there, on):
            add(buffer, range(10))  # completes a segment
            while not there.wait(0.05) and buffer.stats()["unsealed"]:
                pass  # how many files are synced in this thread depends on what others synced before
            add(buffer, range(10, 10 + steps))
            on.set()
            buffer.flush(recompress=True)
        assert buffer.check(progress=False).problems == []
    with db.ReplayBuffer(path) as buffer:
        assert buffer.check(progress=False).problems == []
        batch = buffer.at(buffer.steps(range(16)))
        np.testing.assert_array_equal(batch["action"], 10 + steps - 1 - np.arange(16))
        np.testing.assert_array_equal(batch["obs"][:, 0], batch["action"])


@pytest.mark.some(4)
@pytest.mark.parametrize("steps", range(20, 60, 3))
def test_a_slot_is_looked_at_under_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """The thread is held between taking a slot from its queue and looking at it, while the ring goes round."""
    from diskbuffer.store.durability import Durability

    path, there, on, real = tmp_path / "store", threading.Event(), threading.Event(), Durability.refuse_to_write_elsewhere

    def wait(self: Durability) -> None:
        if threading.current_thread().name == "diskbuffer-seal" and not there.is_set():
            there.set()
            assert on.wait(60)
        real(self)

    monkeypatch.setattr(Durability, "refuse_to_write_elsewhere", wait)
    monkeypatch.setattr(sealer, "_TOGETHER", 1)  # or segments of flat columns wait for others
    with db.ReplayBuffer(path, 16, columns=COLUMNS, segment_rows=8) as buffer:
        add(buffer, range(10))
        assert there.wait(60)
        add(buffer, range(10, 10 + steps))
        on.set()
        buffer.flush(recompress=True)
    with db.ReplayBuffer(path) as buffer:
        assert buffer.check(progress=False).problems == []
        np.testing.assert_array_equal(buffer.at(buffer.steps(range(16)))["action"], 9 + steps - np.arange(16))


def test_a_dropped_buffer_lets_go_of_its_lock(tmp_path: Path) -> None:
    buffer = db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, segment_rows=8)
    sampler, add_to = db.Prioritized(), buffer
    add(add_to, range(30))
    buffer.flush(recompress=True)
    buffer.sample(4, sampler)
    dropped = weakref.ref(buffer)
    gc.disable()
    try:
        del buffer, add_to
        assert dropped() is None
        with db.ReplayBuffer(tmp_path / "store") as again:
            assert len(again) == 30
    finally:
        gc.enable()


def test_sealing_that_is_late_hurries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, real = list[bool](), Compression.recode

    def note(*args: Any, late: bool) -> int:
        tried.append(late)
        return real(*args, late=late)

    monkeypatch.setattr(Compression, "recode", note)
    columns = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}
    obs = np.random.default_rng(0).integers(0, 9, (257, 40, 40)).astype(np.uint8)
    with db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=16) as buffer:
        with held(monkeypatch, "create", 1) as (there, on):
            buffer.extend(obs=obs, action=np.zeros(256), reward=np.zeros(256))
            buffer.add(obs[-1], 0, 0.0, obs[0], False, False)
            assert there.wait(60)
            on.set()
            buffer.flush(recompress=True)
        assert tried == [True] * tried.count(True) + [False] * tried.count(False), "it was late, and then no more"
        assert tried.count(True) >= 10
        assert tried.count(False) in (2, 3)
        batch = buffer.at(np.arange(256))
    np.testing.assert_array_equal(batch["obs"].numpy(), obs[:-1])


PICTURES = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}


def frames_of(n: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 9, (n, 40, 40)).astype(np.uint8)


def test_segments_that_wait_are_brought_to_the_disk_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table that has a file for each of its arrays, and is synced once for each group."""
    synced, real, obs = list[str](), Files.sync, frames_of(257)

    def note(self: Files, name: str) -> None:
        synced.append(name)
        real(self, name)

    with db.ReplayBuffer(tmp_path / "store", columns=PICTURES, segment_rows=16) as buffer:
        with held(monkeypatch, "create", 1) as (there, on):
            buffer.extend(obs=obs, action=np.zeros(256), reward=np.zeros(256))
            assert there.wait(60)
            monkeypatch.setattr(Files, "sync", note)
            on.set()
            with buffer._store.lock:
                buffer._access.log().pack()
            buffer._access.log().wait_for_sealing()
        assert synced.count("_segments/sealed/c.0") == 2
        assert sum(name.startswith("obs/c.") for name in synced) == 16
        assert buffer.check(progress=False).problems == []
        np.testing.assert_array_equal(buffer.at(np.arange(256))["obs"].numpy(), obs[:-1])


@pytest.mark.some(2)
@pytest.mark.parametrize("room", [0, 1, 3, 9])
def test_where_the_disk_has_no_room_for_some_together_they_are_sealed_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """`room` is how many segments fit in all; those are sealed, and the others are when there is room again."""
    obs, left, real = frames_of(257), room, Files.create

    def create(self: Files, name: str, *args: Any, **kwargs: Any) -> int:
        seals = threading.current_thread().name == "diskbuffer-seal" and name.startswith("obs/")
        if seals and len(list((tmp_path / "store").glob("obs/*.tmp"))) >= min(left, 2):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, name, *args, **kwargs)

    def rename(self: Files, old: str, new: str, _real: Any = Files.rename) -> None:
        nonlocal left
        _real(self, old, new)
        left -= threading.current_thread().name == "diskbuffer-seal" and old.startswith("obs/")

    monkeypatch.setattr(Files, "create", create)
    monkeypatch.setattr(Files, "rename", rename)
    with db.ReplayBuffer(tmp_path / "store", columns=PICTURES, segment_rows=16) as buffer:
        buffer.extend(obs=obs, action=np.zeros(256), reward=np.zeros(256))
        with pytest.raises(OSError, match="No space left"):
            buffer.flush(recompress=True)
        assert buffer.stats()["unsealed"] == 16 - room
        assert isinstance(buffer.stats()["seal_error"], str)
        left = 100
        buffer.flush(recompress=True)
        assert (buffer.stats()["unsealed"], buffer.stats()["seal_error"]) == (0, None)
        assert buffer.check(progress=False).problems == []
        np.testing.assert_array_equal(buffer.at(np.arange(256))["obs"].numpy(), obs[:-1])


def test_segments_of_flat_columns_alone_wait_for_others_or_until_they_are_waited_for(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, segment_rows=8) as buffer:
        add(buffer, range(50))
        assert buffer.stats()["unsealed"] == 6
        buffer.flush(recompress=True)
        assert buffer.stats()["unsealed"] == 0
        add(buffer, range(50, 200))
        for _ in range(600):  # eight wait by now, and are sealed by themselves
            if buffer.stats()["unsealed"] < 8:
                break
            time.sleep(0.1)
        assert buffer.stats()["unsealed"] < 8
    with db.ReplayBuffer(tmp_path / "store") as again:
        assert again.check(progress=False).ok


def test_a_damaged_segment_among_others_is_left_and_they_are_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obs = frames_of(257)
    with db.ReplayBuffer(tmp_path / "store", columns=PICTURES, segment_rows=16) as buffer:
        with held(monkeypatch, "create", 1) as (there, on):
            buffer.extend(obs=obs, action=np.zeros(256), reward=np.zeros(256))
            assert there.wait(60)
            slot = int(buffer._reader.index.slots(0)[5])
            with next((tmp_path / "store" / "obs").glob(f"c.{slot}.*")).open("r+b") as file:
                file.seek(40)
                byte = file.read(1)
                file.seek(40)
                file.write(bytes([byte[0] ^ 1]))
            on.set()
            buffer.flush(recompress=True)
        assert buffer.stats()["unsealed"] == 1
        assert "cannot be decoded" in str(buffer.stats()["seal_error"])
        np.testing.assert_array_equal(buffer.at(np.arange(79))["obs"].numpy(), obs[:79])
