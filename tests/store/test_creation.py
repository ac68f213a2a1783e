"""Making a store at a path: whatever is there, whoever else does so at the same time, and after kills."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db
from diskbuffer.store.building import Building
from diskbuffer.store.system.files import Files
from soak import mounts
from tests.store.test_snapshots import die_at
from tests.support.experience import Experience, Feeder

needs_mounts = pytest.mark.skipif(sys.platform != "linux" or bool(mounts.why_not()), reason="nothing can be mounted here")
COLUMNS = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}


def hidden(place: Path) -> list[str]:
    return sorted(path.name for path in place.rglob(".*.new"))


@pytest.mark.some(1)
@pytest.mark.parametrize("inside", [False, True], ids=["nothing is there", "an empty directory is there"])
def test_what_kills_left_of_a_store_that_was_made_is_removed_by_the_next(inside: bool, tmp_path: Path) -> None:
    world, died, seen, rng = Experience(), 0, 0, np.random.default_rng(inside)
    base = tmp_path / "base"
    base.mkdir()
    if inside:
        (base / "store").mkdir()
    for at in sorted(rng.choice(np.arange(1, 240), 14, replace=False).tolist()):
        died += not die_at(at, lambda: world.open(base / "store").close())
        seen = max(seen, len(hidden(base)))
        assert len(hidden(base)) <= 1  # of the last kill, not of all
    assert died > 6
    assert seen == 1
    with world.open(base / "store") as buffer:
        Feeder(world, buffer).add(30)
    assert hidden(base) == []
    assert [path.name for path in base.iterdir()] == ["store"]
    with db.ReplayBuffer(base / "store") as buffer:
        assert world.check(buffer) == 30
    assert db.check(base / "store", progress=False).ok


def test_what_a_kill_left_of_a_snapshot_is_removed_by_the_next(tmp_path: Path) -> None:
    world, place = Experience(), tmp_path / "copies"
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(30)
    for at in (30, 60, 100):
        assert not die_at(at, lambda: db.ReplayBuffer(tmp_path / "store").copies.snapshot(place / "copy"))
        assert len(hidden(place)) == 1
    with world.open(tmp_path / "store") as buffer:
        buffer.copies.snapshot(place / "copy")
    assert [path.name for path in place.iterdir()] == ["copy"]
    with db.ReplayBuffer(place / "copy") as buffer:
        assert world.check(buffer) == 30


def test_what_somebody_is_building_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    path = tmp_path / "store"
    other = tmp_path / ".store.0123abcd.new"
    (other / "photos").mkdir(parents=True)
    link = tmp_path / ".store.0123abce.new"
    link.symlink_to(other)
    with Building(path) as building:
        there = hidden(tmp_path)
        assert len(there) == 3
        db.ReplayBuffer(path, columns=COLUMNS).close()
        assert hidden(tmp_path) == there
        assert building.files.names() == ["_segments"]
    assert (other / "photos").is_dir()
    assert link.is_symlink()


def test_a_store_that_somebody_makes_while_it_is_looked_for_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, names = tmp_path / "store", Files.names

    def late(files: Files, *args: Any) -> list[str]:
        monkeypatch.undo()
        db.ReplayBuffer(path, columns=COLUMNS).close()
        return names(files, *args)

    monkeypatch.setattr(Files, "names", late)
    db.ReplayBuffer(path, columns=COLUMNS).close()


@pytest.mark.nightly
@pytest.mark.parametrize("inside", [False, True], ids=["nothing is there", "an empty directory is there"])
def test_processes_that_make_the_same_store_at_once(inside: bool, tmp_path: Path) -> None:
    def work(mode: Any, columns: dict[str, db.Column], path: Path, begin: int, told: int) -> None:
        os.read(begin, 1)
        try:
            with db.ReplayBuffer(path, columns=columns, mode=mode, n_envs=1) as buffer:
                os.write(told, b"opened\n")
                time.sleep(0.05)
                buffer.add(np.zeros(3), np.zeros(columns["action"].shape, int), 0.0, np.ones(3), False, False)
        except (db.LockedError, db.errors.NotAStoreError, db.errors.SchemaError) as error:
            os.write(told, f"{type(error).__name__}\n".encode())

    others = {**COLUMNS, "action": db.Column((2,), "int64")}
    for n in range(12):
        path = tmp_path / f"store{n}"
        if inside:
            path.mkdir()
        begin, go = os.pipe()
        answers, told = os.pipe()
        kinds: list[tuple[Any, Any]] = [("a", COLUMNS), ("a", COLUMNS), ("w-", COLUMNS), ("a", others if n % 3 == 0 else COLUMNS)]
        children = []
        for mode, columns in kinds:
            if (pid := os.fork()) == 0:
                os.close(go)
                os.close(answers)
                try:
                    work(mode, columns, path, begin, told)
                except BaseException:  # noqa: BLE001
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            children.append(pid)
        for fd in (go, begin, told):
            os.close(fd)  # which lets all of them go
        with os.fdopen(answers) as lines:
            found = lines.read().split()
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4, found
        assert len(found) == 4
        assert "opened" in found
        assert db.check(path, progress=False).ok
        assert hidden(tmp_path) == []
        with db.ReplayBuffer(path) as buffer:
            assert len(buffer) == found.count("opened")


@needs_mounts
def test_a_path_where_a_disk_is_mounted_becomes_a_store(tmp_path: Path) -> None:
    world, path, copy = Experience(), tmp_path / "store", tmp_path / "copy"

    def work() -> None:
        mounts.private_mounts()
        for place in (path, copy):
            mounts.mount("-t", "tmpfs", "tmpfs", str(place))
        (path / "lost+found").mkdir()
        with world.open(path) as buffer:
            Feeder(world, buffer).add(30)
            buffer.copies.snapshot(copy)
        for place in (path, copy):
            with db.ReplayBuffer(place) as buffer:
                assert world.check(buffer) == 30
            assert hidden(place) == []

    path.mkdir()
    copy.mkdir()
    assert mounts.in_fork(work) == ""
    assert list(path.iterdir()) == []


def test_a_directory_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "obs").mkdir()
    for name in ("", ".0123abcd.new", ".0123abcd.new/_segments"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        with pytest.raises(db.errors.NotAStoreError, match="other things"):
            db.ReplayBuffer(tmp_path, columns=COLUMNS)
    assert (tmp_path / "obs").is_dir()


@pytest.mark.parametrize("name", ["x" * 240, "x" * 241, "x" * 255, "é" * 127])
def test_a_name_may_be_as_long_as_the_file_system_has_it(name: str, tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / name, columns=COLUMNS) as buffer:
        buffer.add(np.zeros(3), 0, 0.0, np.ones(3), False, False)
        buffer.copies.snapshot(tmp_path / name.replace("x", "y").replace("é", "ü"))
    with db.ReplayBuffer(tmp_path / name, mode="r") as buffer:
        assert len(buffer) == 1
    assert hidden(tmp_path) == []


def test_a_name_that_is_too_long_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 256), tmp_path / "/".join(["x" * 200] * 30)):
        modes: tuple[Any, ...] = ("a", "r")
        for mode in modes:
            with pytest.raises(db.InputError, match="longer than the file system allows"):
                db.ReplayBuffer(path, columns=COLUMNS, mode=mode)
    assert list(tmp_path.iterdir()) == []


# Disks that are full


def test_a_disk_that_has_no_room_to_note_the_writer_does_not_keep_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Experience().open(tmp_path / "store") as buffer:
        buffer.copies.mark("one")
    real = Files.create

    def full(files: Files, name: str, size: int, *, reserve: bool) -> int:
        if "writer.json" in name or room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(files, name, size, reserve=reserve)

    monkeypatch.setattr(Files, "create", full)
    room = 1
    with Experience().open(tmp_path / "store") as buffer, pytest.raises(db.LockedError, match="another process"):
        Experience().open(tmp_path / "store")
    room = 0
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as raised:
        Experience().open(tmp_path / "store")
    assert "has the marks 'one'; diskbuffer.remove_mark(path, name)" in raised.value.__notes__[0]
    room = 1
    Experience().open(tmp_path / "store").close()


@pytest.mark.some(1)
@needs_mounts
@pytest.mark.parametrize("how", ["call", "command", "open"])
def test_a_disk_that_marks_have_filled_can_be_emptied(how: str, tmp_path: Path) -> None:
    from diskbuffer.commands.cli import main

    world, path = Experience(), tmp_path / "disk" / "store"

    def work() -> None:
        mounts.private_mounts()
        mounts.mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(path.parent))
        with world.open(path, 200, segment_rows=16) as buffer:
            feed = Feeder(world, buffer)
            feed.add(150)
            for n in range(2):
                buffer.copies.mark(f"mark{n}")
                feed.add(100)
                buffer.flush(recompress=True)
        left = os.statvfs(path.parent)
        with (path.parent / "mark").open("wb") as file:  # as if marks took it
            os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_frsize)
        assert db.marks(path) == ("mark0", "mark1")
        with db.ReplayBuffer(path, mode="r") as reader:
            world.check(reader)
        if how == "call":
            db.remove_mark(path, "mark0")
        elif how == "open":
            with db.ReplayBuffer(path) as buffer:
                buffer.copies.remove("mark0")
        else:
            assert main(["marks", str(path)]) == 0
            assert main(["marks", str(path), "--remove", "mark0"]) == 0
        with db.ReplayBuffer(path) as buffer:
            assert buffer.copies.marks == ("mark1",)
            world.check(buffer)

    path.parent.mkdir()
    assert mounts.in_fork(work) == ""


def test_marks_are_removed_only_where_nobody_writes(tmp_path: Path) -> None:
    world, path = Experience(), tmp_path / "store"
    with world.open(path) as buffer:
        Feeder(world, buffer).add(10)
        buffer.copies.mark("one")
        with pytest.raises(db.LockedError, match="this process"):
            db.remove_mark(path, "one")
    with pytest.raises(db.InputError, match="no mark 'two'; it has 'one'"):
        db.remove_mark(path, "two")
    work: Callable[[], Any]
    for work in (lambda: db.marks(tmp_path / "nothing"), lambda: db.remove_mark(tmp_path / "nothing", "one")):
        with pytest.raises(db.errors.NotAStoreError, match="no store"):
            work()
    db.remove_mark(path, "one")
    assert db.marks(path) == ()
    with db.ReplayBuffer(path) as buffer:
        assert world.check(buffer) == 10


@pytest.mark.some(1)
@pytest.mark.parametrize("nth", range(1, 9))
def test_a_kill_while_a_store_is_moved_into_a_directory_is_no_harm_to_the_next(tmp_path: Path, nth: int) -> None:
    path = tmp_path / "store"
    path.mkdir()
    db.ReplayBuffer(tmp_path / "warm", columns=COLUMNS).close()  # compiled, and imported
    pid = os.fork()
    if pid == 0:
        try:
            real, moved = Files.rename, 0

            def rename(self: Files, old: str, new: str) -> None:
                nonlocal moved
                real(self, old, new)
                moved += ".new/" in old and "/" not in new
                if moved == nth:
                    os.kill(os.getpid(), signal.SIGKILL)

            Files.rename = rename  # type: ignore[method-assign]
            db.ReplayBuffer(path, columns=COLUMNS)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert not (path / "zarr.json").exists()
    with db.ReplayBuffer(path, columns=COLUMNS) as buffer:
        assert not list(path.glob(".*.new"))
        assert buffer.check(progress=False).ok


@pytest.mark.nightly
def test_many_environments_with_pictures_begin_with_little_of_the_disk(tmp_path: Path) -> None:
    """The tails of all share 64 MB, and hold what is not packed yet all the same."""
    n, columns = 96, {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}
    none = np.zeros(n, np.bool_)
    with db.ReplayBuffer(tmp_path / "store", 4000, columns=columns, n_envs=n, autoreset="disabled") as buffer:
        assert buffer.stats()["disk_bytes"] < 80e6
        for k in range(100):
            frames = [np.full((n, 84, 84), t % 256, np.uint8) + np.arange(n, dtype=np.uint8)[:, None, None] for t in (k, k + 1)]
            buffer.add(frames[0], np.full(n, k), none, frames[1], none, none)
        steps = buffer.steps()
        batch = buffer.at(steps[::7])
        env = torch.from_numpy(steps[::7] % n)
        for name, later in (("obs", 0), ("next_obs", 1)):
            wanted = ((batch["action"] + later + env) % 256).to(torch.uint8)
            assert (batch[name] == wanted[:, None, None]).all()
        assert len(steps) >= 4000
