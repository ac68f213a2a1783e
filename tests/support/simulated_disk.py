"""A disk that may lose what was not synced: from a trace of file operations to what a power loss can leave.

Of a file, an fsync settles the contents and the size; what was written since is there sector by sector or not, in any order, in
any of its versions. Of a directory, an fsync settles the names; operations on names since are there up to some point in their
order, in each directory on its own. An fsync of a file does not settle its name, nor that of a directory what is in its files.
That is what POSIX allows, and more than what today's file systems do. A sector is written as a whole; while a page that is
mapped is on its way to the disk, words of 8 bytes in it may be old or new.

An fsync that fails (EIO) may be the last that anybody hears of it: Linux takes the pages for clean, and the next fsync succeeds
without having written them, until one is written to again (https://lwn.net/Articles/752063/).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

SECTOR = 512
PAGE = 8  # sectors, which the system writes together
ZEROS = bytes(SECTOR)


@dataclass(frozen=True)
class Write:
    """Sectors of a file have other contents now."""

    file: int
    sectors: dict[int, bytes]
    what: str


@dataclass(frozen=True)
class Size:
    """A file has another size now."""

    file: int
    size: int
    what: str


@dataclass(frozen=True)
class Names:
    """Names in a directory stand for others now, all at once: (name, number of the file or None, whether it is a directory)."""

    directory: int
    changes: tuple[tuple[str, int | None, bool], ...]
    what: str


@dataclass(frozen=True)
class Sync:
    """An fsync of a file or a directory returned. `by` is the function of the library that asked for it."""

    number: int
    what: str
    by: str = ""


@dataclass(frozen=True)
class FailedSync:
    """An fsync of a file failed: the system takes what it did not write for written, and never tries again."""

    number: int
    what: str


Event = Write | Size | Names | Sync | FailedSync


@dataclass(frozen=True)
class Contents:
    """A file: its size, and its sectors that are not all zeros."""

    size: int
    sectors: dict[int, bytes]

    def whole(self) -> bytes:
        """Return all of it."""
        whole = bytearray(-(-self.size // SECTOR) * SECTOR)
        for sector, data in self.sectors.items():
            if sector * SECTOR < self.size:
                whole[sector * SECTOR : (sector + 1) * SECTOR] = data
        return bytes(whole[: self.size])

    def runs(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of sectors that follow each other."""
        numbers, first = sorted(sector for sector in self.sectors if sector * SECTOR < self.size), 0
        for n, sector in enumerate(numbers):
            if n + 1 == len(numbers) or numbers[n + 1] != sector + 1:
                data = b"".join(self.sectors[one] for one in numbers[first : n + 1])
                at = numbers[first] * SECTOR
                yield at, data[: self.size - at]
                first = n + 1


Tree = dict[str, Contents | None]  # by path, directories before what is in them; None is a directory


@dataclass
class _File:
    durable: dict[int, bytes] = field(default_factory=dict)
    durable_size: int = 0
    versions: dict[int, list[bytes]] = field(default_factory=dict)  # since the last sync
    sizes: list[int] = field(default_factory=list)
    dropped: dict[int, list[bytes]] = field(default_factory=dict)  # written before a sync that failed, and perhaps on the disk

    def write(self, sectors: dict[int, bytes]) -> None:
        """Have other contents; a page of which a byte was written to is written whole by the next sync, what was dropped too."""
        for page in {sector // PAGE for sector in sectors} if self.dropped else ():
            for sector in range(page * PAGE, (page + 1) * PAGE):
                self.versions[sector] = [*self.dropped.pop(sector, []), *self.versions.get(sector, [])]
                if not self.versions[sector]:
                    del self.versions[sector]
        for sector, data in sectors.items():
            self.versions.setdefault(sector, []).append(data)

    def fail_to_sync(self) -> None:
        """Drop what was not written yet. Nobody knows how much of it is on the disk."""
        for sector, versions in self.versions.items():
            self.dropped.setdefault(sector, []).extend(versions)
        self.versions = {}

    def pending(self) -> dict[int, list[bytes]]:
        """Return all versions of sectors that may be on the disk beside the one that is, dropped ones first."""
        both = dict(self.dropped)
        for sector, versions in self.versions.items():
            both[sector] = [*both.get(sector, []), *versions]
        return both

    def sync(self) -> None:
        for sector, versions in self.versions.items():
            self.durable[sector] = versions[-1]
        if self.sizes:
            self.durable_size = self.sizes[-1]
        self.versions, self.sizes = {}, []

    @property
    def size(self) -> int:
        return self.sizes[-1] if self.sizes else self.durable_size


@dataclass
class _Directory:
    durable: dict[str, tuple[int, bool]] = field(default_factory=dict)
    pending: list[tuple[tuple[str, int | None, bool], ...]] = field(default_factory=list)

    def after(self, operations: int) -> dict[str, tuple[int, bool]]:
        names = dict(self.durable)
        for changes in self.pending[:operations]:
            for name, number, is_directory in changes:
                if number is None:
                    names.pop(name, None)
                else:
                    names[name] = number, is_directory
        return names

    def sync(self) -> None:
        self.durable, self.pending = self.after(len(self.pending)), []


class Luck:
    """What survives of everything that was not synced, by chance."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._keep = float(rng.choice([0.1, 0.5, 0.9]))
        self._mix = bool(rng.random() < 0.25)  # words within sectors
        self._in_order = bool(rng.random() < 0.3)  # names are all there: most file systems sync them together, and often

    def contents(self, file: _File) -> dict[int, bytes]:
        """Choose versions of sectors."""
        found, how = dict(file.durable), self._rng.random()
        if how < 0.2:
            return found
        if how < 0.45:
            return found | {sector: versions[-1] for sector, versions in file.pending().items()}
        for sector, versions in file.pending().items():
            found[sector] = self._sector([file.durable.get(sector, ZEROS), *versions])
        return found

    def _sector(self, versions: list[bytes]) -> bytes:
        newest = len(versions) - 1
        n = newest if self._rng.random() < self._keep else int(self._rng.integers(newest + 1))
        if n == 0 or not self._mix or self._rng.random() < 0.5:
            return versions[n]
        old, new = (np.frombuffer(versions[m], np.int64) for m in (n - 1, n))
        return np.where(self._rng.random(SECTOR // 8) < 0.5, old, new).tobytes()

    def size(self, file: _File) -> int:
        """Choose a size."""
        sizes, how = [file.durable_size, *file.sizes], self._rng.random()
        if how < 0.65:
            return sizes[-1]
        if how < 0.9:
            return sizes[int(self._rng.integers(len(sizes)))]
        return int(self._rng.integers(min(sizes), max(sizes) + 1))

    def operations(self, directory: _Directory) -> int:
        """Choose how many operations on names are there."""
        how = self._rng.random()
        if self._in_order or how < 0.3:
            return len(directory.pending)
        return 0 if how < 0.5 else int(self._rng.integers(len(directory.pending) + 1))


class Extreme(Luck):
    """All or nothing: of data, and of metadata (sizes and names)."""

    def __init__(self, data: bool, metadata: bool) -> None:
        self._data, self._metadata = data, metadata

    def contents(self, file: _File) -> dict[int, bytes]:
        """Choose the newest sectors, or the synced ones."""
        if not self._data:
            return dict(file.durable)
        return file.durable | {sector: versions[-1] for sector, versions in file.pending().items()}

    def size(self, file: _File) -> int:
        """Choose the newest size, or the synced one."""
        return file.size if self._metadata else file.durable_size

    def operations(self, directory: _Directory) -> int:
        """Choose all operations, or none."""
        return len(directory.pending) if self._metadata else 0


Kind = Literal["random", "nothing", "everything", "data only", "metadata only"]
EXTREMES: dict[Kind, tuple[bool, bool]] = {
    "nothing": (False, False),
    "everything": (True, True),
    "data only": (True, False),
    "metadata only": (False, True),
}


class Disk:
    """The state of a disk after some events of a trace, below the directory `root`."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._files: dict[int, _File] = {}
        self._directories: dict[int, _Directory] = {root: _Directory()}

    def numbers(self) -> dict[str, int]:
        """Return the number of every file and directory that has a name now, by path."""
        found, left = {".": self.root}, [("", self.root)]
        while left:
            prefix, number = left.pop()
            directory = self._directory(number)
            for name, (inside, is_directory) in directory.after(len(directory.pending)).items():
                found[prefix + name] = inside
                if is_directory:
                    left.append((f"{prefix}{name}/", inside))
        return found

    def apply(self, event: Event) -> None:
        """Have an event happen."""
        match event:
            case Write(number, sectors):
                self._file(number).write(sectors)
            case Size(number, size):
                self._file(number).sizes.append(size)
            case Names(number, changes):
                self._directory(number).pending.append(changes)
            case Sync(number):
                if number in self._directories:
                    self._directories[number].sync()
                else:
                    self._file(number).sync()
            case FailedSync(number) if number not in self._directories:
                self._file(number).fail_to_sync()

    def sync_all(self) -> None:
        """Have everything be durable."""
        for file in self._files.values():
            file.sync()
        for directory in self._directories.values():
            directory.sync()

    def _file(self, number: int) -> _File:
        return self._files.setdefault(number, _File())

    def _directory(self, number: int) -> _Directory:
        return self._directories.setdefault(number, _Directory())

    def crash(self, kind: Kind, rng: np.random.Generator) -> Tree:
        """Return what a power loss leaves now."""
        luck = Luck(rng) if kind == "random" else Extreme(*EXTREMES[kind])
        tree: Tree = {}
        self._list(tree, "", self._directory(self.root), luck, {})
        return tree

    def _list(self, tree: Tree, prefix: str, directory: _Directory, luck: Luck, known: dict[int, Contents]) -> None:
        for name, (number, is_directory) in sorted(directory.after(luck.operations(directory)).items()):
            if is_directory:
                tree[prefix + name] = None
                self._list(tree, f"{prefix}{name}/", self._directory(number), luck, known)
                continue
            if number not in known:  # or it is one file with several names
                file = self._file(number)
                sectors = {sector: data for sector, data in luck.contents(file).items() if data != ZEROS}
                known[number] = Contents(luck.size(file), sectors)
            tree[prefix + name] = known[number]


def build(tree: Tree, base: Path) -> None:
    """Make the files and directories of a tree below a directory, which must be there; the same contents are one file."""
    made: dict[int, Path] = {}
    for path, contents in tree.items():
        if contents is None:
            os.mkdir(base / path)
            continue
        if id(contents) in made:
            os.link(made[id(contents)], base / path)
            continue
        made[id(contents)] = base / path
        fd = os.open(base / path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            os.ftruncate(fd, contents.size)
            for offset, data in contents.runs():
                os.pwrite(fd, data, offset)
        finally:
            os.close(fd)
