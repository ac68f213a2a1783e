"""A disk that is full or fails: an error is raised, what was acknowledged stays and is read, writing goes on once there is room.

Two campaigns. In the first, one operation of `Files` after the other fails in a run that makes every call that writes: once, or
until "there is room again", with ENOSPC, EIO or EDQUOT; of a write that fails, half may have been done. In the second, a real
file system of 16 MB (ext4 on a loop device, else tmpfs) is filled up by a ballast file, which leaves some blocks more each time,
so that it becomes full at each of the writes of a run. Both in processes that may crash: SIGBUS would be counted. A case that is
done again may differ a little, as threads number a run's operations otherwise.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import itertools
import os
import shutil
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import diskbuffer as db
from diskbuffer.runtime.dropped import wait_for_closing
from diskbuffer.store.system.files import Files
from soak import mounts
from soak.kills import Known, WrongError, compare
from soak.table import Row, counted
from soak.workers import Answer, Job, Pool, scratch
from tests.support.experience import Array, Experience, heads_of
from tests.support.writers import MAPPED, Writer, must_be, written

METHODS = ("create", "pwrite", "sync", "rename", "make_directory")
SCENARIOS: dict[str, tuple[int, int | None, int]] = {  # environments, capacity, rows of a segment
    "one environment": (1, None, 16),
    "two environments, evicted": (2, 60, 8),
}
WAYS = tuple((code, until) for until in ("once", "room") for code in ("ENOSPC", "EIO", "EDQUOT"))
IMAGE_BYTES = 16 * 1024**2
LEAST_ROOM = 150  # blocks of 4,096 bytes: less than what an empty store takes
RIGHT = (OSError, db.DiskBufferError)
SCRIPT = (  # every call, some of them twice
    *("add", "extend", "write", "tag", "flush", "add", "map", "seal"),
    *("extend", "close", "add", "tag", "write", "extend", "flush"),
)


class Noise(Experience):
    """Experience whose frames cannot be compressed, and that is another whenever a call has failed.

    What such a call left behind can so be told from what was given to the next.
    """

    _noise = np.random.default_rng(7).integers(1, 256, 2**20, dtype=np.uint8)
    _rows = 2**16

    def __init__(self, n_envs: int, episode: int) -> None:
        super().__init__(n_envs, episode)
        self._failures: Array = np.zeros((n_envs, self._rows), np.int64)

    def change(self, heads: Array) -> None:
        """Be another behind the newest rows."""
        for stream, head in enumerate(heads.tolist()):
            self._failures[stream, head + 1 :] += 1

    def frames(self, stream: int, positions: Array) -> Array:
        """Frames of noise behind their first eight bytes, which hold the position."""
        places, size = np.asarray(positions, np.int64), int(np.prod(self.shape))
        starts = (places * 7919 + stream * 104729 + self._failures[stream, places] * 2029) % (len(self._noise) - size)
        flat = self._noise[starts[:, None] + np.arange(size)]
        flat[:, :8] = (places + 1).astype("<i8").view(np.uint8).reshape(-1, 8)
        return np.asarray(flat.reshape(len(places), *self.shape))

    def actions(self, stream: int, positions: Array) -> Array:
        """Actions, which are recorded together with the row behind them."""
        places = np.asarray(positions, np.int64)
        return np.asarray(super().actions(stream, places) + 1_000_000 * self._failures[stream, places + 1])


# A run that makes every call, and makes it again where it failed


class Run(Writer):
    """Make calls that write; where one fails, see that everything is there, make room, and make the call again."""

    adds, extends = 30, 50

    def __init__(
        self, path: Path, world: Noise, seed: Any, capacity: int | None, make_room: Callable[[], None], **options: Any
    ) -> None:
        self.known, self.failed = Known(world), list[str]()  # calls that raised, as they should
        super().__init__(path, world, self.known, seed, capacity, {"threads": 1, **options})
        self._noise, self._make_room = world, make_room

    def _try(self, name: str, call: Callable[[], object]) -> None:
        """Make a call; if it raises, look, make the call again while it is as it is, look, make room, and make it again."""
        for room in (False, False, True):
            if room:
                self._make_room()
            try:
                call()
            except RIGHT as error:
                if room or isinstance(error, db.InputError | db.CorruptionError | db.LockedError):
                    raise WrongError(f"{name}{', though there is room' * room}: {error!r}") from error
                self.failed.append(f"{name}: {error!r}")
                if name not in ("open", "close"):
                    self._look_after(name)
            else:
                break

    def _look_after(self, name: str) -> None:
        """See what a call that failed has left: nothing, but of `extend`, which may have added the first of its steps."""
        heads = heads_of(self.buffer)
        if (heads < self.feeder.heads).any() or name != "extend":
            must_be(f"heads, where {name} failed", heads.tolist(), self.feeder.heads.tolist())
        self.feeder.heads = heads
        self.look()
        self._noise.change(heads)

    def _open(self) -> None:
        self._try("open", super()._open)
        self.look()

    def do(self, what: str) -> None:
        """Make a call, and again where it fails; one of `close` that fails has let go of the store all the same."""
        self._try(what, lambda: super(Run, self).do(what))

    def _map(self) -> None:
        super()._map()
        if len(steps := self.buffer.steps()):
            must_be("values that were mapped", self.buffer.at(steps)[MAPPED].tolist(), written(MAPPED, steps).tolist())

    def look(self) -> None:
        """Compare everything that can be read, and see that what was acknowledged is there."""
        compare(self.buffer, self._world, self.known)
        if len(self.buffer):
            must_be("steps that were drawn and have other contents", self._world.wrong(self.buffer.sample(32)), 0)

    def finish(self) -> None:
        """Close the store, open it again, and find everything right and sealed."""
        self.do("close")
        self._make_room()
        for what in ("close", "add", "seal"):
            self.do(what)
        stats = self.buffer.stats()
        must_be("what cannot be sealed", (stats["seal_error"], stats["unsealed"]), (None, 0))
        self.look()
        self.buffer.close()
        left = [*self._path.parent.glob(f".{self._path.name}.*"), *self._path.rglob("*.tmp")]
        must_be("left behind", left, [])
        must_be("problems", [str(problem) for problem in db.check(self._path, progress=False).problems], [])


def told(run: Run, calls: Callable[[], None]) -> Answer:
    """Make a run's calls; tell what went wrong, and which calls raised as they should."""
    wrong = ""
    try:
        calls()
    except BaseException as error:  # noqa: BLE001  whatever it is, the promise is broken
        wrong = f"{''.join(traceback.format_exception(error)[-8:])} after {run.failed}"
    if hasattr(run, "buffer"):
        with contextlib.suppress(*RIGHT):
            run.buffer.close()
    raised = {f"raised by {call.split(':')[0]}" for call in run.failed} or {"no error"}
    return {"wrong": wrong, "counts": dict.fromkeys(raised, 1)}


# Errors through the seam


class Faults:
    """Have one operation of `Files` fail, the `nth` of all, or that one and all that follow, until there is room."""

    def __init__(self, nth: int, code: str, until: str) -> None:
        self._nth, self._error, self._until, self._lock = nth, getattr(errno, code), until, threading.Lock()
        self.operations, self.failed, self.room = 0, "", False

    def make_room(self) -> None:
        """Let everything succeed from now on."""
        self.room = True

    def _fails(self, name: str, args: tuple[Any, ...]) -> bool:
        with self._lock:
            self.operations += 1
            later = self._until == "room" and self.operations > self._nth
            fails = not self.room and (self.operations == self._nth or later)
            if fails:
                self.failed = self.failed or f"{name} {args[0]}"
            return fails

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(files: Files, *args: Any, **kwargs: Any) -> Any:
            if self._fails(name, args):
                if name == "pwrite" and self._until == "room":  # half of it was done
                    data = memoryview(args[1]).cast("B")
                    real(files, args[0], data[: len(data) // 2], args[2])
                raise OSError(self._error, os.strerror(self._error))
            return real(files, *args, **kwargs)

        return operation

    def installed(self) -> Any:
        """Have operations fail while this lasts."""
        failing: dict[str, Any] = {name: self._failing(name, getattr(Files, name)) for name in METHODS}
        return mock.patch.multiple(Files, **failing)


def inject(directory: Path, scenario: str, nth: int, code: str, until: str) -> Answer:
    """Make a run in which an operation fails."""
    n_envs, capacity, rows = SCENARIOS[scenario]
    faults = Faults(nth, code, until)
    run = Run(directory / "store", Noise(n_envs, 12), 0, capacity, faults.make_room, segment_rows=rows)

    def calls() -> None:
        run.begin()
        for what in SCRIPT:
            run.do(what)
        run.finish()

    with faults.installed():
        answer = told(run, calls)
    if answer["wrong"]:
        answer["wrong"] = f"{faults.failed}: {answer['wrong']}"
    return {**answer, "operations": faults.operations}


# A real file system


class SmallDisk:
    """A file system of 16 MB, mounted for this process and its children alone, and gone with them."""

    def __init__(self, directory: Path) -> None:
        self.root, image = directory / "disk", directory / "image"
        self.ballast = self.root / "ballast"
        self.root.mkdir(parents=True, exist_ok=True)
        self.kind, self.why = "", mounts.why_not()
        if self.why:
            return
        mounts.private_mounts()
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        failed = (OSError, subprocess.SubprocessError)
        try:
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-b", "4096", image], check=True, capture_output=True)
            mounts.mount("-o", "loop", str(image), str(self.root))
            self.kind = "ext4"
        except failed:
            try:
                mounts.mount("-t", "tmpfs", "-o", f"size={IMAGE_BYTES}", "tmpfs", str(self.root))
                self.kind = "tmpfs"
            except failed as error:
                self.why = str(error)

    def empty_but_for(self, blocks: int) -> None:
        """Remove everything, also what is mapped by a buffer that nobody has any longer; fill it up, but for so many blocks."""
        gc.collect()
        wait_for_closing()
        for entry in self.root.glob("*store*"):
            shutil.rmtree(entry)
        self.make_room()
        found = os.statvfs(self.root)
        with self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, (found.f_bavail - blocks) * found.f_frsize)
        self._sync()

    def make_room(self) -> None:
        """Take the ballast away."""
        self.ballast.unlink(missing_ok=True)
        self._sync()

    def _sync(self) -> None:
        fd = os.open(self.root, os.O_RDONLY)
        ctypes.CDLL(None).syncfs(fd)
        os.close(fd)


def fill(disk: SmallDisk, scenario: str, blocks: int, seed: int) -> Answer:
    """Write to a disk that has `blocks` blocks left until it is full and a call has raised; go on when there is room."""
    disk.empty_but_for(blocks)
    n_envs, _, rows = SCENARIOS[scenario]  # with a capacity, it would never be full
    run = Run(disk.root / "store", Noise(n_envs, 12), [seed, blocks], None, disk.make_room, segment_rows=rows)

    def calls() -> None:
        run.begin()
        while not run.failed:
            run.do_anything()
        run.look()
        for what in ("add", "write", "seal", "extend", "flush"):
            run.do(what)
        run.finish()

    return told(run, calls)


# The campaigns


def injections(pool: Pool, count: int, seed: int) -> Iterator[Job]:
    """Yield `count` of all errors that can be injected, or all of them."""
    every: list[Job] = []
    for scenario in SCENARIOS:
        whole = pool.do({"inject": [scenario, 0, "EIO", "once"]})
        if whole.get("wrong", whole):
            raise RuntimeError(f"a run without errors fails: {whole}")
        numbers = range(1, whole["operations"] + 1)
        every += [{"inject": [scenario, nth, *way]} for nth, way in itertools.product(numbers, WAYS)]
    order = np.random.default_rng(seed).permutation(len(every))[:count]
    yield from (every[n] for n in sorted(order.tolist()))


def main(scale: float = 1.0, *, seed: int = 0) -> Iterator[Row]:
    """Have 3,000 operations fail, and fill a disk 600 times, with more room each time, times `scale`."""
    with scratch() as name, Pool("soak.disk_full", name, timeout=60) as pool:
        yield counted("operations that fail", pool.do_all(injections(pool, round(3000 * scale), seed)))
        disk, count = pool.do({}), round(600 * scale)
        if why := disk.get("why", str(disk)):
            yield Row("a small disk: skipped", 0, 0, [why])
            return
        fills = ([list(SCENARIOS)[n % 2], LEAST_ROOM + n * max(1, 600 // count), seed] for n in range(count))
        yield counted(f"a small disk that is full ({disk['kind']})", pool.do_all({"fill": job} for job in fills))


def child(directory: Path) -> Callable[[Job], Answer]:
    """Mount the disk; return what does the jobs."""
    disk, place = SmallDisk(directory), directory / "run"

    def do(job: Job) -> Answer:
        if "inject" in job:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            return inject(place, *job["inject"])
        return fill(disk, *job["fill"]) if "fill" in job else {"why": disk.why, "kind": disk.kind}

    return do
