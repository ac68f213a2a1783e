"""Links and hostile directories: nothing outside of a store is read, written, renamed or removed, whatever stands in it.

    python -m soak.links --count 4000 --seed 0 [--minutes 10] [--workers 2]

One name in a store, of those that are there and of those that may come to be there, stands for something else: a link to a file
or a directory elsewhere, which has what the store had there and more; a link to where nothing is; a directory, a file, a pipe, a
socket. Then everything is done with the store that can be. The place that links lead to is watched by the kernel (inotify), so
that opening it would be seen as well as changing it, and is compared with what it was.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import os
import random
import shutil
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diskbuffer as db
from diskbuffer.store.origin import Origin
from diskbuffer.store.system.files import Files
from soak import fuzz
from soak.table import Row
from soak.workers import Answer, Job, Pool, scratch_directory, serve
from tests.support.specimens import KINDS, make

MODULE = "soak.links"
BASES = ("pixels, closed", "flat, killed", "pixels, unsealed, killed")
MARKS = "_segments/length/marks"
# Names that are not there, and will be asked for, or cleared up.
ABSENT = (
    *("value", "priority", "mapped", "tag", "_segments/checksum/priority", "_segments/checksum/mapped", "priority/c.0"),
    *("value/c.9", "value/map.json", "mapped/map.json", "x.tmp", "obs/c.0.0.0.tmp", "obs/c.99.0.0.new.tmp", "action/c.99"),
    *(f"{MARKS}/.one.old", f"{MARKS}/.two.old", f"{MARKS}/.one.0a1b2c3d.new", f"{MARKS}/two", ".0a1b2c3d.new", "zarr.json.tmp"),
    *("_segments/length/c.0.0.new.tmp", "_segments/length/origin.json", "_segments/length/writer.json", "_segments/stream/c.0"),
)
WAYS = ("link", "link", "link", "relative link", "dangling link", "directory", "file", "pipe", "socket")
MODES = ("a", "a", "r", "mark, r", "mark, a", "marks", "snapshot", "check", "repair")
BROKEN = {**fuzz.BROKEN, "outside": "opened something elsewhere", "changed": "changed something elsewhere"}
_EVENTS = {
    **{0x1: "read", 0x2: "written", 0x4: "changed", 0x8: "closed after writing", 0x10: "closed", 0x20: "opened"},
    **{0x40: "renamed", 0x80: "renamed", 0x100: "created", 0x200: "removed", 0x400: "removed", 0x800: "moved"},
}
NOTES = 12


class Watch:
    """What the kernel tells of a directory and all below it: every opening of a file or a directory, every change."""

    def __init__(self, root: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._paths = {}
        for path in [root, *(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())]:
            number = self._libc.inotify_add_watch(self._fd, os.fsencode(path), 0xFFF)
            if number < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
            self._paths[number] = path
        self.seen()

    def seen(self) -> list[str]:
        """Return what happened since this was asked last."""
        found = list[str]()
        while True:
            try:
                data = os.read(self._fd, 2**16)
            except BlockingIOError:
                return found
            while data:
                number, mask, _, size = struct.unpack_from("iIII", data)
                name, data = data[16 : 16 + size].rstrip(b"\0"), data[16 + size :]
                told = [word for bit, word in _EVENTS.items() if mask & bit]
                if told:
                    found.append(f"{self._paths[number].name}/{os.fsdecode(name)} {told[0]}")

    def close(self) -> None:
        """Look no longer."""
        os.close(self._fd)


def contents(root: Path) -> dict[str, tuple[Any, ...]]:
    """Return all that can be told of a directory: names, kinds, sizes, times, contents."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        known = (status.st_ino, status.st_mode, status.st_nlink, status.st_mtime_ns)
        found[str(path.relative_to(root))] = (*known, path.read_bytes() if path.is_file() and not path.is_symlink() else b"")
    return found


# In the worker


class Bench:
    """Copies of specimens, in which a name is made to stand for something else."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pristine = directory.parent / "pristine"

    def do(self, job: Job) -> Answer:
        """Do a job."""
        if job["what"] == "make":
            root = self._pristine / job["kind"]
            if not root.exists():
                make(root, job["kind"], job["seed"])
                _mark(root, killed=KINDS[job["kind"]].killed)
            return {"made": job["kind"]}
        return self._hostile(job)

    def _hostile(self, job: Job) -> Answer:
        scratch = self._directory / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        root, outside = scratch / "store", scratch / "outside"
        scratch.mkdir()
        shutil.copytree(self._pristine / job["kind"], root)
        outside.mkdir()
        if job["back"]:
            Origin.new(back_to="one").note(Files(root))
        put(root, outside, job["name"], job["way"])
        before, watch = contents(outside), Watch(outside)
        try:
            answer = fuzz.tried(lambda: use(root, job["mode"], KINDS[job["kind"]].n_envs))
            seen = watch.seen()
        finally:
            watch.close()
        after = contents(outside)
        if before != after:
            names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            return {"class": "changed", "error": ", ".join(names[:4])}
        if seen:
            return {"class": "outside", "error": ", ".join(seen[:4])}
        return answer


def _mark(root: Path, *, killed: bool) -> None:
    """Make marks in a process of its own, which is killed then, or closes the store."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            buffer = db.ReplayBuffer(root, threads=1)
            buffer.copies.mark("one")
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            buffer.copies.mark("two")
            buffer.close()
            os._exit(0)
        os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != (-signal.SIGKILL if killed else 0):
        raise RuntimeError("a mark could not be made")


def put(root: Path, outside: Path, name: str, way: str) -> None:
    """Have a name in a store stand for something else; what stood there is elsewhere, for a link to lead to."""
    place, other = root / name, outside / (Path(name).name.lstrip(".") or "x")
    place.parent.mkdir(parents=True, exist_ok=True)
    is_there = place.exists()
    if is_there:
        place.rename(other)
    elif Path(name).suffix in (".tmp", ".json", ".lock") or Path(name).name.startswith("c."):
        other.write_bytes(b"mine")
    else:
        other.mkdir()
    if other.is_dir():
        for mine in ("mine", "c.0", "x.tmp", "map.json", ".one.0a1b2c3d.new"):
            if not (other / mine).exists():
                (other / mine).write_bytes(b"mine")
        (other / ".mine").mkdir(exist_ok=True)
        (other / ".mine" / "mine").write_bytes(b"mine")
        (other / ".mine.old").mkdir(exist_ok=True)
    match way:
        case "link":
            place.symlink_to(other)
        case "relative link":
            place.symlink_to(os.path.relpath(other, place.parent))
        case "dangling link":
            place.symlink_to(outside / "nothing")
        case "directory":
            place.mkdir()
            (place / "something").write_bytes(b"")
        case "file":
            place.write_bytes(b"something")
        case "pipe":
            os.mkfifo(place)
        case "socket":
            here = os.getcwd()
            os.chdir(place.parent)  # the path of a socket must be short
            try:
                with socket.socket(socket.AF_UNIX) as opened:
                    opened.bind(place.name)
            finally:
                os.chdir(here)


def use(root: Path, mode: str, streams: int) -> str | None:
    """Do with a store what a user would; return what was refused on the way."""
    match mode:
        case "a" | "r":
            return fuzz.use(root, mode, streams, threads=1)
        case "mark, r" | "mark, a":
            with db.ReplayBuffer(root, mark="one", mode="r" if mode == "mark, r" else "a", threads=1) as buffer:
                buffer.sample(8)
                buffer.stats()
        case "marks":
            refused = None
            for do in (_make_marks, _remove_marks):
                try:
                    do(root)
                except db.DiskBufferError as error:
                    refused = str(error)
            return refused
        case "snapshot":
            with db.ReplayBuffer(root, threads=1) as buffer:
                buffer.flush(recompress=True)
                buffer.copies.snapshot(root.parent / "snapshot")
            db.check(root.parent / "snapshot", progress=False)
        case "check":
            db.check(root, progress=False)
        case "repair":
            db.check(root, repair=True, progress=False)
            return fuzz.use(root, "a", streams, threads=1)
    return None


def _make_marks(root: Path) -> None:
    with db.ReplayBuffer(root, threads=1) as buffer:
        buffer.copies.mark("one", replace=True)
        buffer.copies.mark("three")
        buffer.copies.remove("three")
        buffer.copies.remove("one")


def _remove_marks(root: Path) -> None:
    for name in db.marks(root):
        db.remove_mark(root, name)


# In the parent


def jobs(count: int, seed: int, names: dict[str, list[str]]) -> Iterator[Job]:
    """Yield what is to be tried: a store, a name in it, what it stands for, and what is done then."""
    rng = random.Random(seed)
    for _ in range(count):
        kind = rng.choice(BASES)
        known = names[kind]
        yield {
            **{"what": "hostile", "kind": kind, "name": rng.choice(ABSENT) if rng.random() < 0.35 else rng.choice(known)},
            **{"way": rng.choice(WAYS), "mode": rng.choice(MODES), "back": rng.random() < 0.1},
        }


def prepare(pool: Pool, directory: Path, seed: int) -> dict[str, list[str]]:
    """Make specimens; return the names in each, of which those of directories come as often as those of files."""
    found = {}
    for kind in BASES:
        if "made" not in pool.do({"what": "make", "kind": kind, "seed": seed}):
            raise RuntimeError(f"the specimen {kind!r} could not be made")
        root = directory / "pristine" / kind
        paths = [path for path in sorted(root.rglob("*")) if not (MARKS in str(path) and path.name.startswith("c."))]
        directories = [str(path.relative_to(root)) for path in paths if path.is_dir()]
        files = [str(path.relative_to(root)) for path in paths if path.is_file()]
        found[kind] = files + directories * max(1, len(files) // len(directories))
    return found


def campaign(
    pool: Pool, names: dict[str, list[str]], count: int, seed: int, seconds: float | None = None
) -> tuple[Row, list[tuple[Job, Answer]]]:
    """Run the campaign; return its row, and every case with what came of it."""
    cases = [(job, _settled(answer)) for job, answer in pool.do_all(jobs(count, seed, names), seconds)]
    classes = collections.Counter(answer["class"] for _, answer in cases)
    broken = [(job, answer) for job, answer in cases if answer["class"] in BROKEN]
    row = Row("names in a store that stand for links, directories, pipes", len(cases), len(broken))
    row.notes += [f"{classes[name]:,} {meaning}" for name, meaning in {**fuzz.FINE, **BROKEN}.items() if classes[name]]
    row.notes += [f"seed {seed}: {answer['class']}: {job} -> {answer.get('error', '')[:300]}" for job, answer in broken[:NOTES]]
    return row, cases


def _settled(answer: Answer) -> Answer:
    if "died" in answer:
        return {"class": "crash", "error": answer["died"]}
    return {"class": "hang", "error": f"{answer['hung']} s"} if "hung" in answer else answer


def main(count: int, seed: int = 0, minutes: float | None = None, workers: int = 2) -> Row:
    """Run the campaign with workers of its own."""
    with scratch_directory() as name, Pool(MODULE, Path(name), workers) as pool:
        names = prepare(pool, Path(name), seed)
        return campaign(pool, names, count, seed, None if minutes is None else minutes * 60)[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        place: Path = given.serve

        def warm() -> None:
            """Compile what a store needs."""
            with scratch_directory() as name:
                make(Path(name) / "store", "pixels, closed", 0)
                fuzz.use(Path(name) / "store", "a", KINDS["pixels, closed"].n_envs)

        serve(warm, lambda: Bench(place).do)
    else:
        print(main(given.count, given.seed, given.minutes, given.workers), flush=True)
