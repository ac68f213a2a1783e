"""A directory of bounded size that keeps blocks of objects, for any number of processes at once, without locks.

An object has a file as large as itself, with holes where nothing was received yet, and behind it a byte for each block that tells
whether it is there. Blocks are written before their byte is, and those of one version of an object are the same whoever writes
them. A file makes room by being unlinked: maps of it stay what they are, and the space is given back when the last one goes. So
nobody needs to know who reads what; who finds that a file is gone just makes another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
import weakref
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import BucketError
from diskbuffer.runtime import forks
from diskbuffer.store.system.files import Files, Map

Int64 = npt.NDArray[np.int64]
_SUFFIX = ".blocks"
_LOOKS = 32  # the directory is looked through whenever a part of so many of what it may take was written
_LEFT_FREE = 8  # one of so many parts of it is free after room was made


class Blocks:
    """The bytes of an object, as far as its blocks are there; a map.

    Attributes
    ----------
    name : str
        The object's.
    address, size : int
        Of its bytes. The bytes that tell which blocks are there lie behind them, from the next multiple of 8 on.
    gone : bool
        Whether the file has made room for others.
    fresh : bool
        Whether no block was in a file of the cache.
    """

    def __init__(self, name: str, size: int, block: int, memory: npt.NDArray[np.uint8]) -> None:
        self.name, self.size, self.block = name, size, block
        self.address, self._memory = int(memory.ctypes.data), memory
        self.gone = self.fresh = False

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """View the object's bytes as an array."""
        return self._memory[: self.size].view(dtype).reshape(shape)

    def missing(self, begin: int, end: int) -> Int64:
        """Return the blocks that bytes `begin` to `end` lie in and that are not there, (n,)."""
        first, until = begin // self.block, -(-end // self.block)
        behind = behind_of(self.size)
        return first + np.flatnonzero(self._memory[behind + first : behind + until] == 0)

    def write(self, begin: int, data: Any) -> bool:
        """Have whole blocks be there, from byte `begin` on; return False, and do nothing, where that is in vain by now."""
        raise NotImplementedError


class PrivateBlocks(Blocks):
    """Blocks in memory, for a single batch: of a file that made room while the batch was planned, or that was damaged."""

    @classmethod
    def of(cls, known: Blocks, *, empty: bool) -> PrivateBlocks:
        """Return all blocks that some other has, or with `empty` none of them."""
        found = cls(known.name, known.size, known.block, np.zeros_like(known._memory) if empty else known._memory.copy())
        found.fresh = empty
        return found

    def write(self, begin: int, data: Any) -> bool:
        """Copy them."""
        values = np.frombuffer(data, np.uint8)
        self._memory[begin : begin + len(values)] = values
        behind = behind_of(self.size)
        self._memory[behind + begin // self.block : behind - (-(begin + len(values)) // self.block)] = 1
        return True


class _CachedBlocks(Blocks):
    def __init__(self, cache: BlockCache, name: str, key: str, size: int, fd: int) -> None:
        status = os.fstat(fd)
        mapped: Map = cache.files.map_open(fd, status.st_size, writable=False, random=True)
        super().__init__(name, size, cache.block, mapped.array(np.uint8, (status.st_size,)))
        self._cache, self.key, self.number = cache, key, (status.st_dev, status.st_ino)

    def write(self, begin: int, data: Any) -> bool:
        return self._cache.write(self, begin, data)


def behind_of(size: int) -> int:
    """Return where the bytes that tell of blocks lie, from the beginning of the object's bytes on."""
    return -(-size // 8) * 8


class BlockCache:
    """The directory.

    Parameters
    ----------
    directory : Path
        Made where it is not there, for this user alone. Other files in it are left alone.
    most : int
        Bytes that its files may take on the disk.
    block : int
        Bytes of a block.
    """

    def __init__(self, directory: Path, most: int, block: int) -> None:
        self.files, self.block, self._directory, self._most = Files(directory), block, directory, most
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BucketError(f"the cache {directory} cannot be made ({error}); give another as cache= of the Bucket") from error
        self._lock = forks.new_lock()
        self._taken = self._unseen = 0  # bytes when it was looked through last, and those written since
        self._maps: weakref.WeakSet[_CachedBlocks] = weakref.WeakSet()
        self.some_gone = False
        with self._lock:
            self._look(0)

    def map(self, name: str, key: str, size: int) -> Blocks:
        """Map the file of an object, known in the directory by `key`; a new one has no block yet."""
        fd = self._opened(key, size)
        try:
            found = _CachedBlocks(self, name, key, size, fd)
        finally:
            os.close(fd)
        with self._lock:
            self._maps.add(found)
        return found

    def _opened(self, key: str, size: int) -> int:
        count = -(-size // self.block)
        whole = behind_of(size) + count
        while True:
            with contextlib.suppress(FileNotFoundError):
                fd = self.files.open(key + _SUFFIX)
                if os.fstat(fd).st_size == whole:
                    return fd
                os.close(fd)  # somebody has cut it
                self.files.remove(key + _SUFFIX)
            temporary = f"{uuid.uuid4().hex}.tmp{_SUFFIX}"
            with self._room(count):
                fd = self.files.create(temporary, whole, reserve=False)
                try:
                    self.files.pwrite(fd, bytes(count), behind_of(size))  # takes its space: it is read through the map
                    self.files.rename(temporary, key + _SUFFIX)  # in place of one that another process made just now, if need be
                except FileNotFoundError:  # it made room already
                    os.close(fd)
                    continue
                except BaseException:
                    os.close(fd)
                    self.files.remove(temporary)
                    raise
            return fd

    def write(self, blocks: _CachedBlocks, begin: int, data: Any) -> bool:
        """Write whole blocks of a file; return False, and do nothing, where it has made room for others."""
        size = memoryview(data).nbytes
        count = -(-size // self.block)
        with self._room(size), contextlib.suppress(FileNotFoundError):
            fd = self.files.open(blocks.key + _SUFFIX)
            try:
                status = os.fstat(fd)
                if (status.st_dev, status.st_ino) == blocks.number:
                    self.files.pwrite(fd, data, begin)
                    self.files.pwrite(fd, b"\1" * count, behind_of(blocks.size) + begin // self.block)
                    return True
            finally:
                os.close(fd)
        blocks.gone = self.some_gone = True
        return False

    @contextlib.contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Make room for what is written inside."""
        with self._lock:
            self._unseen += size
            if self._unseen > self._most // _LOOKS or self._taken + self._unseen > self._most:
                self._look(size)
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            full = BucketError(
                f"the disk of the cache {self._directory} is full, though the cache may take {self._most:,} bytes of it; make "
                "room there, or give a smaller cache_bytes=, or another cache=, to the Bucket"
            )
            full.errno = error.errno
            raise full from error

    def remove(self, keys: Collection[str]) -> None:
        """Have files that may be damaged not be used any more."""
        for key in keys:
            self.files.remove(key + _SUFFIX)
        with self._lock:
            for blocks in self._maps:
                if blocks.key in keys:
                    blocks.gone = self.some_gone = True

    def look(self, used: list[Blocks]) -> None:
        """See what other processes have done, and tell them what was used since."""
        for blocks in used:
            if isinstance(blocks, _CachedBlocks):
                with contextlib.suppress(FileNotFoundError):
                    os.utime(self._directory / (blocks.key + _SUFFIX))
        with self._lock:
            self._look(0)

    def _look(self, coming: int) -> None:
        """See what is there, and make room for what is coming, if need be: what was used longest ago goes first."""
        known, there = list(self._maps), dict[tuple[int, int], tuple[int, int, str]]()
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        there[status.st_dev, status.st_ino] = (status.st_mtime_ns, status.st_blocks * 512, entry.name)
        taken = sum(size for _, size, _ in there.values())
        if taken + coming > self._most:
            for number, (_, size, name) in sorted(there.items(), key=lambda item: item[1]):
                if taken + coming <= self._most - self._most // _LEFT_FREE:
                    break
                self.files.remove(name)
                del there[number]
                taken -= size
        for blocks in known:
            if blocks.number not in there:
                blocks.gone = self.some_gone = True
        self._taken, self._unseen = taken, coming

    @property
    def taken(self) -> int:
        """Bytes that the directory takes on the disk, as far as this process knows."""
        return self._taken + self._unseen
