"""What a batch takes from a store of more files than a process may map, by ways of reading those that are not mapped.

    python -m bench.mapping [--quick] [--json FILE]

The files are those of `docs/format.md`, one lane each: shards of 4,096 frames (Atari games, LZ4, their index at the end), and
flat columns. They are sparse: only the rows that are drawn are written, and all of them stay in the page cache. A batch is 256
stacks of 4 frames and the frame after them, of two chunks each, verified and decoded by the store's own decoder; or 256 vectors
of 48 floats and the ones after them; with action, reward and two flags of the same rows, each in a file of its own. One thread
plans nothing and reads everything, in compiled code.

A small store of 3,000 files, all of them mapped, is measured in turn with each way of reading one of 300,000, on draws of their
own. At most half of `vm.max_map_count` files are mapped. Times are those of the thread on a processor, as nothing waits for a
disk; of two threads, those of a clock. The ways:

    maps               a file that is not mapped is, in the place of the one that was read longest ago
    reads              no maps: each file is opened, read and closed
    maps, then reads   what was mapped first stays; the others are opened, read and closed
    descriptors        no maps: files stay open and are read; of as many files as the process may have open
    without flags      as maps, then reads; the index says how episodes ended, so the two flags are not read, by either store
    larger flat files  maps, where a flat column has one file for 64 of a shard's

Needs 4 GB of page cache and of disk (--quick: a tenth), and some minutes.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding
import numpy as np
import numpy.typing as npt
from numba import types

from bench.frames import frames
from bench.measure import Report, arguments, in_turn, ratio
from diskbuffer.native import codec
from diskbuffer.native.arrays import address_of
from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import _external, memcpy
from diskbuffer.native.memory import load_i64
from diskbuffer.store.format.codec import bound

Int64 = npt.NDArray[np.int64]

_at, _i32 = types.intp, types.int32
openat = _external(None, "openat", _i32(_i32, _at, _i32, _i32))
close = _external(None, "close", _i32(_i32))
lseek = _external(None, "lseek", _at(_i32, _at, _i32))
pread = _external(None, "pread", _at(_i32, _at, _at, _at))
mmap = _external(None, "mmap", _at(_at, _at, _i32, _i32, _i32, _at))
munmap = _external(None, "munmap", _i32(_at, _at))
llvmlite.binding.add_symbol("diskbuffer_decode", codec.ADDRESSES["decode"])
decode = types.ExternalFunction("diskbuffer_decode", _at(_at, _at, _at, _at, _at, _at))

BATCH, STACK = 256, 4
ROWS, CHUNK = 4096, 4  # of a shard, and of a flat file; of a chunk
FRAME, CHUNK_BYTES, ENTRY = 84 * 84, CHUNK * 84 * 84, 16
INDEX = ROWS // CHUNK * ENTRY
SPAN = 64  # shards for which a larger flat file has the rows
FLAT = {"vector": 192, "action": 48, "reward": 4, "terminated": 1, "truncated": 1, "is_last": 1}
COLUMNS = ("pixels", *FLAT)
KINDS = {"stacks": ("pixels", "action", "reward", "terminated", "truncated"), "vectors": COLUMNS[1:6]}
SMALL, LARGE = 3_000, 300_000
PLACES_SMALL, PLACES_LARGE = 64, 2  # in a shard, from which stacks are drawn
MOST_TIMES = 3.0
ROUNDS, EACH, WARM = 40, 5, 400

# Fields of a column, in what the compiled reader gets.
DIRECTORY, ROW_BYTES, FILES_OF_ROWS, FIRST_FILE, PACKED, NAMES, OUT = range(7)
# Fields of the state of a reader's files.
COUNT, MOST, NEWEST, OLDEST, MISSES = range(5)
MAPS, READS, STAY, DESCRIPTORS = range(4)  # ways


@compiled
def _unlink(links: Any, state: Any, file: int) -> None:
    before, after = links[file, 0], links[file, 1]
    if before >= 0:
        links[before, 1] = after
    else:
        state[NEWEST] = after
    if after >= 0:
        links[after, 0] = before
    else:
        state[OLDEST] = before


@compiled
def _push(links: Any, state: Any, file: int) -> None:
    links[file, 0], links[file, 1] = -1, state[NEWEST]
    if state[NEWEST] >= 0:
        links[state[NEWEST], 0] = file
    else:
        state[OLDEST] = file
    state[NEWEST] = file


@compiled
def _map(columns: Any, j: int, file: int, maps: Any, links: Any, state: Any, way: int) -> int:
    """Return the address of a file, mapped now if need be; 0 where it is to be read."""
    known = columns[j, FIRST_FILE] + file
    if maps[known, 0]:
        if way == MAPS and state[NEWEST] != known:
            _unlink(links, state, known)
            _push(links, state, known)
        return int(maps[known, 0])
    state[MISSES] += 1
    if state[COUNT] == state[MOST]:
        if way == STAY:
            return 0
        oldest = state[OLDEST]
        _unlink(links, state, oldest)
        munmap(maps[oldest, 0], maps[oldest, 1])
        maps[oldest, 0] = 0
        state[COUNT] -= 1
    descriptor = openat(columns[j, DIRECTORY], columns[j, NAMES] + 16 * file, 0, 0)
    size = lseek(descriptor, 0, 2)
    maps[known, 0], maps[known, 1] = mmap(0, size, 1, 1, descriptor, 0), size
    close(descriptor)
    _push(links, state, known)
    state[COUNT] += 1
    return int(maps[known, 0])


@compiled
def _read(columns: Any, draws: Any, begin: int, end: int, maps: Any, links: Any, state: Any, way: int, scratch: int) -> int:
    """Read rows of a batch into all columns; return 0 or what is wrong."""
    wrong = 0
    for j in range(columns.shape[0]):
        row_bytes = columns[j, ROW_BYTES]
        for k in range(begin, end):
            file, row = draws[k, 0] // columns[j, FILES_OF_ROWS], draws[k, 1]
            row += draws[k, 0] % columns[j, FILES_OF_ROWS] * ROWS
            address = _map(columns, j, file, maps, links, state, way) if way in (MAPS, STAY) else 0
            descriptor = 0
            if address == 0:
                if way == DESCRIPTORS:
                    known = columns[j, FIRST_FILE] + file
                    if maps[known, 0] == 0:
                        maps[known, 0] = openat(columns[j, DIRECTORY], columns[j, NAMES] + 16 * file, 0, 0)
                    descriptor = maps[known, 0]
                else:
                    descriptor = openat(columns[j, DIRECTORY], columns[j, NAMES] + 16 * file, 0, 0)
            if columns[j, PACKED]:
                wrong |= _decode_stack(
                    columns[j, OUT] + k * (STACK + 1) * FRAME,
                    address,
                    maps,
                    columns[j, FIRST_FILE] + file,
                    descriptor,
                    row,
                    scratch,
                )
            else:
                n = 2 * row_bytes if j == 0 else row_bytes  # an observation, and the one after it
                target = columns[j, OUT] + k * n
                if address:
                    memcpy(target, address + row * row_bytes, n)
                elif pread(descriptor, target, n, row * row_bytes) != n:
                    wrong |= 1
            if descriptor and way != DESCRIPTORS:
                close(descriptor)
    return wrong


@compiled
def _decode_stack(target: int, address: int, maps: Any, known: int, descriptor: int, row: int, scratch: int) -> int:
    """Decode 5 frames from `row` on, which lie in two chunks, one behind the other in the file."""
    chunk, skipped = row // CHUNK, row % CHUNK
    if address:
        entry = address + maps[known, 1] - INDEX + chunk * ENTRY
        source = address + load_i64(entry)
    else:
        entry = scratch + 2 * CHUNK_BYTES
        size = lseek(descriptor, 0, 2)
        if pread(descriptor, entry, 2 * ENTRY, size - INDEX + chunk * ENTRY) != 2 * ENTRY:
            return 1
        source, n = entry + 2 * ENTRY, load_i64(entry + 8) + load_i64(entry + 24)
        if pread(descriptor, source, n, load_i64(entry)) != n:
            return 1
    first, last = load_i64(entry + 8), load_i64(entry + 24)
    count = CHUNK - skipped
    if skipped == 0:
        wrong = decode(source, first, CHUNK_BYTES, CHUNK_BYTES, target, scratch + CHUNK_BYTES)
    else:
        wrong = decode(source, first, CHUNK_BYTES, CHUNK_BYTES, scratch, scratch + CHUNK_BYTES)
        memcpy(target, scratch + skipped * FRAME, count * FRAME)
    rest = (STACK + 1 - count) * FRAME
    return int(wrong | decode(source + first, last, CHUNK_BYTES, rest, target + count * FRAME, scratch + CHUNK_BYTES))


class Files(NamedTuple):
    """A store's files: a directory for each column and span.

    Attributes
    ----------
    shards : int
        How many shards there are, as many as flat files of each column.
    places : int
        In how many places of each there are rows.
    """

    root: Path
    shards: int
    places: int

    def row(self, shard: Any, place: Any) -> Any:
        """Return the row at which a place begins: a chunk's first."""
        apart = ROWS // self.places
        return place * apart + shard * 2 * CHUNK % apart

    def make(self, chunks: list[bytes]) -> None:
        """Write all files."""
        for column in COLUMNS:
            for span in (1,) if column == "pixels" else (1, SPAN):
                directory = self.root / f"{column}-{span}"
                directory.mkdir(parents=True)
                at = os.open(directory, os.O_RDONLY)
                for file in range(-(-self.shards // span)):
                    descriptor = os.open(f"c.{file}", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=at)
                    (self._shard if column == "pixels" else self._flat)(descriptor, column, file, span, chunks)
                    os.close(descriptor)
                os.close(at)

    def _shard(self, descriptor: int, column: str, shard: int, span: int, chunks: list[bytes]) -> None:
        room = 2 * max(map(len, chunks))
        os.ftruncate(descriptor, size := self.places * room + INDEX)
        for place in range(self.places):
            one, other = (chunks[(shard * self.places + place + k) % len(chunks)] for k in range(2))
            at, chunk = place * room, self.row(shard, place) // CHUNK
            os.pwrite(descriptor, one + other, at)
            entries = np.array([at, len(one), at + len(one), len(other)])
            os.pwrite(descriptor, entries.tobytes(), size - INDEX + chunk * ENTRY)

    def _flat(self, descriptor: int, column: str, file: int, span: int, chunks: list[bytes]) -> None:
        row_bytes = FLAT[column]
        os.ftruncate(descriptor, ROWS * span * row_bytes)
        for k, shard in enumerate(range(file * span, min(self.shards, (file + 1) * span))):
            for place in range(self.places):
                rows = bytes([(shard + place) % 251]) * (2 * CHUNK * row_bytes)
                os.pwrite(descriptor, rows, (k * ROWS + self.row(shard, place)) * row_bytes)


class Reader:
    """A way of reading batches of some columns of a store."""

    def __init__(
        self, files: Files, names: Sequence[str], way: int, most: int, *, span: int = 1, threads: int = 1, shards: int = 0
    ) -> None:
        self._files, self._way, self._threads, self._shards = files, way, threads, shards or files.shards
        self._columns = np.zeros((len(names), 7), np.int64)
        self._kept: list[Any] = []
        first = 0
        for j, column in enumerate(names):
            each = 1 if column == "pixels" else span
            count = -(-files.shards // each)
            paths = np.array([f"c.{file}".encode() for file in range(count)], "S16")
            directory = os.open(files.root / f"{column}-{each}", os.O_RDONLY)
            row_bytes = FLAT.get(column, FRAME)
            out = np.zeros(BATCH * row_bytes * (STACK + 1 if column == "pixels" else 2), np.uint8)
            self._columns[j] = directory, row_bytes, each, first, column == "pixels", paths.ctypes.data, address_of(out)
            self._kept += [paths, out]
            first += count
        self._maps, self._links = np.zeros((first, 2), np.int64), np.zeros((first, 2), np.int64)
        self._state = np.array([0, most, -1, -1, 0])
        self._scratch = [np.zeros(5 * CHUNK_BYTES, np.uint8) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads)
        self.batches = 0

    def __call__(self, numbers: npt.NDArray[np.float64]) -> None:
        """Read a batch of what (BATCH, 3) random numbers say."""
        shard = (numbers[:, 0] * self._shards).astype(np.int64)
        row = self._files.row(shard, (numbers[:, 1] * self._files.places).astype(np.int64)) + (numbers[:, 2] * CHUNK).astype(
            np.int64
        )
        draws, self.batches = np.stack([shard, row], axis=1), self.batches + 1
        if self._threads == 1:
            wrong = [self._part(draws, 0)]
        else:
            wrong = list(self._pool.map(lambda part: self._part(draws, part), range(self._threads)))
        if any(wrong):
            raise RuntimeError("a batch could not be read")

    def _part(self, draws: Int64, part: int) -> int:
        begin, end = BATCH * part // self._threads, BATCH * (part + 1) // self._threads
        scratch = address_of(self._scratch[part])
        return int(_read(self._columns, draws, begin, end, self._maps, self._links, self._state, self._way, scratch))

    @property
    def outputs(self) -> list[bytes]:
        """The last batch."""
        return [out.tobytes() for out in self._kept[1::2]]

    @property
    def misses(self) -> float:
        """The share of looks at a file that found it not mapped, since this was last asked."""
        share = self._state[MISSES] / max(1, self.batches * BATCH * len(self._columns))
        self._state[MISSES] = self.batches = 0
        return float(share)

    def close(self) -> None:
        """Give everything back."""
        for address, size in self._maps[self._maps[:, 0] > 0].tolist():
            os.close(address) if self._way == DESCRIPTORS else munmap_now(address, size)
        for directory in self._columns[:, DIRECTORY].tolist():
            os.close(directory)
        self._pool.shutdown()


@compiled
def munmap_now(address: int, size: int) -> None:
    """Unmap a file."""
    munmap(address, size)


def encoded(n: int) -> list[bytes]:
    """Return chunks of real frames, as a sealed shard has them."""
    pixels = frames(n)
    out, entries = np.zeros(len(pixels) * bound(FRAME), np.uint8), np.zeros((len(pixels) // CHUNK, 2), np.int64)
    codec.encode_chunks(address_of(pixels), 0, pixels.nbytes, CHUNK_BYTES, b"lz4", 1, out, entries)
    return [out[at : at + size].tobytes() for at, size in entries.tolist()]


def main() -> None:
    """Measure, print, and write JSON."""
    given = arguments(__doc__ or "")
    report, rng = Report("mapping", given.seed, quick=given.quick), np.random.default_rng(given.seed)
    part = 10 if given.quick else 1
    most = int(Path("/proc/sys/vm/max_map_count").read_text()) // 2 // part
    descriptors = min(200_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1000) // part
    chunks = encoded(12_000)
    root = Path(tempfile.mkdtemp(prefix="mapping-"))
    try:
        small = Files(root / "small", SMALL // part // len(COLUMNS), PLACES_SMALL)
        large = Files(root / "large", LARGE // part // len(COLUMNS), PLACES_LARGE)
        small.make(chunks)
        large.make(chunks)

        def numbers() -> Any:
            return rng.random((BATCH, 3))

        for kind, columns in KINDS.items():
            some = columns[:3]

            def ways_of(columns: Sequence[str] = columns, some: Sequence[str] = some) -> Iterator[tuple[str, Reader, Reader]]:
                """Yield, of each way, its name, its reader, and the one that it is compared with, open while they are used."""
                yield "maps", Reader(large, columns, MAPS, most), Reader(small, columns, MAPS, most)
                yield "reads", Reader(large, columns, READS, 0), Reader(small, columns, MAPS, most)
                yield "maps, then reads", Reader(large, columns, STAY, most), Reader(small, columns, MAPS, most)
                yield (
                    "reads, 2 threads",
                    Reader(large, columns, READS, 0, threads=2),
                    Reader(small, columns, MAPS, most, threads=2),
                )
                open_files = Reader(large, columns, DESCRIPTORS, 0, shards=descriptors // len(columns))
                yield "descriptors", open_files, Reader(small, columns, MAPS, most)
                yield "larger flat files", Reader(large, columns, MAPS, most, span=SPAN), Reader(small, columns, MAPS, most)
                yield "without flags", Reader(large, some, STAY, most), Reader(small, some, MAPS, most)

            wanted: list[bytes] = []
            for name, reader, base in ways_of():
                for _ in range(WARM):
                    base(numbers())
                    reader(numbers())
                reader.misses  # noqa: B018 (begins to count anew)
                before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
                clock = time.perf_counter if "threads" in name else time.thread_time
                seconds = in_turn(ROUNDS // part or 4, {"base": base, name: reader}, numbers, EACH, clock)
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
                report.times(f"{kind}: 3,000 files, beside {name}", seconds["base"])
                report.times(f"{kind}: 300,000 files, {name}", seconds[name])
                report.row(
                    f"{kind}: {name}, of 3,000 files", ratio(seconds[name], seconds["base"], EACH), "times", at_most=MOST_TIMES
                )
                print(f"       not mapped {reader.misses:.2f}, major faults {faults}")
                if name != "descriptors":  # which draws from some of the files
                    reader(np.random.default_rng(1).random((BATCH, 3)))
                    wanted = wanted or reader.outputs
                    if reader.outputs != wanted[: len(reader.outputs)]:
                        raise RuntimeError(f"{name} reads something else")
                reader.close()
                base.close()
    finally:
        shutil.rmtree(root)
    report.write(given.json)


if __name__ == "__main__":
    main()
