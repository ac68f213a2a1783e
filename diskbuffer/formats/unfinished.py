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

from diskbuffer.errors import InputError, LockedError
from diskbuffer.formats.fingerprint import SUFFIX
from diskbuffer.formats.json_files import write_json
from diskbuffer.plugin import boot_id, either, local_path, refuse_inside

_TASK = "task.json"


class Unfinished:
    """A place in which something is made, by a process that may be killed and run again.

    It is a hidden directory beside the target, `.NAME.unfinished`. It has the task that it is for, a lock, and `place`, which
    is moved to the target by `finish`, whole. It stays whatever ends the run, an error, too: another run goes on with it, and
    only `restart` removes it.

    Parameters
    ----------
    target : path-like
        There must be nothing, or an empty directory.
    task : mapping, optional
        What is done, and with what, as JSON: a run goes on with what an earlier one has left where it is the same. Without one no
        run goes on with what this one leaves, and an error removes it.
    restart : bool
        Whether to begin anew, whatever an earlier run has left.

    Raises
    ------
    InputError
        There is something at the target, or it is inside of a store, or an earlier run has left what is of another task.
    LockedError
        Another process is at it.

    Attributes
    ----------
    place : pathlib.Path
        Where to make it. What an earlier run with the same task has left is there.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        task: Mapping[str, Any] | None = None,
        *,
        restart: bool = False,
    ) -> None:
        self.target = local_path(target)
        self._directory = self.target.parent / f".{self.target.name}{SUFFIX}"
        self.place = self._directory / "data"
        self._task, self._anew = json.loads(json.dumps(task)), restart

    def __enter__(self) -> Self:
        if self.target.is_symlink() or (self.target.exists() and not _is_empty(self.target)):
            raise InputError(f"there is something at {self.target} already; give a path at which there is nothing")
        refuse_inside(self.target)
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
        left = _read(self._directory / _TASK)
        is_others = left is not None and left["task"] not in (None, self._task)
        if is_others and not self._anew and self.place.exists():
            raise InputError(
                f"{self._directory} has what a run with other options, or of something else by now, has made of {self.target}: "
                f"repeat that run, which goes on, or begin anew: {either('restart=True', '--restart')}"
            )
        goes_on = left is not None and left["task"] == self._task is not None and self._is_whole(left)
        if self._anew or not goes_on:
            self._restart()
        self._write({})

    def _is_whole(self, left: Mapping[str, Any]) -> bool:
        """Return whether everything is there that an earlier run had written when it ended.

        After another start of the machine it may not be, and a store's newest episode is one that a power loss has ended.
        """
        if left["boot"] != boot_id():
            return False
        return all(_size(self.place / name) >= size for name, size in left["sizes"].items())

    def _write(self, sizes: Mapping[str, int]) -> None:
        """Note what this run is for, and how large its files are."""
        write_json(self._directory / _TASK, {"task": self._task, "boot": boot_id(), "sizes": sizes})

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
        """Leave what was made for another run, and note how large it is; nothing, where nothing was made, or none goes on."""
        try:
            if self._task is None or not self.place.exists():
                shutil.rmtree(self._directory, ignore_errors=True)
            elif kind is not None:
                files = [path for path in self.place.rglob("*") if path.is_file()] if self.place.is_dir() else [self.place]
                sizes = {os.path.relpath(path, self.place): path.stat().st_size for path in files}
                self._write(sizes)
        except OSError:  # such as of a disk that is full: then it is not known, as after a kill
            pass
        finally:
            os.close(self._lock)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _read(path: Path) -> Any:
    """Return what was noted of an earlier run; None where there is none, or it is damaged."""
    try:
        left = json.loads(path.read_text())
        return left if left.keys() == {"task", "boot", "sizes"} else None
    except (FileNotFoundError, ValueError, AttributeError):
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
