"""Readers that may not write, on read-only mounts and as another user; and stores in a lower layer of an overlay.

A mount is made in a namespace of a process, and gone with it; it takes root. Readers open the store and check it while its
writer, in another process, goes on, or has closed it, or was killed: what they read must be right, and no check may find
anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

import diskbuffer as db
from soak.table import Row
from tests.support.experience import Experience, Feeder
from tests.support.writers import Writers

_CLONE_NEWNS = 0x20000
_NOBODY = 65534
HOW = ("another user", "a read-only mount")


def why_not() -> str:
    """Return why nothing can be mounted here, "" where it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    return in_fork(private_mounts)


def private_mounts() -> None:
    """Have the mounts that this process makes be its own, and gone with it."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    mount("--make-rprivate", "/")


def mount(*arguments: str) -> None:
    """Mount something."""
    subprocess.run(["mount", *arguments], check=True, capture_output=True, timeout=60)


def in_fork(work: Callable[[], None]) -> str:
    """Do something in a fork; return what was raised there."""
    begun, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  which is told
            os.write(end, "".join(traceback.format_exception(error))[-4000:].encode())
            os._exit(1)
        os._exit(0)
    os.close(end)
    with os.fdopen(begun, "rb") as told:
        found = told.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return found or ("" if code == 0 else f"exit code {code}")


def confined(how: str, path: Path) -> Path:
    """Be somebody who may not write to a store, for good; return where it is to be found then."""
    if how == "another user":
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        return path
    private_mounts()
    there = path.with_name("mounted")
    there.mkdir(exist_ok=True)
    mount("--bind", str(path), str(there))
    mount("-o", "remount,bind,ro", str(there))
    return there


def read(how: str, path: Path, world: Experience, rounds: int) -> None:
    """Read a store as one who may not write to it, open it and check it again and again."""
    path = confined(how, path)
    for _ in range(rounds):
        with db.ReplayBuffer(path, mode="r", threads=1) as buffer:
            world.check_batch(buffer.sample(64), 1)
            report = buffer.check(progress=False)
        if not report.ok:
            raise AssertionError(str(report))
    for work in (lambda: db.ReplayBuffer(path), lambda: db.check(path, repair=True, progress=False)):
        try:
            work()
        except (db.errors.ReadOnlyError, db.LockedError):
            continue
        raise AssertionError("it was opened for writing")


def overlaid(base: Path, world: Experience, rounds: int) -> None:
    """Write to a store in a lower layer, beside readers that were open before."""
    private_mounts()
    lower, upper, work, merged = (base / name for name in ("lower", "upper", "work", "merged"))
    for directory in (upper, work, merged):
        directory.mkdir()
    mount("-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", str(merged))
    with db.ReplayBuffer(merged / "store", mode="r", threads=1) as reader, world.open(merged / "store", 200) as buffer:
        world.check(buffer)
        feed = Feeder(world, buffer)
        for _ in range(rounds):
            feed.add(23)
            world.check(buffer)
            reader.refresh()
            world.check(reader)
            for one in (reader, buffer):
                if not (report := one.check(progress=False)).ok:
                    raise AssertionError(str(report))
    for place in (merged, lower):
        if not (report := db.check(place / "store", progress=False)).ok:
            raise AssertionError(str(report))


def campaign(rounds: int, seed: int) -> Row:
    """Read stores beside a writer, after a kill and after a close; and write to one in a lower layer."""
    row = Row("stores that may not be written to, and in lower layers", 0, 0)
    if why := why_not():
        row.notes.append(f"not done: {why}")
        return row
    _ = db.ReplayBuffer, db.check, np.testing  # imported now: another user may not be able to read where Python is
    world = Experience(1, 20 + seed % 7)
    with tempfile.TemporaryDirectory(prefix="soak-") as name, contextlib.closing(Writers()) as writers:
        os.chmod(name, 0o755)  # another user is to read it
        path = Path(name) / "store"
        for how in HOW:
            found = {}
            writers.start(path, world, "everything", capacity=200, seed=seed, segment_rows=16)  # evicts and seals, too
            writers.wait_for(200)
            found["beside its writer"] = in_fork(lambda how=how: read(how, path, world, rounds))  # type: ignore[misc]
            writers.kill()
            found["after a kill"] = in_fork(lambda how=how: read(how, path, world, 2))  # type: ignore[misc]
            with world.open(path, 200) as buffer:
                world.check(buffer)
            found["after a close"] = in_fork(lambda how=how: read(how, path, world, 2))  # type: ignore[misc]
            row.done += rounds + 4
            row.broken += sum(bool(error) for error in found.values())
            row.notes += [f"{how}, {when}: {error}" for when, error in found.items() if error]
        lower = Path(name) / "lower"
        lower.mkdir()
        with world.open(lower / "store", 200, segment_rows=16) as buffer:
            Feeder(world, buffer).add(130)
        error = in_fork(lambda: overlaid(Path(name), world, rounds))
        row.done += rounds
        row.broken += bool(error)
        row.notes += [f"in a lower layer: {error}"] if error else []
    return row


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Read and check 60 times in each way, times `scale`."""
    return campaign(max(3, round(60 * scale)), seed)
