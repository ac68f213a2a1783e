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
from diskbuffer.store.system.files import Files
from soak import mounts
from soak.kills import Known, WrongError, compare
from soak.table import Row, counted
from soak.workers import Answer, Job, Pool, scratch
from tests.support.experience import Array, Experience, Feeder, heads_of, steps_of
from tests.support.writers import MAPPED, WRITTEN, written

METHODS = ("create", "pwrite", "sync", "rename", "make_directory")
SCENARIOS: dict[str, dict[str, Any]] = {
    "one environment": {"n_envs": 1, "capacity": None, "segment_rows": 16},
    "two environments, evicted": {"n_envs": 2, "capacity": 60, "segment_rows": 8},
}
WAYS = tuple((code, until) for until in ("once", "room") for code in ("ENOSPC", "EIO", "EDQUOT"))
IMAGE_BYTES = 16 * 1024**2
BLOCK = 4096
LEAST_ROOM = 150  # blocks: less than what an empty store takes
RIGHT = (OSError, db.DiskBufferError)


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


class Run:
    """Make calls that write; where one fails, see that everything is there, make room, and make the call again."""

    def __init__(self, path: Path, world: Noise, capacity: int | None, make_room: Callable[[], None], **options: Any) -> None:
        self._path, self._world, self._capacity, self._make_room, self._options = path, world, capacity, make_room, options
        self.failed: list[str] = []  # calls that raised, as they should
        self.known = Known(world)
        self.buffer: db.ReplayBuffer
        self.feeder: Feeder

    def try_(self, name: str, call: Callable[[], None], before_room: Callable[[], None] | None = None) -> None:
        """Make a call; if it raises, look, make the call again while it is as it is, look, make room, and make it again."""
        for attempt in ("first", "second", "with room"):
            if attempt == "with room":
                self._make_room()
            try:
                call()
            except RIGHT as error:
                if attempt == "with room":
                    raise WrongError(f"{name}: fails though there is room: {error!r}") from error
                if isinstance(error, db.InputError | db.CorruptionError | db.LockedError):
                    raise WrongError(f"{name}: {error!r}") from error
                self.failed.append(f"{name}: {error!r}")
                if before_room is not None:
                    before_room()
                    self._world.change(self.feeder.heads)
                continue
            if hasattr(self, "feeder"):
                self.known.heads = np.maximum(self.known.heads, self.feeder.heads)
            return

    def open(self) -> None:
        """Open the store, or create it."""

        def call() -> None:
            self.buffer = self._world.open(self._path, self._capacity, threads=1, **self._options)

        self.try_("open", call)
        self.feeder = Feeder(self._world, self.buffer)
        self.look()

    def add(self, times: int) -> None:
        """Add steps, one call each."""
        for _ in range(times):
            self.try_("add", self.feeder.add, self._nothing_was_added)

    def _nothing_was_added(self) -> None:
        self._must_be("heads, where add failed", heads_of(self.buffer).tolist(), self.feeder.heads.tolist())
        self.look()

    @staticmethod
    def _must_be(what: str, found: object, expected: object) -> None:
        if found != expected:
            raise WrongError(f"{what}: {found}, expected {expected}")

    def extend(self, stream: int, steps: int) -> None:
        """Extend a stream; what a call that fails leaves to do is done by the next."""

        def done() -> int:
            return int((~self._world.is_last(stream, np.arange(self.feeder.heads[stream]))).sum())

        target = done() + steps

        def call() -> None:
            if left := target - done():
                self.feeder.extend(stream, left)

        def resume() -> None:
            heads = heads_of(self.buffer)
            if (heads < self.feeder.heads).any():
                raise WrongError(f"extend failed, and the heads went from {self.feeder.heads.tolist()} to {heads.tolist()}")
            self.feeder.heads = heads
            self.look()

        self.try_("extend", call, resume)

    def write(self) -> None:
        """Write a column's values of all steps."""
        steps = steps_of(self.buffer)

        def call() -> None:
            told = self.buffer.columns.write(WRITTEN, steps, written(WRITTEN, steps))
            self._must_be("steps that write told of", told, len(self.buffer))

        self.try_("write", call, self.look)
        self.known.written = self.feeder.heads.copy()

    def map(self) -> None:
        """Have a function of every step be a column."""

        def of(batch: dict[str, Any]) -> Array:
            return written(MAPPED, batch["steps"].numpy())

        def call() -> None:
            self.buffer.columns.map(of, 32, MAPPED, resume=True, progress=False, threads=1)

        self.try_("map", call, self.look)
        batch = self.buffer.at(steps_of(self.buffer))
        self._must_be("values that were mapped", batch[MAPPED].tolist(), of(batch).tolist())

    def tag(self, tag: str) -> None:
        """Tag all episodes that are over."""
        episodes = self.buffer.episodes
        over = episodes[episodes.ending != "running"]
        if len(over):
            self.try_("tag", lambda: self._must_be("episodes that tag told of", over.set_tag(tag), len(over)), self.look)
            tags = np.asarray(self.buffer.episodes[episodes.ending != "running"].tag)
            self._must_be("tags", set(tags.tolist()), {tag})

    def flush(self) -> None:
        """Bring everything to the disk."""
        self.try_("flush", lambda: self.buffer.flush(), self.look)

    def seal(self) -> None:
        """Wait until all is sealed, or was tried to be."""
        self.try_("seal", lambda: self.buffer.flush(recompress=True), self.look)

    def close(self) -> None:
        """Close it; one that fails has let go of the store all the same."""
        self.try_("close", lambda: self.buffer.close())

    def look(self) -> None:
        """Compare everything that can be read, and see that what was acknowledged is there."""
        compare(self.buffer, self._world, self.known, tags=False)
        if len(self.buffer) and (wrong := self._world.wrong(self.buffer.sample(32))):
            raise WrongError(f"{wrong} steps that were drawn have other contents than they were given")

    def finish(self) -> None:
        """Close the store, open it again, and find everything right and sealed."""
        self.close()
        self._make_room()
        self.open()
        self.add(5)
        self.buffer.flush(recompress=True)
        stats = self.buffer.stats()
        self._must_be("what cannot be sealed", (stats["seal_error"], stats["unsealed"]), (None, 0))
        self.look()
        self.close()
        beside = [p.name for p in self._path.parent.iterdir() if p.name.startswith(f".{self._path.name}.")]
        self._must_be("left behind", [*beside, *(p.name for p in self._path.rglob("*.tmp"))], [])
        self._must_be("problems", [str(problem) for problem in db.check(self._path, progress=False).problems], [])


def script(run: Run) -> None:
    """Make every call, some of them twice."""
    last = run._world.n_envs - 1
    calls: list[tuple[Any, ...]] = [
        *(("open",), ("add", 21), ("extend", last, 45), ("write",), ("tag", "first"), ("flush",), ("add", 30), ("map",)),
        *(("seal",), ("extend", 0, 20), ("close",), ("open",), ("add", 25), ("tag", "second"), ("write",)),
        *(("extend", last, 30), ("flush",), ("finish",)),
    ]
    for name, *args in calls:
        getattr(run, name)(*args)


# Errors through the seam


class Faults:
    """Have one operation of `Files` fail, the `nth` of all, or that one and all that follow, until there is room."""

    def __init__(self, nth: int, code: str, until: str) -> None:
        self._nth, self._error, self._until, self._lock = nth, getattr(errno, code), until, threading.Lock()
        self.operations, self.failed, self.room = 0, list[str](), False
        self._stack = contextlib.ExitStack()

    def make_room(self) -> None:
        """Let everything succeed from now on."""
        self.room = True

    def _fails(self, name: str, args: tuple[Any, ...]) -> bool:
        with self._lock:
            self.operations += 1
            later = self._until == "room" and self.operations > self._nth
            fails = not self.room and (self.operations == self._nth or later)
            if fails:
                self.failed.append(f"{name} {args[0] if isinstance(args[0], str) else ''}".strip())
            return fails

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(files: Files, *args: Any, **kwargs: Any) -> Any:
            if self._fails(name, args):
                if name == "pwrite" and self._until == "room":  # half of it was done
                    data = memoryview(args[1]).cast("B")
                    real(files, args[0], data[: len(data) // 2], args[2])
                raise OSError(self._error, os.strerror(self._error))
            return real(files, *args, **kwargs)

        return operation

    def __enter__(self) -> Faults:
        for name in METHODS:
            self._stack.enter_context(mock.patch.object(Files, name, self._wrap(name, getattr(Files, name))))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def inject(directory: Path, job: Job) -> Answer:
    """Make a run in which an operation fails."""
    options = dict(SCENARIOS[job["scenario"]])
    with Faults(job["nth"], job["code"], job["until"]) as faults:
        run = Run(directory / "store", Noise(options.pop("n_envs"), 12), options.pop("capacity"), faults.make_room, **options)
        answer = _told(run, lambda: script(run))
    if answer["wrong"]:
        answer["wrong"] = f"{(faults.failed or [''])[0]}: {answer['wrong']}"
    return {**answer, "operations": faults.operations}


def _told(run: Run, call: Callable[[], None]) -> Answer:
    wrong = ""
    try:
        call()
    except BaseException as error:  # noqa: BLE001  whatever it is, the promise is broken
        wrong = f"{''.join(traceback.format_exception(error)[-8:])} after {run.failed}"
    finally:
        if hasattr(run, "buffer"):
            with contextlib.suppress(*RIGHT):
                run.buffer.close()
    return {
        "wrong": wrong,
        "counts": dict.fromkeys({f"raised by {call.split(':')[0]}" for call in run.failed} or {"no error"}, 1),
    }


# A real file system


class SmallDisk:
    """A file system of 16 MB, mounted for this process and its children alone, and gone with them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.root = directory / "disk"
        self.kind, self.why = "", ""

    def mount(self) -> None:
        """Mount it; ``why`` says why that cannot be."""
        self.root.mkdir(parents=True, exist_ok=True)
        image, self.why = self._directory / "image", mounts.why_not()
        if self.why:
            return
        mounts.private_mounts()
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        try:
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-b", str(BLOCK), image], check=True, capture_output=True)
            mounts.mount("-o", "loop", str(image), str(self.root))
            self.kind = "ext4"
        except (OSError, subprocess.SubprocessError):
            try:
                mounts.mount("-t", "tmpfs", "-o", f"size={IMAGE_BYTES}", "tmpfs", str(self.root))
                self.kind = "tmpfs"
            except (OSError, subprocess.SubprocessError) as error:
                self.why = str(error)

    @property
    def ballast(self) -> Path:
        """A file that takes up room."""
        return self.root / "ballast"

    def empty(self) -> None:
        """Remove everything, also what is still mapped by a buffer that nobody has any longer."""
        gc.collect()
        for entry in self.root.iterdir():
            if entry.is_dir() and entry.name != "lost+found":
                shutil.rmtree(entry)
            elif entry.is_file():
                entry.unlink()
        self._sync()

    def leave(self, blocks: int) -> None:
        """Fill it up, but for so many blocks."""
        found = os.statvfs(self.root)
        size = (found.f_bavail - blocks) * found.f_frsize
        with self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        self._sync()

    def make_room(self) -> None:
        """Take the ballast away."""
        self.ballast.unlink(missing_ok=True)
        self._sync()

    def _sync(self) -> None:
        fd = os.open(self.root, os.O_RDONLY)
        ctypes.CDLL(None).syncfs(fd)
        os.close(fd)


def fill(disk: SmallDisk, job: Job) -> Answer:
    """Write to a disk that has `blocks` blocks left until it is full and a call has raised; go on when there is room."""
    disk.empty()
    disk.leave(job["blocks"])
    options = dict(SCENARIOS[job["scenario"]])
    options.pop("capacity")  # or it would never be full
    run = Run(disk.root / "store", Noise(options.pop("n_envs"), 12), None, disk.make_room, **options)
    rng = np.random.default_rng([job["seed"], job["blocks"]])

    def calls() -> None:
        run.open()
        for _ in range(10_000):
            if run.failed:
                break
            what = rng.random()
            if what < 0.75 or not len(run.buffer):
                run.add(5)
            elif what < 0.9:
                run.extend(0, int(rng.integers(1, 40)))
            elif what < 0.95:
                run.write()
            else:
                run.tag("tag")
                run.map()
                run.flush()
        run.look()
        run.add(20)
        run.write()
        run.seal()
        run.extend(0, 60)
        run.flush()
        run.finish()

    return _told(run, calls)


# The campaigns


def operations(pool: Pool, scenario: str) -> int:
    """Count the operations of a run in which none fails."""
    answer = pool.do({"what": "inject", "scenario": scenario, "nth": 0, "code": "EIO", "until": "once"})
    if answer.get("wrong", "died"):
        raise RuntimeError(f"a run without errors fails: {answer}")
    return int(answer["operations"])


def injections(pool: Pool, count: int, seed: int) -> Iterator[Job]:
    """Yield `count` of all errors that can be injected, or all of them."""
    every = [
        {"what": "inject", "scenario": scenario, "nth": nth, "code": code, "until": until}
        for scenario in SCENARIOS
        for nth in range(1, operations(pool, scenario) + 1)
        for code, until in WAYS
    ]
    order = np.random.default_rng(seed).permutation(len(every))[:count]
    yield from (every[n] for n in sorted(order.tolist()))


def rooms(count: int, seed: int) -> Iterator[Job]:
    """Yield runs on a disk that is full after some blocks more each time, up to 600 or more."""
    for n in range(count):
        yield {"what": "fill", "scenario": list(SCENARIOS)[n % 2], "blocks": LEAST_ROOM + n * max(1, 600 // count), "seed": seed}


def main(scale: float = 1.0, *, seed: int = 0) -> Iterator[Row]:
    """Have 3,000 operations fail, and fill a disk 600 times, times `scale`."""
    with scratch() as name, Pool("soak.disk_full", name, timeout=60) as pool:
        yield counted("operations that fail", pool.do_all(injections(pool, round(3000 * scale), seed)))
        disk = pool.do({"what": "mount"})
        if disk.get("why", disk):
            yield Row("a small disk: skipped", 0, 0, [str(disk.get("why", disk))])
        else:
            yield counted(f"a small disk that is full ({disk['kind']})", pool.do_all(rooms(round(600 * scale), seed)))


def warm() -> None:
    """Compile everything."""
    with scratch() as name:
        inject(name, {"scenario": "two environments, evicted", "nth": 0, "code": "EIO", "until": "once"})


def child(directory: Path) -> Callable[[Job], Answer]:
    """Mount the disk; return what does the jobs."""
    small, place = SmallDisk(directory), directory / "run"
    small.mount()

    def do(job: Job) -> Answer:
        if job["what"] == "mount":
            return {"why": small.why, "kind": small.kind}
        if job["what"] == "fill":
            return fill(small, job)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return inject(place, job)

    return do
