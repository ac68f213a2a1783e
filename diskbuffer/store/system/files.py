"""The seam to the operating system: every file operation in a store goes through a `Files`.

Tests replace it to inject errors, or to record what a crash would leave. Reading is done through maps.

A store may come from a stranger, and any name in it may be a link that leads elsewhere. So a `Files` keeps the store's directory
open, and walks from there, one directory after the other, refusing links at every step (`openat` with O_NOFOLLOW). Links in the
path of the store itself are the user's own: they are resolved once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import resource
import stat
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, DiskBufferError, DiskFullError, InputError, LockedError, NotAStoreError
from diskbuffer.runtime import threads
from diskbuffer.runtime.uncopied import Uncopied

_CAREFUL = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | _CAREFUL
# O_PATH, which macOS lacks: a directory that may be searched need not be one that may be read.
_DIRECTORY = os.O_DIRECTORY | getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC
SMALL = 256 * 1024**2  # bytes that metadata may have
_AT_ONCE = 8  # files that are synced at the same time
_WRITE_OUT = 2  # SYNC_FILE_RANGE_WRITE
_this_thread = threading.local()
_NO_TIME = 0.2e-3  # seconds that a sync may take for the next one to be waited for, too
_BLOCK = 4 * 1024**2  # bytes that are copied at a time
_PATIENCE = 60.0  # seconds to wait for others who change what is shared
# What tells that a file cannot have another name there: on another device, or in a file system that has no such links.
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_NO_MAPS = {errno.ENODEV, errno.EINVAL}  # of FUSE with direct_io, and of 9p without a cache
# Errors of a sync after which Linux takes data that it could not write for clean: the next sync succeeds without them.
_FULL = {errno.ENOSPC, errno.EDQUOT}
_DROPPED = {errno.EIO, *_FULL}
# What tells that there is nothing of a name any more.
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE}
# What tells that a name stands for something else than it should: a link, a directory, a file in a directory's place, a socket.
_NOT_OURS = {errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENXIO}


class Files(Uncopied):
    """File operations below one directory, by relative name.

    Errors name the file by `root`. Where a name, or a directory on the way to it, is a link, or something else that a store does
    not have, it is a CorruptionError, and nothing is done.
    """

    def __init__(self, root: str | os.PathLike[str], *, within: tuple[Files, str] | None = None) -> None:
        self.root = Path(root)
        self._within = within
        self._real = "" if within else os.path.realpath(root)  # later changes of the links above do not matter
        self._held: dict[str, int] = {}  # the directory's descriptor, once it was needed
        # Files of which a sync failed, by device and number, in all directories below one; a free number goes to another file.
        self._dropped: set[tuple[int, int]] = set() if within is None else within[0]._dropped

    def below(self, name: str) -> Files:
        """Return the files of a directory in this one."""
        return Files(self.root / name, within=(self, name))

    @property
    def place(self) -> Path:
        """The path by which users know the directory: of a store that is being made, where it will be."""
        return self.root if self._within is None else self._within[0].place / self._within[1]

    def anew(self) -> Files:
        """Return the files of what is at the same path by now, which may be another directory."""
        return Files(self.root)

    def __del__(self, close: Any = os.close) -> None:  # the modules may be gone when the interpreter exits
        for fd in getattr(self, "_held", {}).values():
            close(fd)

    # Directories

    def make_directory(self, name: str) -> None:
        """Create a directory and its parents; nothing where it is there."""
        if not self._held and self._within is not None:
            above, own = self._within
            above.make_directory(own)
        elif not self._held:
            os.makedirs(self._real, exist_ok=True)
        with self._in(f"{name}/.", make=True):
            pass

    def names(self, name: str = ".") -> list[str]:
        """Return the names in a directory."""
        return [entry for entry, _ in self._list(name)]

    def directories(self, name: str = ".") -> list[str]:
        """Return the names in a directory that are directories themselves, and no links to some."""
        return [entry for entry, kind in self._list(name) if stat.S_ISDIR(kind)]

    def walk(self, below: str = ".") -> Iterator[tuple[str, os.stat_result]]:
        """Yield all names below a directory, and what they stand for; what goes away meanwhile is left out."""
        left = [below]
        while left:
            directory, entries = left.pop(), list[tuple[str, os.stat_result]]()
            with contextlib.suppress(FileNotFoundError, PermissionError), self._opened(directory) as fd:
                entries = _statuses(fd)
            for name, status in entries:
                path = name if directory == "." else f"{directory}/{name}"
                if stat.S_ISDIR(status.st_mode):
                    left.append(path)
                yield path, status

    def _list(self, name: str) -> list[tuple[str, int]]:
        """Return the names in a directory, and the kind of each as `stat` has it; those of files need not be exact."""
        with self._opened(name) as fd:
            return _entries(fd)

    @contextlib.contextmanager
    def _opened(self, directory: str) -> Iterator[int]:
        """Yield the descriptor of a directory, to list what is in it."""
        with self._in(directory if directory == "." else f"{directory}/.") as (fd, last):
            opened = os.open(last, os.O_RDONLY | _CAREFUL | os.O_DIRECTORY, dir_fd=fd)
            try:
                yield opened
            finally:
                os.close(opened)

    def remove_directory(self, name: str) -> None:
        """Remove a directory with all that is in it, if it is there; links in it are removed, and not followed."""
        with contextlib.suppress(FileNotFoundError):
            if not self.is_directory(name):
                raise CorruptionError(f"{self.root / name} is no directory; a link in its place is not followed")
            import shutil  # not needed to look into a store, and slow to import

            try:
                with self._in(name) as (fd, last):
                    shutil.rmtree(last, dir_fd=fd)
            except RecursionError:
                raise CorruptionError(f"{self.root / name} has directories in each other, deeper than any store has") from None

    def is_in_place(self) -> bool:
        """Return whether the directory is still the one at its path: not moved, removed, or replaced by another.

        An OSError where that cannot be known, such as that there is no file descriptor left.
        """
        try:
            if self._within is None:
                status = os.stat(self._real)
            elif self._within[0].is_in_place():
                status = self._within[0].stat(self._within[1])
            else:
                return False
            return os.path.samestat(os.fstat(self._descriptor()), status)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise

    def require_place(self) -> None:
        """Raise a NotAStoreError where the directory was moved, removed or replaced: whatever is at its path is another."""
        if not self.is_in_place():
            raise NotAStoreError(
                f"{self.root} was moved, removed or replaced since it was opened. Open the store where it is now"
            )

    def outermost(self) -> Files:
        """Return the files of the topmost directory, of which this is one below another."""
        return self if self._within is None else self._within[0].outermost()

    # Looking

    def stat(self, name: str) -> os.stat_result:
        """Return what is known of a name; of a link, not of what it leads to."""
        with self._in(name) as (fd, last):
            return os.lstat(last, dir_fd=fd)

    def stamp(self, name: str) -> tuple[int, ...]:
        """Return what changes when anything in a directory is made, removed or replaced: numbers, and two times, in nanoseconds.

        What is written to a file does not show. Nothing where the directory is missing.
        """
        try:
            status = self.stat(name) if self._within else os.stat(f"{self._real}/{name}")
        except OSError:
            return ()
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns

    def exists(self, name: str) -> bool:
        """Return whether there is something of that name."""
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def is_directory(self, name: str) -> bool:
        """Return whether a name is a directory's; a FileNotFoundError where there is nothing."""
        return stat.S_ISDIR(self.stat(name).st_mode)

    # Files

    def create(self, name: str, size: int, *, reserve: bool) -> int:
        """Create a file of `size` zeros, in place of an old one, and return its descriptor, for reading and writing.

        With `reserve`, its space on the disk is taken now: a store through a map to a page that the disk has no room for is
        SIGBUS, not an error, so what is written through maps must be reserved.
        """
        with self._in(name) as (at, last):
            try:
                fd = os.open(last, _NEW, 0o666, dir_fd=at)
            except FileExistsError:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(last, dir_fd=at)  # never cut short: somebody may have it mapped
                fd = os.open(last, _NEW, 0o666, dir_fd=at)
        try:
            self._dropped.discard(_number(os.fstat(fd)))
            if reserve and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            elif reserve:
                os.write(fd, bytes(size))
            else:
                os.ftruncate(fd, size)
        except OSError as error:
            os.close(fd)
            with contextlib.suppress(OSError):
                self.remove(name)
            _put_path(error, str(self.root / name))
            raise
        return fd

    def open(self, name: str) -> int:
        """Open a file that must be there for reading and writing; return the descriptor."""
        return self._open_present(name, os.O_RDWR)

    def read(self, name: str, most: int = SMALL) -> bytes:
        """Return the contents of a small file; a CorruptionError where it has more than `most` bytes."""
        fd = self._open(name, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            if size > most:
                raise CorruptionError(f"{self.root / name}: expected {most:,} bytes at most, found {size:,}; is it another file?")
            return os.read(fd, size)
        finally:
            os.close(fd)

    def read_from(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """Yield a file's bytes from one offset to another, or to its end, block by block."""
        fd = self._open(name, os.O_RDONLY)
        try:
            while begin < end and (data := os.pread(fd, min(_BLOCK, end - begin), begin)):
                yield data
                begin += len(data)
        finally:
            os.close(fd)

    def truncate(self, name: str, size: int) -> None:
        """Cut a file short, which nobody may have mapped."""
        fd = self._open(name, os.O_RDWR)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def pwrite(self, fd: int, data: Any, offset: int) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data).cast("B")
        while len(view):
            try:
                n = os.pwrite(fd, view, offset)
            except OSError as error:
                _put_path(error, _name_of(fd))
                raise
            view, offset = view[n:], offset + n

    def sync(self, name: str) -> None:
        """Sync a file's, or a directory's, contents to the disk; what is not there any more needs none.

        Once that has failed for a file it fails for ever: a second attempt would succeed, and what the first one dropped not be
        on the disk.
        """
        try:
            fd = self._open(name, os.O_RDONLY, directory=True)
        except FileNotFoundError:
            return
        status = os.fstat(fd)
        try:
            if _number(status) in self._dropped and stat.S_ISREG(status.st_mode):  # a directory may have got the number of a file
                raise OSError(errno.EIO, "an earlier sync of this file failed; open the store again, and check it")
            os.fsync(fd)
        except OSError as error:
            if error.errno in _DROPPED and stat.S_ISREG(status.st_mode):
                self._dropped.add(_number(status))
            _put_path(error, str(self.root / name))
            raise
        finally:
            os.close(fd)

    def begin_sync(self, fd: int) -> None:
        """Ask the system to start writing an open file to the disk, where it can; only `sync` ensures that it is there."""
        if hasattr(_libc, "sync_file_range"):
            _libc.sync_file_range(fd, 0, 0, _WRITE_OUT)  # if that fails, so will `sync`

    def sync_all(self, names: Iterable[str]) -> None:
        """Sync many files to the disk, some at a time: file systems with a journal take little longer than for one.

        As long as that takes no time, as in memory, there are no threads: to start them would take longer. At the end of the
        process there can be none.
        """
        left = iter(names)
        for name in left:
            begun = time.perf_counter()
            self.sync(name)
            if time.perf_counter() - begun > _NO_TIME and not getattr(_this_thread, "has_time", False):
                break
        rest = list(left)
        if not rest:
            return
        try:
            threads.do_all(self.sync, rest, _AT_ONCE, "diskbuffer-sync")
        except RuntimeError:  # the interpreter exits: what `sync` raises are others
            for name in rest:
                self.sync(name)

    def rename(self, old: str, new: str) -> None:
        """Put a file in another's place, at once."""
        beside = os.path.dirname(new) == os.path.dirname(old)
        with (
            self._in(new) as (target_fd, last),
            contextlib.nullcontext((target_fd, self._parts(old)[-1])) if beside else self._in(old) as (source_fd, first),
        ):
            try:
                os.replace(first, last, src_dir_fd=source_fd, dst_dir_fd=target_fd)
            except OSError as error:
                error.filename2 = str(self.root / new)
                raise

    def remove(self, name: str) -> None:
        """Remove a file, or a link itself, if it is there."""
        with contextlib.suppress(FileNotFoundError), self._in(name) as (fd, last):
            os.unlink(last, dir_fd=fd)

    def link(self, other: Files, name: str, new: str) -> bool:
        """Give a file of another directory, `name` there, a name here, too; return False where the file systems cannot."""
        self.remove(new)
        status = other.stat(name)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptionError(f"{other.root / name} is no file; a store has files and directories, and nothing else")
        with other._in(name) as (source_fd, first), self._in(new) as (target_fd, last):
            try:
                os.link(first, last, src_dir_fd=source_fd, dst_dir_fd=target_fd, follow_symlinks=False)
            except OSError as error:
                if error.errno in _NO_LINK:
                    return False
                raise
        if _number(status) not in other._dropped:
            self._dropped.discard(_number(status))
        return True

    def copy(self, other: Files, name: str, new: str, *, reserve: bool) -> None:
        """Copy a file of another directory, `name` there, in place of an old one.

        Holes are not copied; with `reserve` there are none, as of a file that is written to through maps.
        """
        source = other._open(name, os.O_RDONLY)
        try:
            size = os.fstat(source).st_size
            fd = self.create(new, size, reserve=reserve)
            try:
                for begin, end in [(0, size)] if reserve else _data_of(source, size):
                    for at in range(begin, end, _BLOCK):
                        self.pwrite(fd, os.pread(source, min(_BLOCK, end - at), at), at)
            finally:
                self.close(fd)
        finally:
            os.close(source)

    def replace_contents(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file so that readers see the old contents or the new; with `sync`, a power loss, too, leaves one.

        Where the disk fails, the old ones: with `sync`, also where it is the directory's sync that fails.
        """
        temporary = f"{name}.{uuid.uuid4().hex[:8]}.tmp"
        fd = self.create(temporary, len(data), reserve=False)
        try:
            try:
                self.pwrite(fd, data, 0)
            finally:
                self.close(fd)
            if sync:
                self.sync(temporary)
                self._rename_synced(temporary, name)
            else:
                self.rename(temporary, name)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise

    def _rename_synced(self, new: str, name: str) -> None:
        """Put a file in another's place, and sync that; where this fails, put the other one back."""
        old, has_old = f"{new[: -len('.tmp')]}.old.tmp", False
        with contextlib.suppress(FileNotFoundError, CorruptionError):  # what is no file is not put back
            has_old = self.link(self, name, old)
        try:
            self.rename(new, name)
            try:
                self.sync(os.path.dirname(name) or ".")
            except BaseException:
                if has_old:
                    self.rename(old, name)
                raise
        finally:
            with contextlib.suppress(OSError):
                self.remove(old)

    def replace(self, name: str, size: int, data: Any) -> None:
        """Put a file of `size` bytes, `data` and zeros, in place of an old one; its name is not synced yet."""
        temporary = f"{name}.new.tmp"
        fd = self.create(temporary, size, reserve=True)
        try:
            self.pwrite(fd, data, 0)
        finally:
            self.close(fd)
        self.sync(temporary)
        self.rename(temporary, name)

    def create_mapped(self, name: str, size: int) -> Map:
        """Create a file of zeros, whole before it has its name, and map it for writing."""
        temporary = f"{name}.new.tmp"
        fd = self.create(temporary, size, reserve=True)
        try:
            self.rename(temporary, name)
            return self.map_open(fd, size, writable=True)
        finally:
            self.close(fd)

    # Locks

    def open_lock(self, name: str, *, write: bool) -> int:
        """Open a file, or a directory, to lock it; with `write`, a file is made where there is none. Return the descriptor."""
        return self._open(name, os.O_RDWR | os.O_CREAT if write else os.O_RDONLY, directory=not write)

    def lock(self, fd: int, *, exclusive: bool) -> bool:
        """Lock an open file for as long as it is open; return False where others hold it, a LockedError without locks."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                return False
            if error.errno in _NO_LOCKS:
                raise LockedError(
                    f"{self.place} is on a file system without locks ({error}), where two writers could not be told apart",
                    advice="Keep it on a local disk. With mode='r', a store that was closed can be read there",
                ) from error
            raise
        return True

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Lock a file for this process alone, which is made where there is none; a LockedError where others have it for long."""
        fd, until = self.open_lock(name, write=True), time.monotonic() + _PATIENCE
        try:
            while not self.lock(fd, exclusive=True):
                if time.monotonic() > until:
                    raise LockedError(f"{self.root / name} is held by another process for long; which one is it?")
                time.sleep(0.002)
            yield
        finally:
            os.close(fd)

    def unlock(self, fd: int) -> None:
        """Unlock an open file, for other processes that have inherited it, too."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def place_id(self, name: str) -> str:
        """Return numbers that a file keeps while its directory is moved, and no copy of it has; "" where it is missing."""
        try:
            status = self.stat(name)
        except FileNotFoundError:
            return ""
        return f"inode:{status.st_ino} changed:{status.st_ctime_ns}"

    def free_bytes(self) -> int:
        """Return how much room there is on the file system."""
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def boot_id(self) -> str:
        """Return what identifies the time since this machine was started; "" where that is not known."""
        return boot_id()

    def map(self, name: str, size: int, *, writable: bool, random: bool = False) -> Map:
        """Map a file that must have `size` bytes (-1: as many as it has).

        One that is written to through the map has its space on the disk from then on, as `create` takes it: a copy of a store may
        have holes where there were zeros.
        """
        fd = self._open_present(name, os.O_RDWR if writable else os.O_RDONLY)
        try:
            status = os.fstat(fd)
            actual = status.st_size
            if size not in (-1, actual) or actual == 0:
                raise CorruptionError(
                    f"{self.root / name}: expected {size} bytes, found {actual}; the file was cut short or replaced"
                )
            if writable and hasattr(os, "posix_fallocate") and status.st_blocks * 512 < actual:
                try:
                    os.posix_fallocate(fd, 0, actual)
                except OSError as error:
                    _put_path(error, str(self.root / name))
                    raise
            return self.map_open(fd, actual, writable=writable, random=random)
        finally:
            os.close(fd)

    # Names

    def _open_present(self, name: str, flags: int) -> int:
        try:
            return self._open(name, flags)
        except FileNotFoundError:
            raise CorruptionError(f"{self.root / name} is missing; was it removed?") from None

    def _open(self, name: str, flags: int, *, directory: bool = False) -> int:
        """Open a file, or a directory if that may be, that is nothing else: no pipe that would be waited for."""
        with self._in(name) as (at, last):
            fd = os.open(last, flags | _CAREFUL, 0o666, dir_fd=at)
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISREG(mode) or (directory and stat.S_ISDIR(mode))):
            os.close(fd)
            raise CorruptionError(f"{self.root / name} is no file; a store has files and directories, and nothing else")
        return fd

    @contextlib.contextmanager
    def _in(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of the directory that a name is in, and the name there; errors tell of all of it.

        With `make`, directories on the way that are missing are made.
        """
        opened = -1
        try:
            *above, last = self._parts(name) or (".",)
            fd = self._descriptor()
            for part in above:
                before, opened = opened, _open_directory(part, fd, make=make)
                fd = opened
                if before >= 0:  # a signal may come at any call: none is closed twice, as another thread may have it by then
                    os.close(before)
            yield fd, last
        except DiskBufferError:
            raise
        except OSError as error:
            if error.errno in _NOT_OURS:
                raise CorruptionError(
                    f"{self.root / name} is a link or a pipe, or a directory in a file's place, or is in one: a store has files "
                    "and directories of its own, and nothing else"
                ) from error
            if error.errno in _GONE and (outermost := self.outermost())._held:
                outermost.require_place()
            _put_path(error, str(self.root / name))
            raise
        finally:
            if opened >= 0:
                os.close(opened)

    def _parts(self, name: str) -> tuple[str, ...]:
        parts = _split(name)
        if parts is None:
            raise CorruptionError(f"{self.root}: {name!r} is no name in a store")
        return parts

    def _descriptor(self) -> int:
        """Return the descriptor of the directory, which stays open: it is the same one even if it is moved."""
        fd = self._held.get("fd")
        if fd is None:
            if self._within is not None:
                with self._within[0]._in(f"{self._within[1]}/.") as (above, last):
                    opened = os.open(last, _DIRECTORY, dir_fd=above)
            else:
                opened = os.open(self._real, _DIRECTORY)
            fd = self._held.setdefault("fd", opened)
            if fd != opened:  # another thread was first
                os.close(opened)
        return fd

    def map_open(self, fd: int, size: int, *, writable: bool, random: bool = False) -> Map:
        """Map a file that is open; the descriptor is not needed any longer."""
        try:
            return _FileMap(fd, size, writable, random)
        except OSError as error:
            if error.errno in _NO_MAPS:
                raise InputError(
                    f"{self.place} is on a file system whose files cannot be mapped into memory that processes share ({error})",
                    advice="Keep stores on a local disk, and copy one there to read it",
                ) from error
            raise


@contextlib.contextmanager
def one_sync_at_a_time() -> Iterator[None]:
    """Have this thread sync files one after the other: nobody waits for it, and others would wait for what many threads do."""
    _this_thread.has_time = True
    try:
        yield
    finally:
        _this_thread.has_time = False


@functools.lru_cache(1024)
def _split(name: str) -> tuple[str, ...] | None:
    """Return the parts of a name, with a "." at its end for what is in a directory; None where it may lead out of it."""
    parts = [part for part in name.split("/") if part]
    if name.startswith("/") or ".." in parts or "\0" in name:
        return None
    return (*(part for part in parts[:-1] if part != "."), *(part for part in parts[-1:] if part != "." or len(parts) > 1))


def _open_directory(name: str, above: int, *, make: bool) -> int:
    """Open a directory in another one; with `make`, one that is missing is made."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
    return os.open(name, _DIRECTORY, dir_fd=above)  # it may be another's by now, and no directory


def _put_path(error: OSError, path: str | None) -> None:
    """Put the path into an error of the system that is to be raised again; a DiskFullError in its place, where it is that."""
    if error.errno in _FULL:  # no local variable has what is raised here, or it would live until garbage is collected
        raise _disk_full(error.errno, path) from error
    error.filename = path or error.filename


def _disk_full(number: int | None, path: str | None) -> DiskFullError:
    what = "the disk is full" if number == errno.ENOSPC else "the quota of the disk is used up"
    error = DiskFullError(
        f"{what}: no room for {path or 'a file'}. What was added before is kept. Free some space, and call again"
    )
    error.errno = number
    return error


def _number(status: os.stat_result) -> tuple[int, int]:
    """Return what a file is known by, whatever its name."""
    return status.st_dev, status.st_ino


def _name_of(fd: int) -> str | None:
    """Return the path of an open file, for errors; None where the system does not tell."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


def _why_no_memory() -> str:
    """Say which limit a map has met."""
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    if allowed != resource.RLIM_INFINITY:
        return f"this process may have {allowed:,} bytes of address space (ulimit -v), and mapped files count towards it"
    return "vm.max_map_count may be too small for what this process has open"


def _data_of(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data, and no holes; all of it, where the system does not tell."""
    end = 0
    while end < size:
        begin = end
        try:
            begin = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # holes alone from here on
                return
            end = size
        yield begin, end


def _entries(place: int) -> list[tuple[str, int]]:
    with os.scandir(place) as entries:
        return [(entry.name, stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG) for entry in entries]


def _statuses(place: int) -> list[tuple[str, os.stat_result]]:
    statuses = []
    with os.scandir(place) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                statuses.append((entry.name, entry.stat(follow_symlinks=False)))
    return statuses


def files_at(place: Path | Files) -> Files:
    """Return the files of a directory that may have been opened already."""
    return place if isinstance(place, Files) else Files(place)


class Map(Protocol):
    """A file in memory, for as long as this object lives."""

    address: int
    size: int

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """View it as an array, which keeps the map alive."""


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
if hasattr(_libc, "sync_file_range"):
    _libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


class _FileMap(Uncopied):
    """A map that keeps no file descriptor, as Python's own does: a store has thousands, a process 1,024."""

    def __init__(self, fd: int, size: int, writable: bool, random: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            number = ctypes.get_errno()
            hint = f"; {_why_no_memory()}" if number == errno.ENOMEM else ""
            raise OSError(number, f"mmap: {os.strerror(number)}{hint}", _name_of(fd))
        self.address, self.size = int(address), size
        # What numpy makes of this keeps the map alive. A ctypes array would do, too, but leave a type behind for every size.
        self.__array_interface__ = {"data": (self.address, not writable), "shape": (size,), "typestr": "|u1", "version": 3}
        if random:
            _libc.madvise(address, size, mmap.MADV_RANDOM)

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return np.asarray(self).view(dtype).reshape(shape)

    def __del__(self, munmap: Any = _libc.munmap) -> None:  # the modules may be gone when the interpreter exits
        if getattr(self, "address", 0):
            munmap(self.address, self.size)


def boot_id() -> str:
    """Return what identifies the time since this machine was started; "" where that is not known."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if sys.platform == "darwin":
        text, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        if _libc.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
            return text.value.decode()
    return ""
