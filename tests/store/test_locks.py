"""Who writes is known to those who may only read, and where it cannot be known, that is told."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

import diskbuffer as db
from diskbuffer.store.system import files
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import is_held
from soak import mounts
from tests.support.experience import Experience, Feeder


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="being another user needs root")
@pytest.mark.skipif(bool(mounts.why_not()), reason="nothing can be mounted here")
def test_readers_that_may_not_write_know_of_the_writer() -> None:
    row = mounts.campaign(6, 0)
    assert row.done == 26
    assert row.broken == 0, str(row)


@pytest.mark.some(1)
@pytest.mark.parametrize("code", ["ENOLCK", "EOPNOTSUPP", "ENOSYS", "ENOTSUP"])
def test_where_there_are_no_locks_a_closed_store_is_read_at_once(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, path = Experience(), tmp_path / "store"
    with world.open(path, segment_rows=16) as buffer:
        Feeder(world, buffer).add(40)
        buffer.copies.mark("one")

    def flock(fd: int, what: int) -> None:
        number = getattr(errno, code)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    several: dict[str, Any] = {"writer": "one"}
    for name, how in (("new", {}), ("several", several)):
        with pytest.raises(db.LockedError, match=rf"^{tmp_path / name} is on a file system without locks.*local disk") as raised:
            world.open(tmp_path / name, **how)
        assert ".new" not in str(raised.value)
    for mark in (None, "one"):
        with db.ReplayBuffer(path, mode="r", mark=mark) as buffer:
            assert world.check(buffer) == 40
            buffer.refresh()
            assert buffer.check(progress=False).ok
    assert is_held(Files(path)) is None
    with pytest.raises(db.LockedError, match=r"without locks.*mode='r'"):
        db.ReplayBuffer(path)
    monkeypatch.undo()
    buffer = world.open(path)
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(db.LockedError, match=f"not closed.*no locks.*this process, {os.getpid()}"):
        db.ReplayBuffer(path, mode="r")
    buffer.close()
    with db.ReplayBuffer(path, mode="r") as buffer:
        assert world.check(buffer) == 40


def test_where_files_cannot_be_mapped_a_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, path = Experience(), tmp_path / "store"
    world.open(path).close()

    def mmap(*_: object) -> None:
        ctypes.set_errno(errno.ENODEV)

    monkeypatch.setattr(files._libc, "mmap", mmap)
    for place, mode in ((path, "a"), (path, "r"), (tmp_path / "new", "a")):
        with pytest.raises(db.InputError, match=rf"^{place} is on a file system whose files cannot be mapped.*local disk"):
            world.open(place, mode=mode)
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    world.open(path).close()


def test_a_lock_that_may_only_be_read_tells_whether_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Experience().open(path).close()
    lock = path / "_segments/length/writer.lock"
    assert is_held(Files(path)) is False
    lock.chmod(0o444)
    with Experience().open(path):
        assert is_held(Files(path)) is True
    lock.unlink()
    assert is_held(Files(path)) is False  # nobody can have locked what is not there
    assert not lock.exists()
