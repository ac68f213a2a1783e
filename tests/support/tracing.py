"""A trace of what this process does to the files below a directory, through system calls and through memory maps.

The functions of `os` are replaced while it runs, so that whatever the library calls is seen. Stores through maps are found by
comparing all files with what they were at the last look; there is one before and after every traced call, and at every `look`.
"""

from __future__ import annotations

import copy
import itertools
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from tests.support.simulated_disk import SECTOR, Disk, Event, FailedSync, Names, Size, Sync, Write

NAMES = ("open", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link")
CONTENTS = ("pwrite", "write", "ftruncate", "truncate", "posix_fallocate")
IGNORED = ("writer.lock", "writer.json")  # who writes: nothing is read from it but by a human
SYNCS = ("fsync", "fdatasync")


@dataclass
class Fault:
    """Operations of a disk that fail: the one after `left` others, and `lasting` more."""

    left: int
    code: int
    lasting: int = 0
    only: str = ""  # operations of this name; of all that write, else
    failed: list[str] = field(default_factory=list)

    def fails(self, name: str, what: str) -> bool:
        """Count an operation, and tell whether it fails."""
        if self.only not in ("", name):
            return False
        self.left -= 1
        fails = -1 - self.lasting <= self.left < 0
        if fails:
            self.failed.append(what)
        return fails


class Trace:
    """Record events below `base`, a directory whose contents at the beginning count as synced.

    Parameters
    ----------
    base : Path
    disk : Disk, optional
        Of an earlier trace, with what is in `base` as its newest contents, synced or not. This trace's events go on from there.

    Attributes
    ----------
    events : list of Event
    looks : list of int
        How many events there were after each look. In between lie what was done in an order that is not known.
    fault : Fault, optional
        What fails from now on.
    marked : list of int
        Moments that somebody marked, as counts of events.
    """

    current: Trace | None = None  # the one that runs

    def __init__(self, base: Path, disk: Disk | None = None) -> None:
        self.events: list[Event] = []
        self.looks: list[int] = []
        self.fault: Fault | None = None
        self.marked: list[int] = []
        self._base, self._device = str(base), base.stat().st_dev
        known = {} if disk is None else disk.numbers()
        self._lock, self._count = threading.RLock(), itertools.count(max(known.values(), default=-1) + 1)
        # ours, by the system's, which it gives anew to other files
        self._numbers = {(base / path).stat().st_ino: number for path, number in known.items()}
        self._earlier = disk
        self._root = self._own(base.stat().st_ino)
        self._seen: dict[int, bytes] = {}  # files that have a name, by number
        self._fds: dict[int, int] = {}
        self._paths: dict[int, str] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}  # in directories, by number
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in (*NAMES, *CONTENTS, *SYNCS)}

    def path(self, number: int) -> str:
        """Return the path, below `base`, at which a file or a directory was seen first."""
        return self._paths.get(number, ".")

    def disk(self, events: int = 0) -> Disk:
        """Return the disk as it was after so many events; by default at the beginning."""
        disk = copy.deepcopy(self._earlier) if self._earlier is not None else Disk(self._root)
        if self._earlier is None:
            for event in self._beginning:
                disk.apply(event)
            disk.sync_all()
        for event in self.events[:events]:
            disk.apply(event)
        return disk

    def mark(self) -> None:
        """Mark this moment."""
        self.marked.append(self.look("marked"))

    def __enter__(self) -> Self:
        Trace.current = self
        with self._lock:  # what other threads do meanwhile waits until the beginning is known, and comes after it
            for name in NAMES:
                setattr(os, name, self._names_traced(name))
            for name in CONTENTS:
                setattr(os, name, self._contents_traced(name))
            for name in SYNCS:
                setattr(os, name, self._sync_traced(name))
            self._scan(self._base, "at the beginning")
            self._look("at the beginning")
            self._beginning, self.events, self.looks = self.events, [], [0]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        Trace.current = None
        for name, function in self._real.items():
            setattr(os, name, function)
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def look(self, what: str) -> int:
        """Look at everything; return how many events there were so far."""
        with self._lock:
            self._look(what)
            self._scan(self._base, what)
            self._look(what)
            return len(self.events)

    # Looking

    def _look(self, what: str) -> None:
        for number in list(self._fds):
            self._look_at(number, what)
        self.looks.append(len(self.events))

    def _look_at(self, number: int, what: str) -> None:
        """Note what was written to a file since the last look."""
        fd, before = self._fds[number], self._seen[number]
        now = os.pread(fd, os.fstat(fd).st_size, 0)
        if now == before:
            return
        what = f"{self._paths[number]}: {what}"
        if len(now) != len(before):
            self.events.append(Size(number, len(now), what))
        sectors = {}
        for first in range(0, len(now), 8 * SECTOR):
            if now[first : first + 8 * SECTOR] == before[first : first + 8 * SECTOR]:
                continue
            for at in range(first, min(first + 8 * SECTOR, len(now)), SECTOR):
                data, old = now[at : at + SECTOR].ljust(SECTOR, b"\0"), before[at : at + SECTOR].ljust(SECTOR, b"\0")
                if data != old:
                    sectors[at // SECTOR] = data
        if sectors:
            self.events.append(Write(number, sectors, what))
        self._seen[number] = now

    def _scan(self, path: str, what: str, *, deep: bool = True) -> None:
        """Note which names of a directory stand for others now."""
        try:
            number = self._own(os.stat(path).st_ino)
            with os.scandir(path) as entries:
                found = {
                    entry.name: (self._own(entry.inode()), entry.is_dir(follow_symlinks=False))
                    for entry in entries
                    if entry.name not in IGNORED
                }
        except FileNotFoundError:
            return
        known = self._names.setdefault(number, {})
        gone = [(name, None, False) for name in known if name not in found]
        new = [(name, *entry) for name, entry in found.items() if known.get(name) != entry]
        self._names[number] = found
        if gone or new:
            self.events.append(Names(number, (*gone, *new), f"{os.path.relpath(path, self._base)}: {what}"))
        for name, inode, is_directory in new:
            self._paths[inode] = os.path.relpath(f"{path}/{name}", self._base)
            if not is_directory and inode not in self._fds:
                self._fds[inode], self._seen[inode] = self._real["open"](f"{path}/{name}", os.O_RDONLY), b""
                self._look_at(inode, what)
        for name, (inode, is_directory) in found.items():
            if is_directory and (deep or inode not in self._names):
                self._scan(f"{path}/{name}", what)
        if gone or new:
            self._forget_unnamed()

    def _forget_unnamed(self) -> None:
        for number, fd in list(self._fds.items()):
            status = os.fstat(fd)
            if status.st_nlink == 0:
                self._numbers.pop(status.st_ino)
                os.close(self._fds.pop(number))
                self._seen.pop(number)

    def _own(self, inode: int) -> int:
        return self._numbers.setdefault(inode, next(self._count))

    # Traced functions

    def _names_traced(self, name: str) -> Callable[..., Any]:
        real, paths = self._real[name], 2 if name in ("replace", "rename", "link") else 1

        def traced(*args: Any, **keywords: Any) -> Any:
            if name == "open" and not (args[1] if len(args) > 1 else keywords["flags"]) & os.O_CREAT:
                return real(*args, **keywords)
            with self._lock:
                what = self._describe(f"{name} {' '.join(os.path.basename(os.fspath(path)) for path in args[:paths])}")
                self._look(f"before {what}")
                self._fail(name, what, spare=("unlink", "remove", "rmdir"))
                try:
                    return real(*args, **keywords)
                finally:
                    keys = ("src_dir_fd", "dst_dir_fd") if paths == 2 else ("dir_fd",)
                    found = [_parent(path, keywords.get(key)) for path, key in zip(args, keys, strict=False)]
                    for parent in dict.fromkeys(found):
                        if f"{parent}/".startswith(f"{self._base}/"):
                            self._scan(parent, what, deep=False)

        return traced

    def _contents_traced(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def traced(fd: Any, *args: Any) -> Any:
            number = self._number(fd)
            if number not in self._fds:
                return real(fd, *args)
            with self._lock:
                what = self._describe(name)
                self._look(f"before {what}")
                self._fail(name, what)
                try:
                    return real(fd, *args)
                finally:
                    if number in self._fds:
                        self._look_at(number, what)

        return traced

    def _sync_traced(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def traced(fd: int) -> None:
            number = self._number(fd)
            with self._lock:
                known = number in self._fds or number in self._names
                if known:
                    self._look(self._describe(f"before {name}"))
                    self._fail(name, self._describe(f"{self._paths.get(number, '.')}: {name}"), number)
                real(fd)
                if known:
                    self.events.append(Sync(number, self._describe(f"{self._paths.get(number, '.')}: {name}"), _caller()))

        return traced

    def _fail(self, name: str, what: str, number: int = -1, spare: tuple[str, ...] = ()) -> None:
        """Raise what the disk does, if it fails now; of a sync, what was not written yet is dropped."""
        if self.fault is None or name in spare or not self.fault.fails(name, what):
            return
        if number >= 0:
            self.events.append(FailedSync(number, f"{what} fails"))
        raise OSError(self.fault.code, os.strerror(self.fault.code))

    def _number(self, fd: Any) -> int:
        status = os.stat(fd) if isinstance(fd, str | os.PathLike) else os.fstat(fd)
        return self._numbers.get(status.st_ino, -1) if status.st_dev == self._device else -1

    @staticmethod
    def _describe(what: str) -> str:
        thread = threading.current_thread()
        return what if thread is threading.main_thread() else f"{what} ({thread.name})"


def _caller() -> str:
    """Return the function of the library that is at work, the seam to the operating system left out."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        place = frame.f_code.co_filename
        if "/diskbuffer/" in place and "/diskbuffer/store/system/" not in place:
            return frame.f_code.co_qualname
        frame = frame.f_back
    return ""


def _parent(path: Any, fd: int | None) -> str:
    """Return the directory that a name is in, which may be given by a descriptor."""
    above = os.getcwd() if fd is None else os.readlink(f"/proc/self/fd/{fd}")
    return os.path.dirname(os.path.normpath(os.path.join(above, os.fspath(path))))
