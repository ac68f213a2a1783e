"""Plans and batches of native code, against windows that plain Python cuts out of each environment's rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numcodecs.blosc
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.index import fields
from diskbuffer.native import jobs
from diskbuffer.native.arrays import address_of
from diskbuffer.native.checksums import checksum_rows
from diskbuffer.reading.gather import structs
from diskbuffer.store.format.codec import BAD_CHECKSUM, BAD_ENTRY, HEADER
from tests.amounts import examples

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
EMPTY, SALT, STREAMS, TAIL_ROWS = -1, 77, 3, 12
FLAT, FLAGS, PACKED, SUMS = range(4)  # columns


def encoded(rows: Bytes) -> bytes:
    """Return a chunk of rows, as `codec.encode` makes it."""
    chunk = numcodecs.blosc.compress(rows.tobytes(), b"lz4", 1, 0, rows.nbytes)
    return bytes(chunk) + int(google_crc32c.value(bytes(chunk))).to_bytes(4, "little")


@dataclass
class World:
    """Rows of three environments, and the files of any number of lanes that they lie in."""

    rng: np.random.Generator
    lanes: int = field(init=False)
    values: list[list[Bytes]] = field(default_factory=list)  # of each column and environment, (positions, row)
    files: list[list[Bytes]] = field(default_factory=list)  # of each column
    shards: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)  # file, lane and chunk: where it is

    def __post_init__(self) -> None:
        rng = self.rng
        self.lanes, self.chunk_rows, self.chunks = int(rng.integers(1, 4)), int(rng.choice([1, 2, 4])), int(rng.integers(1, 5))
        self.segment_rows = self.chunk_rows * self.chunks
        self.row_bytes = [int(rng.choice([1, 4, 8, 16, 20])), 3, int(rng.choice([8, 40, 100])), 8]
        self.lows = rng.integers(0, 2 * self.segment_rows, STREAMS)
        self.heads = self.lows + rng.integers(0, 50, STREAMS)
        bounds = zip(self.lows // self.segment_rows, self.heads // self.segment_rows, strict=True)
        kept = [range(first, last + 1) for first, last in bounds]
        self.n_files = -(-sum(map(len, kept)) // self.lanes)
        numbers = iter(rng.permutation(self.n_files * self.lanes))
        self.slots = [np.array([next(numbers) for _ in segments], np.int64) for segments in kept]
        is_noise = rng.random() < 0.5
        for row_bytes in self.row_bytes[:SUMS]:
            rows = [rng.integers(0, 256 if is_noise else 3, (head + 1, row_bytes), np.uint8) for head in self.heads]
            self.values.append(rows)
        self.values.append([self._sums(stream, rows) for stream, rows in enumerate(self.values[PACKED])])
        for column, row_bytes in enumerate(self.row_bytes):
            self.files.append([np.zeros(self.lanes * self.segment_rows * row_bytes, np.uint8) for _ in range(self.n_files)])
            if column != PACKED:
                for stream, file, lane, row, position in self._rows():
                    at = (lane * self.segment_rows + row) * row_bytes
                    self.files[column][file][at : at + row_bytes] = self.values[column][stream][position]
        self._pack()
        self.tail = np.zeros((STREAMS, TAIL_ROWS, self.row_bytes[PACKED]), np.uint8)
        for stream, packed in enumerate(self.values[PACKED]):
            for position in range(max(0, len(packed) - TAIL_ROWS), len(packed)):
                self.tail[stream, position % TAIL_ROWS] = packed[position]
        self._index()

    def _sums(self, stream: int, rows: Bytes) -> Bytes:
        sums = np.zeros((len(rows), 2), np.uint32)
        first = np.empty(len(rows), np.uint32)
        checksum_rows(SALT, stream, 0, 1, 0, np.array([[address_of(rows), rows.shape[1]]]), first)
        sums[:, 0] = first
        return sums.view(np.uint8)

    def _rows(self) -> Any:
        for stream, (low, head) in enumerate(zip(self.lows, self.heads, strict=True)):
            for position in range(low, head + 1):
                segment, row = divmod(position, self.segment_rows)
                file, lane = divmod(int(self.slots[stream][segment - low // self.segment_rows]), self.lanes)
                yield stream, file, lane, row, position

    def _pack(self) -> None:
        """Put complete chunks into shards, but for some that are in the tail."""
        entries = np.full((self.n_files, self.chunks, self.lanes, 2), EMPTY, np.int64)
        data = [bytearray(self.rng.bytes(int(self.rng.integers(8)) * 16)) for _ in range(self.n_files)]
        for stream, file, lane, row, position in self._rows():
            begin = position - row % self.chunk_rows
            is_first = row % self.chunk_rows == 0 or position == self.lows[stream]
            in_tail = begin > self.heads[stream] - TAIL_ROWS and begin >= self.lows[stream]
            is_whole = begin + self.chunk_rows - 1 <= self.heads[stream]
            if not is_first or (in_tail and (not is_whole or self.rng.random() < 0.5)):
                continue
            rows = np.zeros((self.chunk_rows, self.row_bytes[PACKED]), np.uint8)
            there = self.values[PACKED][stream][begin : begin + self.chunk_rows]
            rows[: len(there)] = there
            chunk = encoded(rows)
            where = len(data[file]), len(chunk)
            entries[file, row // self.chunk_rows, lane] = self.shards[file, lane, row // self.chunk_rows] = where
            data[file] += chunk
        for file, chunks in enumerate(data):
            chunks += bytes(-len(chunks) % 16)
            self.files[PACKED][file] = np.frombuffer(chunks + entries[file].tobytes(), np.uint8).copy()

    def _index(self) -> None:
        self.starts, self.table = list[Int64](), np.zeros((STREAMS, fields.FIELDS), np.int64)
        for stream, (low, head) in enumerate(zip(self.lows.tolist(), self.heads.tolist(), strict=True)):
            begins = np.unique([self.rng.integers(0, low + 1), *self.rng.integers(low, head + 1, 5)])
            self.starts.append(begins[np.searchsorted(begins, low, side="right") - 1 :])
            self.table[stream, [fields.HEAD, fields.LOW, fields.FLOOR, fields.EPISODES]] = head, low, low, len(self.starts[-1])
            self.table[stream, [fields.STARTS, fields.SLOTS]] = address_of(self.starts[-1]), address_of(self.slots[stream])
            self.table[stream, [fields.SEGMENTS, fields.STORE_STREAM]] = len(self.slots[stream]), stream
        places = [[(address_of(file), file.nbytes) for file in files] for files in self.files]
        self.mapped = np.array(places, np.int64)

    def draw(self, n: int) -> Int64:
        """Draw rows: (streams, positions, first and last rows of their episodes)."""
        streams = self.rng.integers(0, STREAMS, n)
        positions = self.rng.integers(self.lows[streams], self.heads[streams] + 1)
        episodes = [int(np.searchsorted(self.starts[s], p, side="right")) for s, p in zip(streams, positions, strict=True)]
        firsts = [self.starts[s][e - 1] for s, e in zip(streams, episodes, strict=True)]
        lasts = [np.append(self.starts[s][1:] - 1, self.heads[s])[e - 1] for s, e in zip(streams, episodes, strict=True)]
        return np.array([streams, positions, firsts, lasts], np.int64)

    def job(self, drawn: Int64, before: int, rows: int, targets: Int64, mapped: Int64 | None = None) -> jobs.Job | None:
        """Return a job of windows around drawn steps; None where one was evicted."""
        made, where = jobs.Job(), self.mapped if mapped is None else mapped
        streams, positions, firsts, lasts = drawn
        complete = made.plan(
            self.table, where, targets, streams, positions, firsts, lasts, before, rows, self.segment_rows, 0, self.lanes
        )
        assert complete is None or (np.diff(made.files()) >= 0).all()  # sorted by where they lie
        if complete is False:
            assert set(made.files().tolist()) <= set(range(self.n_files))
            assert made.find_sources(self.mapped)
        return None if complete is None else made

    def gather(self, drawn: Int64, before: int, rows: int, targets: Int64) -> tuple[int, int, int, tuple[int, ...], int] | None:
        """Gather such windows at once; return where a chunk is damaged."""
        job = self.job(drawn, before, rows, targets)
        assert job is not None
        job.run(scratch(self))
        return job.damage

    def places(self, drawn: Int64) -> list[tuple[int, int, int]]:
        """Return the file, lane and row in which each drawn row lies."""
        found = []
        for stream, position in zip(*drawn[:2].tolist(), strict=True):
            segment, row = divmod(position, self.segment_rows)
            file, lane = divmod(int(self.slots[stream][segment - self.lows[stream] // self.segment_rows]), self.lanes)
            found.append((file, lane, row))
        return found

    def targets(self, out: list[Bytes], skip: int, rows: int, zeros: bool) -> Int64:
        """Describe the columns, (1, columns, TARGET_FIELDS), of which each sample has `rows` rows of its window."""
        targets = np.zeros((1, len(out), structs.TARGET_FIELDS), np.int64)
        for column, array in enumerate(out):
            target = targets[0, column]
            target[[structs.COLUMN, structs.ROW_BYTES, structs.OUT]] = column, self.row_bytes[column], address_of(array)
            target[[structs.SKIP, structs.ROWS, structs.ZEROS, structs.FLAG]] = skip, rows, zeros, column == FLAGS
            target[[structs.LANES, structs.LANE_ROWS, structs.CHECKSUMS]] = self.lanes, self.segment_rows, -1
        packed = targets[0, PACKED]
        packed[[structs.CHUNK_ROWS, structs.CHUNKS]] = self.chunk_rows, self.chunks
        packed[[structs.TAIL, structs.TAIL_ROWS, structs.SALT]] = address_of(self.tail), TAIL_ROWS, SALT
        packed[structs.CHECKSUMS] = SUMS if self.rng.random() < 0.7 else -1
        return targets

    def expected(self, drawn: Int64, before: int, skip: int, rows: int, zeros: bool, into: list[Bytes]) -> None:
        """Fill arrays as a batch is: rows before an episode made up, those behind it left as they are."""
        for sample, (stream, position, first, last) in enumerate(drawn.T.tolist()):
            first = max(first, self.lows[stream])
            for k in range(rows):
                at = position - before + skip + k
                for column, array in enumerate(into):
                    if at <= last:
                        row = self.values[column][stream][max(at, first)]
                        row = (row != 0).astype(np.uint8) if column == FLAGS else row
                        array[sample, k] = 0 if at < first and zeros else row


def scratch(world: World) -> Bytes:
    return np.zeros((2, world.chunk_rows * world.row_bytes[PACKED]), np.uint8)


@given(seed=st.integers(0, 2**32), n=st.integers(0, 40), before=st.integers(0, 5), more=st.integers(1, 30))
@examples(60, 2_000)
def test_batches_are_windows_of_the_environments_rows(seed: int, n: int, before: int, more: int) -> None:
    rng = np.random.default_rng(seed)
    world, zeros, rows = World(rng), bool(rng.integers(2)), before + more
    skip = int(rng.integers(0, before + 1))  # a target has the drawn row, as a batch has, and some of those around it
    own = int(rng.integers(before - skip + 1, rows - skip + 1))
    drawn = world.draw(n)
    batch = [np.full((n, own, row_bytes), 9, np.uint8) for row_bytes in world.row_bytes]
    expected = [array.copy() for array in batch]
    assert world.gather(drawn, before, rows, world.targets(batch, skip, own, zeros)) is None
    world.expected(drawn, before, skip, own, zeros, expected)
    for column in range(len(batch)):
        assert (batch[column] == expected[column]).all(), column


@given(seed=st.integers(0, 2**32), entry=st.sampled_from(["before", "behind", "long", "negative", "overflow"]))
@examples(20, 500)
def test_entries_that_point_out_of_the_file_are_refused(seed: int, entry: str) -> None:
    world = World(np.random.default_rng(seed))
    if not world.shards:
        return
    (file, lane, chunk), (at, size) = list(world.shards.items())[seed % len(world.shards)]
    shard = world.files[PACKED][file]
    end = shard.nbytes - 16 * world.chunks * world.lanes
    wrong = {
        "before": (-2, size),
        "behind": (end + 1, 0),
        "long": (at, end - at + 1),
        "negative": (at, -2),
        "overflow": (at, 2**63 - 1),
    }
    shard[end:].view(np.int64).reshape(world.chunks, world.lanes, 2)[chunk, lane] = wrong[entry]
    drawn = world.draw(60)
    batch = [np.zeros((60, 1, row_bytes), np.uint8) for row_bytes in world.row_bytes]
    damage = world.gather(drawn, 0, 1, world.targets(batch, 0, 1, zeros=False))
    if damage is None:
        assert not any(place[:2] == (file, lane) and place[2] // world.chunk_rows == chunk for place in world.places(drawn))
    else:
        _, reason, target, run, damaged = damage
        assert (reason, target, damaged) == (BAD_ENTRY, PACKED, chunk)
        assert (run[structs.FILE], run[structs.LANE], run[structs.ROW] // world.chunk_rows) == (file, lane, chunk)


def test_damaged_chunks_are_named() -> None:
    hits = 0
    for seed in range(20):
        world = World(np.random.default_rng(seed))
        for (file, _, _), (at, _) in world.shards.items():
            world.files[PACKED][file][at + HEADER] ^= 1
        drawn = world.draw(20)
        batch = [np.zeros((20, 1, row_bytes), np.uint8) for row_bytes in world.row_bytes]  # held as long as it is filled
        targets = world.targets(batch, 0, 1, zeros=False)
        targets[0, PACKED, structs.CHECKSUMS] = -1
        damage = world.gather(drawn, 0, 1, targets)
        hits += damage is not None
        assert damage is None or damage[1:3] == (BAD_CHECKSUM, PACKED)
    assert hits > 10


def test_a_step_that_was_evicted_is_no_plan() -> None:
    world = World(np.random.default_rng(0))
    drawn = world.draw(5)
    drawn[1, 3] = world.lows[drawn[0, 3]] - 1
    batch = [np.zeros((5, 1, row_bytes), np.uint8) for row_bytes in world.row_bytes]
    assert world.job(drawn, 0, 1, world.targets(batch, 0, 1, zeros=False)) is None


def test_arrays_of_another_form_are_refused() -> None:
    world = World(np.random.default_rng(0))
    drawn = world.draw(5)
    targets = world.targets([np.zeros((5, 1, row_bytes), np.uint8) for row_bytes in world.row_bytes], 0, 1, zeros=False)
    elsewhere = targets.copy()
    elsewhere[..., structs.COLUMN] = 4
    wrong: list[tuple[Any, ...]] = [
        (np.array([drawn[0][:-1], *drawn[1:]], object), targets, world.mapped),
        (drawn, targets[..., :-1].copy(), world.mapped),
        (drawn, elsewhere, world.mapped),
        (drawn, targets, world.mapped[..., :1].copy()),
    ]
    for steps, into, mapped in wrong:
        with pytest.raises((ValueError, TypeError), match="expected"):
            world.job(steps, 0, 1, into, mapped)
    job = world.job(drawn, 0, 1, targets)
    assert job is not None
    with pytest.raises(ValueError, match="expected"):
        job.run(scratch(world)[:1])
