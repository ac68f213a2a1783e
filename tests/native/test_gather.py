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

from diskbuffer.index.index import Index
from diskbuffer.native import gather
from diskbuffer.native.arrays import address_of
from diskbuffer.native.checksums import checksum_rows
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
    like: World | None = None  # another store with rows of the same sizes
    lanes: int = field(init=False)
    values: list[list[Bytes]] = field(default_factory=list)  # of each column and environment, (positions, row)
    files: list[list[Bytes]] = field(default_factory=list)  # of each column
    shards: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)  # file, lane and chunk: where it is

    def __post_init__(self) -> None:
        rng = self.rng
        self.lanes, self.chunk_rows, self.chunks = int(rng.integers(1, 4)), int(rng.choice([1, 2, 4])), int(rng.integers(1, 5))
        self.row_bytes = [int(rng.choice([1, 4, 8, 16, 20])), 3, int(rng.choice([8, 40, 100])), 8]
        if self.like is not None:
            self.chunk_rows, self.chunks, self.row_bytes = self.like.chunk_rows, self.like.chunks, self.like.row_bytes
        self.segment_rows, self.first_file = self.chunk_rows * self.chunks, int(rng.choice([0, 3]))
        self.lows = rng.integers(0, 2 * self.segment_rows, STREAMS)
        self.heads = self.lows + rng.integers(0, 50, STREAMS)
        self.firsts = [self._segments(int(low), int(head)) for low, head in zip(self.lows, self.heads, strict=True)]
        self.n_files = -(-sum(map(len, self.firsts)) // self.lanes)
        numbers = iter(rng.permutation(self.n_files * self.lanes))
        self.numbers = [np.array([next(numbers) for _ in firsts], np.int64) for firsts in self.firsts]
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

    def _segments(self, low: int, head: int) -> Int64:
        """Return where segments begin; some end early, and some end after one row, which the next has again."""
        firsts, mostly_full = [low], self.rng.random() < 0.5
        while firsts[-1] + self.segment_rows <= head or (firsts[-1] < head and self.rng.random() < 0.3):
            is_full = mostly_full and self.rng.random() < 0.8
            rows = self.segment_rows if is_full else int(self.rng.integers(0, self.segment_rows + 1))
            firsts.append(min(head, firsts[-1] + rows))
        return np.array(firsts)

    def _rows(self) -> Any:
        for stream, (low, head) in enumerate(zip(self.lows, self.heads, strict=True)):
            for position in range(low, head + 1):
                segment = int(np.flatnonzero(self.firsts[stream] <= position)[-1])
                file, lane = divmod(int(self.numbers[stream][segment]), self.lanes)
                yield stream, file, lane, position - int(self.firsts[stream][segment]), position

    def _pack(self) -> None:
        """Put complete chunks into shards, but for some that are in the tail."""
        entries = np.full((self.n_files, self.chunks, self.lanes, 2), EMPTY, np.int64)
        data = [bytearray(self.rng.bytes(int(self.rng.integers(8)) * 16)) for _ in range(self.n_files)]
        for stream, file, lane, row, position in self._rows():
            begin = position - row % self.chunk_rows
            is_first = row % self.chunk_rows == 0
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
        self.starts, self.index = list[Int64](), Index(STREAMS, self.segment_rows, 0, self.lanes)
        for stream, (low, head) in enumerate(zip(self.lows.tolist(), self.heads.tolist(), strict=True)):
            begins = np.unique([self.rng.integers(0, low + 1), *self.rng.integers(low, head + 1, 5)])
            self.starts.append(begins[np.searchsorted(begins, low, side="right") - 1 :])
            self.index.add_segments(stream, self.firsts[stream], self.numbers[stream] + self.first_file * self.lanes)
            self.index.start_episodes(stream, self.starts[-1])
            self.index.advance(stream, head, False)
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

    def tables(self) -> list[tuple[Int64, int, int]]:
        return [(self.mapped, self.first_file, self.lanes)]

    def plan(self, drawn: Int64, before: int, rows: int) -> tuple[Int64, Int64]:
        planned = gather.plan(self.index, self.tables(), drawn[0], drawn[1], drawn[2], drawn[3], before, rows)
        assert planned is not None
        runs, sources, complete = planned
        assert complete
        places = runs[:, [gather.FILE, gather.LANE, gather.ROW]].tolist()
        assert places == sorted(places)
        return runs, sources

    def targets(self, out: list[Bytes], skip: int, rows: int, zeros: bool) -> Int64:
        """Describe the columns, (1, columns, TARGET_FIELDS), of which each sample has `rows` rows of its window."""
        targets = np.zeros((1, len(out), gather.TARGET_FIELDS), np.int64)
        for column, array in enumerate(out):
            target = targets[0, column]
            target[[gather.COLUMN, gather.ROW_BYTES, gather.OUT]] = column, self.row_bytes[column], address_of(array)
            target[[gather.SKIP, gather.ROWS, gather.ZEROS, gather.FLAG]] = skip, rows, zeros, column == FLAGS
            target[[gather.LANES, gather.LANE_ROWS, gather.CHECKSUMS]] = self.lanes, self.segment_rows, -1
        packed = targets[0, PACKED]
        packed[[gather.CHUNK_ROWS, gather.CHUNKS]] = self.chunk_rows, self.chunks
        packed[[gather.TAIL, gather.TAIL_ROWS, gather.SALT]] = address_of(self.tail), TAIL_ROWS, SALT
        packed[gather.CHECKSUMS] = SUMS if self.rng.random() < 0.7 else -1
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


@given(
    seed=st.integers(0, 2**32), n=st.integers(0, 40), before=st.integers(0, 5), more=st.integers(1, 30), parts=st.integers(1, 5)
)
@examples(60, 2_000)
def test_batches_are_windows_of_the_environments_rows(seed: int, n: int, before: int, more: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    world, zeros, rows = World(rng), bool(rng.integers(2)), before + more
    skip = int(rng.integers(0, before + 1))  # a target has the drawn row, as a batch has, and some of those around it
    own = int(rng.integers(before - skip + 1, rows - skip + 1))
    drawn = world.draw(n)
    batch = [np.full((n, own, row_bytes), 9, np.uint8) for row_bytes in world.row_bytes]
    expected = [array.copy() for array in batch]
    runs, sources = world.plan(drawn, before, rows)
    targets = world.targets(batch, skip, own, zeros)
    gather.request_pages(targets, runs, sources, 4096)
    assert gather.gather(targets, runs, sources, scratch(world), parts) is None
    world.expected(drawn, before, skip, own, zeros, expected)
    for column in range(len(batch)):
        assert (batch[column] == expected[column]).all(), column


@given(seed=st.integers(0, 2**32), n=st.integers(0, 40), before=st.integers(0, 5), more=st.integers(1, 30))
@examples(40, 1_000)
def test_batches_of_several_stores_are_those_of_each(seed: int, n: int, before: int, more: int) -> None:
    """They have other numbers of lanes, files that begin elsewhere, and the same numbers of segments."""
    rng, rows = np.random.default_rng(seed), before + more
    worlds = [World(rng)]
    worlds += [World(rng, worlds[0]) for _ in range(int(rng.integers(1, 4)))]
    index = Index(len(worlds) * STREAMS, worlds[0].segment_rows, 0)
    for k, world in enumerate(worlds):
        most = int(world.index.newest_segments().max()) + sum(map(len, world.firsts)) + world.lanes * (world.n_files + 3)
        index.take(k * STREAMS, world.index, -1, k, np.arange(most) * len(worlds) + k)
    of = rng.integers(0, len(worlds), n)
    drawn = np.array([worlds[k].draw(1)[:, 0] for k in of], np.int64).reshape(n, 4).T.copy()
    batch = [np.full((n, rows, row_bytes), 9, np.uint8) for row_bytes in worlds[0].row_bytes]
    expected = [array.copy() for array in batch]
    for k, world in enumerate(worlds):
        mine = np.flatnonzero(of == k)
        parts = [array[mine] for array in expected]
        world.expected(drawn[:, mine], before, 0, rows, False, parts)
        for array, part in zip(expected, parts, strict=True):
            array[mine] = part
    drawn[0] += of * STREAMS
    tables = [world.tables()[0] for world in worlds]
    planned = gather.plan(index, tables, drawn[0], drawn[1], drawn[2], drawn[3], before, rows)
    assert planned is not None
    runs, sources, complete = planned
    assert complete
    targets = np.concatenate([world.targets(batch, 0, rows, zeros=False) for world in worlds])
    gather.request_pages(targets, runs, sources, 4096)
    assert gather.gather(targets, runs, sources, scratch(worlds[0]), 3) is None
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
    runs, sources = world.plan(drawn, 0, 1)
    batch = [np.zeros((60, 1, row_bytes), np.uint8) for row_bytes in world.row_bytes]
    targets = world.targets(batch, 0, 1, zeros=False)
    gather.request_pages(targets, runs, sources, 4096)
    damage = gather.gather(targets, runs, sources, scratch(world))
    where = runs[:, [gather.FILE, gather.LANE]], runs[:, gather.ROW] // world.chunk_rows
    is_hit = (where[0] == (world.first_file + file, lane)).all(axis=1) & (where[1] == chunk)
    if damage is None:
        assert not is_hit.any()
    else:
        assert damage[:2] == (BAD_ENTRY, PACKED)
        assert is_hit[damage[2]]
        assert damage[3] == chunk


def test_damaged_chunks_are_named() -> None:
    hits = 0
    for seed in range(20):
        world = World(np.random.default_rng(seed))
        for (file, _, _), (at, _) in world.shards.items():
            world.files[PACKED][file][at + HEADER] ^= 1
        drawn = world.draw(20)
        runs, sources = world.plan(drawn, 0, 1)
        batch = [np.zeros((20, 1, row_bytes), np.uint8) for row_bytes in world.row_bytes]
        targets = world.targets(batch, 0, 1, zeros=False)
        targets[0, PACKED, gather.CHECKSUMS] = -1
        damage = gather.gather(targets, runs, sources, scratch(world), 3)
        hits += damage is not None
        assert damage is None or damage[:2] == (BAD_CHECKSUM, PACKED)
    assert hits > 10


@given(seed=st.integers(0, 2**32), block=st.sampled_from([1, 16, 100]), whole=st.booleans())
@examples(20, 500)
def test_missing_blocks_are_those_that_chunks_lie_in(seed: int, block: int, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    world = World(rng)
    drawn = world.draw(10)
    here = []
    for file, shard in enumerate(world.files[PACKED]):  # behind it, which of its blocks are here
        is_here = rng.integers(0, 2, -(-shard.nbytes // block)).astype(np.uint8)
        here.append(np.concatenate([shard, np.zeros(-shard.nbytes % 8, np.uint8), is_here]))
        world.mapped[PACKED, file, 0] = address_of(here[-1])
    runs, sources = world.plan(drawn, 0, 1)
    targets = world.targets([np.zeros((10, 1, row_bytes), np.uint8) for row_bytes in world.row_bytes], 0, 1, zeros=False)
    has_sums, chunk_bytes = targets[0, PACKED, gather.CHECKSUMS] >= 0, world.chunk_rows * world.row_bytes[PACKED]
    expected = set()
    for run in runs.tolist():
        file, row = run[gather.FILE] - world.first_file, run[gather.ROW]
        at, size = world.shards.get((file, run[gather.LANE], row // world.chunk_rows), (0, 0))
        if has_sums and not whole and size == HEADER + chunk_bytes + 4 and world.chunk_rows > 1:
            at, size = at + HEADER + row % world.chunk_rows * world.row_bytes[PACKED], world.row_bytes[PACKED]
        shard_bytes = world.files[PACKED][file].nbytes
        is_here = here[file][-(-shard_bytes // 8) * 8 :]
        expected |= {
            (PACKED, run[gather.FILE], n) for n in range(at // block, -(-(at + size) // block)) if size and not is_here[n]
        }
    missing = gather.missing_blocks(targets, runs, sources, block, whole)
    assert set(map(tuple, missing.tolist())) == expected


def test_a_step_that_was_evicted_is_no_plan() -> None:
    world = World(np.random.default_rng(0))
    drawn = world.draw(5)
    drawn[1, 3] = world.lows[drawn[0, 3]] - 1
    assert gather.plan(world.index, world.tables(), drawn[0], drawn[1], drawn[2], drawn[3], 0, 1) is None


def test_files_that_are_not_mapped_are_named() -> None:
    world = World(np.random.default_rng(0))
    drawn, mapped = world.draw(5), world.mapped[:, :0].copy()
    planned = gather.plan(world.index, [(mapped, world.first_file, world.lanes)], drawn[0], drawn[1], drawn[2], drawn[3], 0, 1)
    assert planned is not None
    runs, sources, complete = planned
    assert not complete
    assert not sources.any()
    assert gather.find_sources(world.tables(), runs, sources)
    assert (sources == world.mapped[:, runs[:, gather.FILE] - world.first_file].swapaxes(0, 1)).all()


@pytest.mark.parametrize("wrong", range(4))
def test_arrays_of_another_form_are_refused(wrong: int) -> None:
    shapes = [(1, 1, gather.TARGET_FIELDS), (2, gather.RUN_FIELDS), (2, 4, 2)]
    arrays = [np.zeros(shape, np.int64) for shape in shapes]
    what: list[Any] = [*arrays, np.zeros((2, 8), np.uint8)]
    what[wrong] = what[wrong][..., :-1].copy() if wrong < 3 else what[wrong][:1]
    with pytest.raises(ValueError, match="expected"):
        gather.gather(*what)
