"""The seam to the operating system: every file operation that changes a store goes through a `Files`.

Tests replace it to inject errors, or to record what a crash would leave. Reading is done through maps.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError

MADV_RANDOM = getattr(mmap, "MADV_RANDOM", 1)
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_FOLLOW: dict[str, bool] = {"follow_symlinks": False} if os.link in os.supports_follow_symlinks else {}
_SMALL = 256 * 1024**2  # bytes that metadata may have
_AT_ONCE = 8  # files that are synced at the same time
_BLOCK = 4 * 1024**2  # bytes that are copied at a time
# What tells that a file cannot have another name there: on another device, or in a file system that has no such links.
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class Files:
    """File operations below one directory, by relative name."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make_directory(self, name: str) -> None:
        """Create a directory and its parents."""
        (self.root / name).mkdir(parents=True, exist_ok=True)

    def create(self, name: str, size: int, *, reserve: bool) -> int:
        """Create a file of `size` zeros, in place of an old one, and return its descriptor, for reading and writing.

        With `reserve`, its space on the disk is taken now: a store through a map to a page that the disk has no room for is
        SIGBUS, not an error, so what is written through maps must be reserved.
        """
        self.remove(name)  # and never cut short: somebody may have it mapped
        with self._no_file(name):
            fd = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            if reserve and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            elif reserve:
                os.write(fd, bytes(size))
            else:
                os.ftruncate(fd, size)
        except OSError as error:
            error.filename = error.filename or str(self.root / name)
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(self.root / name)
            raise
        return fd

    def open(self, name: str) -> int:
        """Open for reading and writing; return the descriptor."""
        return self._open(name, os.O_RDWR)

    def read(self, name: str) -> bytes:
        """Return the contents of a small file."""
        fd = self._open(name, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            if size > _SMALL:
                raise CorruptionError(f"{self.root / name}: expected {_SMALL} bytes at most, found {size}; is it another file?")
            return os.read(fd, size)
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
                error.filename = error.filename or _name_of(fd)
                raise
            view, offset = view[n:], offset + n

    def sync(self, name: str) -> None:
        """Bring a file's, or a directory's, contents to the disk; what is not there any more needs none."""
        try:
            with self._no_file(name):
                fd = os.open(self.root / name, os.O_RDONLY | _CAREFUL)
        except FileNotFoundError:
            return
        try:
            os.fsync(fd)
        except OSError as error:
            error.filename = error.filename or str(self.root / name)
            raise
        finally:
            os.close(fd)

    def sync_all(self, names: Iterable[str]) -> None:
        """Bring many files to the disk, some at a time: file systems with a journal take little longer than for one."""
        with ThreadPoolExecutor(_AT_ONCE, "diskbuffer-sync") as pool:
            for _ in pool.map(self.sync, names):
                pass

    def rename(self, old: str, new: str) -> None:
        """Put a file in another's place, at once."""
        with self._no_file(new):
            os.replace(self.root / old, self.root / new)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError), self._no_file(name):
            os.unlink(self.root / name)

    def link(self, other: Files, name: str, new: str) -> bool:
        """Give a file of another directory, `name` there, a name here, too; return False where the file systems cannot."""
        self.remove(new)
        try:
            os.link(other.root / name, self.root / new, **_NO_FOLLOW)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
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

    def remove_directory(self, name: str) -> None:
        """Remove a directory with all that is in it, if it is there; links are not followed."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.root / name)

    def replace_contents(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file so that readers see the old contents or the new; with `sync`, a power loss, too, leaves one."""
        temporary = f"{name}.{uuid.uuid4().hex[:8]}.tmp"
        fd = self.create(temporary, len(data), reserve=False)
        try:
            try:
                self.pwrite(fd, data, 0)
            finally:
                self.close(fd)
            if sync:
                self.sync(temporary)
            self.rename(temporary, name)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        if sync:
            self.sync(os.path.dirname(name) or ".")

    def boot_id(self) -> str:
        """Return what identifies the time since this machine was started; "" where that is not known."""
        with contextlib.suppress(OSError):
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        if sys.platform == "darwin":
            found, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
            if _libc.sysctlbyname(b"kern.bootsessionuuid", found, ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
                return found.value.decode()
        return ""

    def map(self, name: str, size: int, *, writable: bool, random: bool = False) -> Map:
        """Map a file that must have `size` bytes (-1: as many as it has)."""
        try:
            fd = self._open(name, os.O_RDWR if writable else os.O_RDONLY)
        except FileNotFoundError:
            raise CorruptionError(f"{self.root / name} is missing; was it removed?") from None
        try:
            found = os.fstat(fd).st_size
            if size not in (-1, found) or found == 0:
                raise CorruptionError(
                    f"{self.root / name}: expected {size} bytes, found {found}; the file was cut short or replaced"
                )
            return self.map_open(fd, found, writable=writable, random=random)
        finally:
            os.close(fd)

    def _open(self, name: str, flags: int) -> int:
        """Open a file that is nothing else: no link out of the store, no pipe that would be waited for."""
        with self._no_file(name):
            fd = os.open(self.root / name, flags | _CAREFUL)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise CorruptionError(f"{self.root / name} is no file; a store has files and directories, and nothing else")
        return fd

    @contextlib.contextmanager
    def _no_file(self, name: str) -> Iterator[None]:
        """Raise a CorruptionError where there is something else in place of a file or a directory."""
        try:
            yield
        except (IsADirectoryError, NotADirectoryError) as error:
            raise CorruptionError(f"{self.root / name} is a directory, or is in a file; was it replaced?") from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CorruptionError(f"{self.root / name} is a link; a store is read from its own files only") from error
            raise

    def map_open(self, fd: int, size: int, *, writable: bool, random: bool = False) -> Map:
        """Map a file that is open; the descriptor is not needed any longer."""
        return map_file(fd, size, writable, random)


def _name_of(fd: int) -> str | None:
    """Return the path of an open file, for errors; None where the system does not tell."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


def _data_of(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data, and no holes; all of it, where the system does not tell."""
    end = 0
    while end < size:
        begin = end
        if hasattr(os, "SEEK_DATA"):
            try:
                begin = os.lseek(fd, end, os.SEEK_DATA)
                end = os.lseek(fd, begin, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # holes alone from here on
                    return
                end = size
        else:
            end = size
        yield begin, end


class Map(Protocol):
    """A file in memory, for as long as this object lives."""

    address: int
    size: int

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """View it as an array, which keeps the map alive."""


class _PosixMap:
    """A map that keeps no file descriptor, as Python's own does: a store has thousands, a process 1,024."""

    def __init__(self, fd: int, size: int, writable: bool, random: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap: " + os.strerror(ctypes.get_errno()), _name_of(fd))
        self.address, self.size = int(address), size
        # What numpy makes of this keeps the map alive. A ctypes array would do, too, but leave a type behind for every size.
        self.__array_interface__ = {"data": (self.address, not writable), "shape": (size,), "typestr": "|u1", "version": 3}
        if random:
            _libc.madvise(address, size, MADV_RANDOM)

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return np.asarray(self).view(dtype).reshape(shape)

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            _libc.munmap(self.address, self.size)


class _PythonMap:
    def __init__(self, fd: int, size: int, writable: bool, random: bool) -> None:  # noqa: ARG002
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._bytes = np.frombuffer(mmap.mmap(fd, size, access=access), np.uint8)
        self.address, self.size = int(self._bytes.ctypes.data), size

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return self._bytes.view(dtype).reshape(shape)


if sys.platform == "win32":
    map_file = _PythonMap
else:
    map_file = _PosixMap
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    _libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
