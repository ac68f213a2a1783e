"""Links and hostile directories: nothing outside of a store is read, written, renamed or removed, whatever stands in it.

One name in a store, of those that are there and of those that may come to be there, stands for something else: a link to a file
or a directory elsewhere, which has what the store had there and more; a link to where nothing is; a directory, a file, a pipe, a
socket. Then everything is done with the store that can be. The place that links lead to is watched by the kernel (inotify), so
that opening it would be seen as well as changing it, and is compared with what it was.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diskbuffer as db
from diskbuffer.store.origin import Origin
from diskbuffer.store.system.files import Files
from soak import fuzz
from soak.table import Row, tally
from soak.workers import Answer, Job, Pool, scratch
from tests.support.specimens import KINDS, adopt, in_a_process, make

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
        """Use a store in which a name stands for something else."""
        made(self._pristine, job["kind"], job["seed"])
        scratch = self._directory / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        root, outside = scratch / "store", scratch / "outside"
        scratch.mkdir()
        shutil.copytree(self._pristine / job["kind"], root)
        adopt(root)
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

    def write() -> db.ReplayBuffer:
        buffer = db.ReplayBuffer(root, threads=1)
        for name in ("one",) if killed else ("one", "two"):
            buffer.copies.mark(name)
        return buffer

    in_a_process(write, killed=killed)


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


# The campaign


def names_in(root: Path) -> list[str]:
    """Return the names in a store, of which those of directories come as often as those of files."""
    paths = [path for path in sorted(root.rglob("*")) if not (MARKS in str(path) and path.name.startswith("c."))]
    directories = [str(path.relative_to(root)) for path in paths if path.is_dir()]
    files = [str(path.relative_to(root)) for path in paths if path.is_file()]
    return files + directories * max(1, len(files) // len(directories))


def jobs(pristine: Path, count: int, seed: int) -> Iterator[Job]:
    """Yield what is to be tried: a store, a name in it, what it stands for, and what is done then."""
    names, rng = {kind: names_in(made(pristine, kind, seed)) for kind in BASES}, random.Random(seed)
    for _ in range(count):
        kind = rng.choice(BASES)
        yield {
            **{"kind": kind, "seed": seed, "name": rng.choice(ABSENT) if rng.random() < 0.35 else rng.choice(names[kind])},
            **{"way": rng.choice(WAYS), "mode": rng.choice(MODES), "back": rng.random() < 0.1},
        }


def made(pristine: Path, kind: str, seed: int) -> Path:
    """Make a specimen with marks, where it is not there yet."""
    if not (root := pristine / kind).exists():
        make(root, kind, seed)
        _mark(root, killed=KINDS[kind].killed)
    return root


def campaign(pool: Pool, count: int, seed: int) -> tuple[Row, list[tuple[Job, Answer]]]:
    """Run the campaign; return its row, and every case with what came of it."""
    every = list(jobs(pool.directory / "pristine", count, seed))  # whose stores are made by forks, before there are threads
    return tally("names in a store that stand for links, directories, pipes", pool.do_all(every), fuzz.FINE, BROKEN)


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Try 4,000 names, times `scale`."""
    with scratch() as name, Pool("soak.links", name) as pool:
        return campaign(pool, round(4000 * scale), seed)[0]


def child(directory: Path) -> Callable[[Job], Answer]:
    """Return what uses hostile stores."""
    return Bench(directory).do
