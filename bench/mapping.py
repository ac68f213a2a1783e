"""What a batch takes from a store of more files than a process may map: those beyond the bound are read.

    python -m bench.mapping [--quick] [--json FILE]

The files are those of `docs/format.md`, one lane each: shards of 4,096 frames (Atari games, LZ4, their index at the end), and
flat columns. They are sparse: only the rows that are drawn are written, and all of them stay in the page cache. A batch is 256
stacks of 4 frames and the frame after them, of two chunks each, verified and decoded; or 256 vectors of 48 floats and the ones
after them; with action, reward and two flags of the same rows, each in a file of its own. `diskbuffer.storage.maps` maps and
reads files, verified before, and the native gather copies and decodes, all in one thread; nothing is planned.

A small store of 3,000 files, all of them mapped, is measured in turn with each way of reading one of 300,000, on draws of their
own. Times are those of the thread on a processor, as nothing waits for a disk. The ways:

    as it is        half of `vm.max_map_count` files are mapped, and half of the descriptors that a process may have stay open
    without flags   the same; the index says how episodes ended, so the two flags are not read, by either store
    no maps         every file is read, and as many stay open
    nothing open    every file is opened, read and closed

Needs 4 GB of page cache and of disk (--quick: a tenth), and some minutes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from bench.frames import frames
from bench.measure import Report, arguments, in_turn, ratio
from diskbuffer.native import gather
from diskbuffer.native.arrays import address_of
from diskbuffer.schema import Schema
from diskbuffer.storage.format.layout import ENTRY_BYTES, IDENTITY_BYTES, Layout
from diskbuffer.storage.maps import Budget, Maps
from diskbuffer.store.format import codec
from diskbuffer.store.format.encoding import encode_chunks
from diskbuffer.store.system.files import Files

BATCH, STACK, CHUNK = 256, 4, 4
SCHEMA = Schema.of(
    {"obs": db.Column((84, 84), "uint8"), "vector": db.Column((48,), "float32"), "action": db.Column((12,), "float32")}
)
LAYOUT = Layout(SCHEMA, environments=1, segment_rows=4096, chunk_rows={"obs": CHUNK}, tail_rows=8192)
OTHERS = ("action", "reward", "terminated", "truncated")
KINDS = {"stacks": ("obs", STACK + 1), "vectors": ("vector", 2)}  # the column of observations, and its rows of a sample
COLUMNS = ("obs", "vector", *OTHERS)
SMALL, LARGE = 3_000, 300_000
PLACES_SMALL, PLACES_LARGE = 64, 2  # in a file, from which stacks are drawn
MOST_TIMES = 3.0
ROUNDS, EACH, WARM = 40, 5, 60


class Store(NamedTuple):
    """Where so many files of each column are, and in how many places of each there are rows."""

    files: Files
    n: int
    places: int

    def row(self, file: Any, place: Any) -> Any:
        """Return the row at which a place begins: a chunk's first."""
        apart = LAYOUT.segment_rows // self.places
        return place * apart + file * 2 * CHUNK % apart

    def make(self, chunks: list[bytes]) -> None:
        """Write all files."""
        for path in COLUMNS:
            self.files.make_directory(path)
            for file in range(self.n):
                parts = self._shard(file, chunks) if path == "obs" else self._flat(path, file)
                fd = os.open(self.files.root / LAYOUT.data_file(path, file), os.O_CREAT | os.O_WRONLY, 0o600)
                if path != "obs":
                    os.ftruncate(fd, LAYOUT.flat_bytes(path))
                for at, data in parts:
                    os.pwrite(fd, data, at)
                os.close(fd)

    def _shard(self, file: int, chunks: list[bytes]) -> list[tuple[int, bytes]]:
        room = 2 * max(map(len, chunks))
        index, parts = np.full((LAYOUT.chunks("obs"), 2), -1), []
        for place in range(self.places):
            one, other = (chunks[(file * self.places + place + k) % len(chunks)] for k in range(2))
            at, chunk = place * room, self.row(file, place) // CHUNK
            index[chunk : chunk + 2] = (at, len(one)), (at + len(one), len(other))
            parts.append((at, one + other))
        end = -(-self.places * room // ENTRY_BYTES) * ENTRY_BYTES
        return [*parts, (end + IDENTITY_BYTES, index.tobytes())]

    def _flat(self, path: str, file: int) -> list[tuple[int, bytes]]:
        row_bytes = SCHEMA[path].row_bytes
        return [
            (self.row(file, place) * row_bytes, bytes([(file + place) % 251]) * (2 * CHUNK * row_bytes))
            for place in range(self.places)
        ]


class Reader:
    """A way of reading batches of some columns of a store."""

    def __init__(self, store: Store, paths: Sequence[str], rows: int, most_maps: int, most_open: int) -> None:
        self._store, self._paths, budget = store, tuple(paths), Budget()
        budget.most_maps, budget.most_open = most_maps, most_open
        self._maps = Maps(store.files, LAYOUT, lambda path, file: None, 0, store.n, writable=False, budget=budget)
        self._columns = [list(SCHEMA).index(path) for path in paths]
        self._targets = np.zeros((1, len(paths), gather.TARGET_FIELDS), np.int64)
        self.batch = [np.zeros((BATCH, rows if n == 0 else 1, SCHEMA[path].row_bytes), np.uint8) for n, path in enumerate(paths)]
        for target, path, column, out in zip(self._targets[0], paths, self._columns, self.batch, strict=True):
            target[[gather.COLUMN, gather.ROW_BYTES, gather.ROWS, gather.OUT]] = (
                column,
                out.shape[2],
                out.shape[1],
                address_of(out),
            )
            target[[gather.LANES, gather.LANE_ROWS, gather.CHECKSUMS]] = 1, LAYOUT.segment_rows, -1
            target[gather.SKIP] = 0 if out.shape[1] > 1 else rows - 2  # the step's own row is the last but one
            if path in LAYOUT.packed:
                target[[gather.CHUNK_ROWS, gather.CHUNKS]] = CHUNK, LAYOUT.chunks(path)
        self._rows, self._scratch = rows, np.zeros((2, LAYOUT.chunk_bytes("obs")), np.uint8)
        self._read = self._needed = 0

    def __call__(self, numbers: npt.NDArray[np.float64]) -> None:
        """Read a batch of what (BATCH, 3) random numbers say."""
        files = (numbers[:, 0] * self._store.n).astype(np.int64)
        begins = self._store.row(files, (numbers[:, 1] * self._store.places).astype(np.int64))
        runs = np.zeros((BATCH, gather.RUN_FIELDS), np.int64)
        runs[:, gather.FILE], runs[:, gather.ROW] = files, begins + (numbers[:, 2] * CHUNK).astype(np.int64)
        runs[:, gather.COUNT], runs[:, gather.SAMPLE] = self._rows, np.arange(BATCH)
        self._maps.ensure(files, self._paths)
        sources = self._maps.sources[:, files].transpose(1, 0, 2).copy()
        self._read += int((sources[:, self._columns, 0] == 0).sum())
        self._needed += BATCH * len(self._paths)
        memory = self._maps.private(
            sources, self._paths, *(runs[:, k] for k in (gather.FILE, gather.LANE, gather.ROW, gather.COUNT))
        )
        if gather.gather(self._targets, runs, sources, self._scratch) is not None:
            raise RuntimeError("a batch could not be read")
        del memory

    @property
    def share_read(self) -> float:
        """The share of runs of columns that were read, as their files are not mapped, since this was last asked."""
        share, self._read, self._needed = self._read / max(1, self._needed), 0, 0
        return share

    def close(self) -> None:
        """Give everything back."""
        self._maps.close()


def encoded(n: int) -> list[bytes]:
    """Return chunks of real frames, as a live shard has them."""
    pixels = frames(n)
    count, chunk_bytes = len(pixels) // CHUNK, LAYOUT.chunk_bytes("obs")
    out, entries = np.zeros(count * codec.bound(chunk_bytes), np.uint8), np.zeros((count, 2), np.int64)
    encode_chunks(SCHEMA["obs"], address_of(pixels), 0, pixels.nbytes, chunk_bytes, out, entries)
    return [out[at : at + size].tobytes() for at, size in entries.tolist()]


def main() -> None:
    """Measure, print, and write JSON."""
    options = arguments(__doc__ or "")
    report, rng = Report("mapping", options.seed, quick=options.quick), np.random.default_rng(options.seed)
    part = 10 if options.quick else 1
    maps, opened = Budget().most_maps // part, Budget().most_open // part
    ways = {"as it is": (maps, opened), "without flags": (maps, opened), "no maps": (0, opened), "nothing open": (0, 0)}
    chunks = encoded(12_000)
    root = Path(tempfile.mkdtemp(prefix="mapping-"))
    try:
        small = Store(Files(root / "small"), SMALL // part // len(COLUMNS), PLACES_SMALL)
        large = Store(Files(root / "large"), LARGE // part // len(COLUMNS), PLACES_LARGE)
        small.make(chunks)
        large.make(chunks)

        def numbers() -> Any:
            return rng.random((BATCH, 3))

        for kind, (column, rows) in KINDS.items():
            expected: list[npt.NDArray[np.uint8]] = []
            for name, bounds in ways.items():
                paths = (column, *(OTHERS[:2] if name == "without flags" else OTHERS))
                base, reader = Reader(small, paths, rows, maps, opened), Reader(large, paths, rows, *bounds)
                for _ in range(WARM):
                    base(numbers())
                    reader(numbers())
                reader.share_read  # noqa: B018 (begins to count anew)
                seconds = in_turn(ROUNDS // part, {"base": base, name: reader}, numbers, EACH, time.thread_time)
                report.times(f"{kind}: 3,000 files, beside {name}", seconds["base"])
                report.times(f"{kind}: 300,000 files, {name}", seconds[name])
                report.row(
                    f"{kind}: {name}, of 3,000 files", ratio(seconds[name], seconds["base"], EACH), "times", at_most=MOST_TIMES
                )
                print(f"       not mapped {reader.share_read:.2f}")
                reader(np.random.default_rng(1).random((BATCH, 3)))
                expected = expected or reader.batch
                if not all(np.array_equal(one, other) for one, other in zip(expected, reader.batch, strict=False)):
                    raise RuntimeError(f"{name} reads something else")
                reader.close()
                base.close()
    finally:
        shutil.rmtree(root)
    report.write(options.json)


if __name__ == "__main__":
    main()
