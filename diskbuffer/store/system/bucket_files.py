"""The files of a store that is in a bucket: a `Files` that can be read, and nothing else.

What is mapped is a file of the cache. It has the blocks that were asked for when it was mapped, at least; `bring` has others be
there, too.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.bucket import Bucket
from diskbuffer.errors import CorruptionError, ReadOnlyError
from diskbuffer.store.system.block_cache import BlockCache, Blocks, PrivateBlocks
from diskbuffer.store.system.files import SMALL, Files, Map
from diskbuffer.store.system.objects import Object, Objects

Int64 = npt.NDArray[np.int64]
_MOST_AT_ONCE = 4 * 1024**2  # bytes of a request, so that much of one file comes in several at once
_FRESH = 1.0  # seconds for which a list of all objects is taken for true


class BucketFiles(Files):
    """Files below a path in a bucket.

    Parameters
    ----------
    bucket : Bucket
    within : (BucketFiles, str), optional
        What they are a directory of.
    """

    def __init__(self, bucket: Bucket, *, within: tuple[BucketFiles, str] | None = None) -> None:
        self.root, self._bucket = bucket, bucket  # type: ignore[assignment]  # errors name files by it, as they do by a path
        self._held, self.block_bytes = {}, bucket.block_bytes
        if within is None:
            self._expected: dict[str, Blocks] = {}  # by name, from the topmost directory on
            self._maps: weakref.WeakValueDictionary[int, Blocks] = weakref.WeakValueDictionary()
            self._above, self._objects = "", Objects(bucket)
            self.cache = BlockCache(bucket.cache, bucket.cache_bytes, bucket.block_bytes)
            self._listed, self._there = time.monotonic(), self._objects.list_all()
        else:
            above, name = within
            self._expected, self._maps = above._expected, above._maps  # what is asked for in one is there in the other
            self._above, self._objects, self.cache = f"{above._above}{name}/", above._objects, above.cache
            self._listed, self._there = above._listed, _below(above._there, name)
        self._directories = {".", *(str(parent) for name in self._there for parent in PurePosixPath(name).parents)}

    def below(self, name: str) -> BucketFiles:
        """Return the files of a directory in this one."""
        return BucketFiles(self._bucket, within=(self, name))

    def anew(self) -> Files:
        """Return these: what is at the path must not become another store."""
        return self

    def end_threads(self) -> None:
        """End the threads that make requests, for all directories of the bucket: these share them."""
        self._objects.close()

    def figures(self) -> dict[str, int]:
        """Return what was asked of the bucket, and what the cache takes."""
        objects = self._objects
        return {"requests": objects.requests, "bytes_received": objects.received, "cache_bytes": self.cache.taken}

    # Looking

    def is_in_place(self) -> bool:
        """Tell whether all objects are those that were there when the store was opened."""
        if time.monotonic() - self._listed < _FRESH:
            return True
        found = self._objects.list_all()
        if self._above:
            found = _below(found, self._above[:-1])
        self._listed = time.monotonic()
        return found == self._there

    def stat(self, name: str) -> os.stat_result:
        """Return what is known of a name: its size; what it takes on the disk is that, too."""
        if name in self._there:
            mode, size = stat.S_IFREG | 0o444, self._there[name].size
        elif name in self._directories:
            mode, size = stat.S_IFDIR | 0o555, 0
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._bucket / (self._above + name))
        number = int.from_bytes(hashlib.sha256((self._above + name).encode()).digest()[:7], "little")
        return os.stat_result((mode, number, 0, 1, 0, 0, size, 0, 0, 0), {"st_blocks": -(-size // 512)})

    def stamp(self, name: str) -> tuple[int, ...]:  # noqa: ARG002
        """Return that nothing is ever replaced: `is_in_place` tells whether that is so."""
        return ()

    def walk(self, below: str = ".") -> Iterator[tuple[str, os.stat_result]]:
        """Yield all names below a directory, and what they stand for."""
        for name in [*self._directories - {"."}, *self._there]:
            if below == "." or name.startswith(f"{below}/"):
                yield name, self.stat(name)

    def _list(self, name: str) -> list[tuple[str, int]]:
        self.stat(name)
        above = "" if name == "." else f"{name}/"
        every = [*self._directories - {"."}, *self._there]
        inside = [one.removeprefix(above) for one in every if one.startswith(above)]
        return [(one, self.stat(above + one).st_mode) for one in inside if "/" not in one]

    # Files

    def read(self, name: str) -> bytes:
        """Return the contents of a small file."""
        size = self.stat(name).st_size
        if size > SMALL:
            raise CorruptionError(f"{self._bucket / name}: expected {SMALL} bytes at most, found {size}; is it another file?")
        return self.map(name, size, writable=False).array(np.uint8, (size,)).tobytes() if size else b""

    def open_lock(self, name: str, *, write: bool) -> int:  # noqa: ARG002
        """Find no lock: nobody writes to a bucket."""
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._bucket / name)

    def boot_id(self) -> str:
        """Return that nothing is known of the machine that wrote what is there."""
        return ""

    def _in(self, name: str) -> Any:  # noqa: ARG002
        """Refuse all that is done with files of a directory."""
        raise ReadOnlyError(f"{self._bucket} is in a bucket, which can be read only; copy it to a directory to write to it")

    # Maps

    def map(self, name: str, size: int, *, writable: bool, random: bool = False, last: int | None = None) -> Map:
        """Map an object that must have `size` bytes (-1: as many as it has), with its last bytes, or all, there.

        Pages are read one at a time, with `random` or without.
        """
        del random
        known = self._there.get(name)
        if known is None:
            raise CorruptionError(f"{self._bucket / (self._above + name)} is missing; was it copied?")
        if size not in (-1, known.size) or known.size == 0:
            raise CorruptionError(
                f"{self._bucket / (self._above + name)}: expected {size} bytes, found {known.size}; it was cut short or replaced"
            )
        if writable:
            raise ReadOnlyError(f"{self._bucket} is in a bucket, which can be read only")
        blocks = self._expected.pop(self._above + name, None) or self._cached(name)
        return self.bring([(blocks, _at_the_end(blocks, last))])[0]

    def expect(self, names: Iterable[tuple[str, int | None]]) -> None:
        """Have the last bytes of files, or all of them, be there before they are mapped: many at a time."""
        there, expected = self._there, self._expected
        wanted = {name: last for name, last in names if name in there and there[name].size and self._above + name not in expected}
        if wanted:
            found = [(self._cached(name), last) for name, last in wanted.items()]
            brought = self.bring([(blocks, _at_the_end(blocks, last)) for blocks, last in found])
            expected.update(zip((self._above + name for name in wanted), brought, strict=True))

    def _cached(self, name: str) -> Blocks:
        known = self._there[name]
        return self.cache.map(self._above + name, self._key(name, known), known.size)

    def _key(self, name: str, known: Object) -> str:
        """Return what an object's file in the cache is known by: another version has another one."""
        where = [self._objects.endpoint, self._bucket.url, self._above + name]
        what = [known.version, str(known.size), str(self.block_bytes)]
        return hashlib.sha256("\n".join(where + what).encode()).hexdigest()[:40]

    # Blocks

    def bring(self, wanted: Sequence[tuple[Blocks, Int64]]) -> list[Blocks]:
        """Have some blocks of each of some maps be there, and return the maps.

        Where a file has made room meanwhile, it is another one, in memory.
        """
        tasks: list[tuple[int, int, int]] = [
            (n, *part) for n, (blocks, numbers) in enumerate(wanted) for part in _parts(blocks, numbers)
        ]

        def ask(task: tuple[int, int, int]) -> Any:
            blocks, begin, end = wanted[task[0]][0], *task[1:]
            data = self._objects.get(blocks.name, self._there[blocks.name.removeprefix(self._above)], begin, end)
            return None if blocks.write(begin, data) else data

        brought = [blocks for blocks, _ in wanted]
        for (n, begin, _), data in zip(tasks, self._objects.each(ask, tasks), strict=True):
            if data is not None:
                if brought[n] is wanted[n][0]:
                    brought[n] = PrivateBlocks.of(brought[n], empty=False)
                brought[n].write(begin, data)
        for blocks in brought:
            self._maps[blocks.address] = blocks
        return brought

    def need(self, mapped: Map, begin: int, size: int) -> Map:
        """Return a map, or another in its place, in which some bytes are there."""
        if not isinstance(mapped, Blocks):
            return mapped
        return self.bring([(mapped, mapped.missing(begin, begin + size))])[0]

    def mapped_at(self, address: int) -> Blocks:
        """Return the map that begins at an address, which somebody must be holding."""
        return self._maps[address]

    def renewed(self, blocks: Blocks, last: int) -> Blocks | None:
        """Return a map in place of one that is damaged, with its last bytes; None where it came from the bucket just now."""
        if blocks.fresh:
            return None
        name = blocks.name.removeprefix(self._above)
        self.cache.remove({self._key(name, self._there[name])})
        private = PrivateBlocks.of(blocks, empty=True)
        return self.bring([(private, _at_the_end(private, last))])[0]

    def mistrust(self, name: str) -> None:
        """Have a file come from the bucket once more when it is mapped next, as what is in the cache may be damaged."""
        self._expected.pop(self._above + name, None)
        if name in self._there:
            self.cache.remove({self._key(name, self._there[name])})

    def mistrust_all(self) -> None:
        """Have all files come from the bucket once more."""
        self._expected.clear()
        self.cache.remove({self._key(name, known) for name, known in self._there.items()})

    def is_gone(self, mapped: Map) -> bool:
        """Tell whether a map's file has made room for others, and its space waits for the map to go."""
        return isinstance(mapped, Blocks) and mapped.gone

    def take_gone(self) -> bool:
        """Tell whether that holds for some map since this was asked last."""
        found, self.cache.some_gone = self.cache.some_gone, False
        return found


def files_of(place: Path | Bucket) -> Files:
    """Return the files at a place."""
    return BucketFiles(place) if isinstance(place, Bucket) else Files(place)


def _below(objects: dict[str, Object], name: str) -> dict[str, Object]:
    return {one.removeprefix(f"{name}/"): known for one, known in objects.items() if one.startswith(f"{name}/")}


def _at_the_end(blocks: Blocks, last: int | None) -> Int64:
    """Return which blocks of a map's last bytes, or of all, are missing."""
    return blocks.missing(0 if last is None else max(0, blocks.size - last), blocks.size)


def _parts(blocks: Blocks, numbers: Int64) -> Iterator[tuple[int, int]]:
    """Yield where consecutive blocks begin and end, in requests that are not too large."""
    most, begin = max(1, _MOST_AT_ONCE // blocks.block), 0
    ends = [*(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
    for end in ends if len(numbers) else ():
        for first in range(begin, end, most):
            until = min(first + most, end)
            yield int(numbers[first]) * blocks.block, min((int(numbers[until - 1]) + 1) * blocks.block, blocks.size)
        begin = end
