"""What is made beside its place, and takes it when it is whole."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from diskbuffer.errors import DiskBufferError, InputError, LockedError
from diskbuffer.formats.fingerprint import SUFFIX
from diskbuffer.formats.json_files import write_json
from diskbuffer.plugin import local_path

_TASK = "task.json"


class Unfinished:
    """A place in which something is made, by a process that may be killed and run again.

    It is a hidden directory beside the target, `.NAME.unfinished`. It has the task that it is for, a lock, and `place`, which
    is moved to the target by `finish`, whole. It stays after a kill, and after what a kill is like: a full disk, a Ctrl-C.
    After an error of diskbuffer's own, of the source or of an option, it is removed.

    Parameters
    ----------
    target : path-like
        There must be nothing, or an empty directory.
    task : mapping
        What is done, and with what, as JSON: a run goes on with what an earlier one has left where it is the same, and begins
        anew where it is not.

    Raises
    ------
    InputError
        There is something at the target.
    LockedError
        Another process is at it.

    Attributes
    ----------
    place : pathlib.Path
        Where to make it. What an earlier run with the same task has left is there.
    """

    def __init__(self, target: str | os.PathLike[str], task: Mapping[str, Any]) -> None:
        self.target = local_path(target)
        self._directory = self.target.parent / f".{self.target.name}{SUFFIX}"
        self.place = self._directory / "data"
        self._task = json.loads(json.dumps(task))

    def __enter__(self) -> Self:
        if self.target.is_symlink() or (self.target.exists() and not _is_empty(self.target)):
            raise InputError(f"there is something at {self.target} already; give a path at which there is nothing")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._begin()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def _begin(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"another process is making {self.target}; wait for it, or stop it") from None
        if _read(self._directory / _TASK) != self._task:
            self._restart()
            write_json(self._directory / _TASK, self._task)

    def _restart(self) -> None:
        """Remove what an earlier run has left."""
        if self.place.is_dir():
            shutil.rmtree(self.place)
        else:
            self.place.unlink(missing_ok=True)

    def finish(self) -> None:
        """Move what was made to the target, once all of it is on the disk."""
        sync_tree(self.place)
        if self.target.is_dir():
            self.target.rmdir()
        os.rename(self.place, self.target)
        try:
            sync_directory(self.target.parent)
        except BaseException:
            os.rename(self.target, self.place)
            raise
        shutil.rmtree(self._directory, ignore_errors=True)  # the target is there

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Leave what was made for another run, or remove it after an error that another run would not get past."""
        if isinstance(error, DiskBufferError):
            shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._lock)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _read(path: Path) -> Any:
    """Return the task that was written; None where there is none, or it is damaged."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def sync_tree(path: Path) -> None:
    """Sync a file, or a directory with all that is in it, to the disk."""
    if path.is_dir():
        for inner in path.iterdir():
            sync_tree(inner)
    sync_directory(path)


def sync_directory(path: Path) -> None:
    """Sync the names in a directory to the disk; or a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
