"""Statistics of a column, of what is there now: those of blocks of rows that nothing will change are kept, and only others read.

A block is known by its first row, and by a checksum of the checksums that the store has of its rows. So nothing has to be taken
back where rows are evicted or cleared, or where the store goes back: what is kept counts where it still is of these very rows.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from diskbuffer.columns.column_statistics import ColumnStatistics
from diskbuffer.columns.derived import DerivedColumns
from diskbuffer.columns.partial_statistics import Places
from diskbuffer.errors import DiskBufferError
from diskbuffer.index.fields import FLOOR, HEAD, LOW, SEGMENTS
from diskbuffer.index.index import Index
from diskbuffer.native.arrays import address_of
from diskbuffer.native.checksums import checksum_rows
from diskbuffer.reading.batch_reader import until_found
from diskbuffer.runtime.threads import do_all
from diskbuffer.samplers.draws import Draw
from diskbuffer.schema.schema import KEPT, is_observation
from diskbuffer.store.format.sizes import power_of_two

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
FILE = "statistics"
_BLOCK_BYTES, _READ_BYTES = 2**19, 2**22
_BLOCK_VALUES = 8192  # of each place, so that a histogram is small beside what it is of
_FEWEST_ROWS, _MOST_ROWS = 128, 2**16
_LOOKS = 8  # at a store whose writer evicts faster than it is read
_SAVED_SHARE = 8  # one more block in so many has all of them saved


class _EvictedError(Exception):
    """Rows were evicted after they were listed."""


class _Segment:
    """What is known of the blocks of a segment.

    Attributes
    ----------
    checksums : (blocks,) uint32
        Of each block, once its rows stay as they are.
    known : (blocks,) bool
    records : (blocks,) records
    total : record or None
        Of all of them, where all are known, and there.
    """

    __slots__ = ("checksums", "known", "records", "total")

    def __init__(self, blocks: int, record: np.dtype[Any]) -> None:
        self.checksums, self.known = np.zeros(blocks, np.uint32), np.zeros(blocks, np.bool_)
        self.records = np.zeros(blocks, record)
        self.total: Array | None = None


@dataclass(frozen=True)
class _Look:
    """The blocks of a segment that are there at a time.

    Attributes
    ----------
    firsts, stops : (blocks,) int64
        Positions of rows.
    there, lasting : (blocks,) bool
        Which have rows, and which of them stay as they are.
    records : (blocks,) records
    """

    segment: _Segment
    stream: int
    firsts: Int64
    stops: Int64
    there: npt.NDArray[np.bool_]
    lasting: npt.NDArray[np.bool_]
    records: Array


class StatisticsOfColumn:
    """Compute the statistics of a column of an open store; what is known of blocks is kept between calls.

    Parameters
    ----------
    columns : DerivedColumns
        Of the store.
    path : str
        A column of numbers that have an order.
    """

    def __init__(self, columns: DerivedColumns, path: str) -> None:
        self._store, self._reader, self._path = columns.store, columns.reader, path
        layout, column = columns.store.layout, columns.store.layout.schema[path]
        self._places, self._of_steps, self._changes = Places.of(column), not is_observation(path), path in layout.derived
        values = self._places.values
        rows = max(_FEWEST_ROWS, power_of_two(_BLOCK_VALUES // values), power_of_two(_BLOCK_BYTES // column.row_bytes))
        self._rows = min(rows, _MOST_ROWS, layout.segment_rows, power_of_two(2**31 // values))  # a segment's are a power of two
        self._read_rows = max(1, _READ_BYTES // column.row_bytes)
        self._record = self._places.record("<u4")
        self._saved = np.dtype([("segment", "<i8"), ("block", "<i8"), ("checksum", "<u4"), ("of", self._record)])
        self._seed = int(google_crc32c.value(repr((self._saved.descr, self._rows)).encode()))
        self._segments: dict[int, _Segment] = {}
        self._alone = threading.Lock()
        self._new = 0  # blocks that are not saved
        self._evicted = False  # whether a writer elsewhere has evicted some while they were computed
        if not self._changes:
            self._load()

    def compute(self, quantiles: Sequence[float]) -> ColumnStatistics:
        """Return the statistics of what is there now."""
        with self._alone:
            for _ in range(_LOOKS):
                self._evicted = False
                record = self._places.finish(self._compute())
                if record["n"].any() or not self._evicted:
                    break
            return self._result(record, quantiles)

    def _compute(self) -> Array:
        """Return the statistics of what is there, but for what a writer elsewhere evicts meanwhile."""
        streams, size = self._store.layout.streams, self._store.layout.segment_rows
        with self._store.lock:
            index = self._reader.index
            listed = [
                (stream, (low // size + number) * size, floor, head)
                for stream, (head, low, floor) in enumerate(index.table[:, [HEAD, LOW, FLOOR]].tolist())
                for number in range(len(index.slots(stream)))
            ]
        segments, found = dict[int, _Segment](), list[_Look | Array]()
        for stream, start, floor, head in listed:
            if floor < start + size and head >= start:
                key = start * streams + stream
                segment = self._segments.get(key)
                if segment is None:
                    segment = _Segment(size // self._rows, self._record)
                segments[key] = segment
                whole = floor <= start and start + size <= head
                if segment.total is not None and whole and self._store.writable:  # else, another may have put other rows there
                    found.append(segment.total)
                else:
                    try:
                        found.append(self._look(segment, stream, start, floor, head))
                    except _EvictedError:
                        self._evicted = True
        self._segments = {} if self._changes else segments
        tasks = [task for look in found if isinstance(look, _Look) for task in self._tasks(look)]
        do_all(lambda task: self._fill(*task), tasks, self._reader.gatherer.threads, "diskbuffer-statistics")
        parts = [self._total(look) if isinstance(look, _Look) else look for look in found]
        self._save()
        return self._places.together(self._places.side_by_side(parts))

    def _look(self, segment: _Segment, stream: int, start: int, floor: int, head: int) -> _Look:
        """Find out which blocks of a segment are there, and of which the statistics are known."""
        size = self._store.layout.segment_rows
        begins = np.arange(start, start + size, self._rows)
        ends = begins + self._rows
        lasting = (begins >= floor) & (ends <= head) & (not self._changes)  # the newest row is not final yet
        if lasting.any():
            checksums = self._checksums(stream, start)
            segment.known &= checksums == segment.checksums
            segment.checksums[lasting] = checksums[lasting]
        firsts, stops = np.maximum(begins, floor), np.minimum(ends, head + 1)
        return _Look(segment, stream, firsts, stops, firsts < stops, lasting, segment.records.copy())

    def _tasks(self, look: _Look) -> Iterator[tuple[_Look, Int64]]:
        """Yield blocks whose statistics are missing, as far as they lie side by side, and are read together."""
        missing = np.flatnonzero(look.there & ~(look.segment.known & look.lasting))
        begin = 0
        for end in range(1, len(missing) + 1):
            some = missing[begin : end + 1]
            apart = end == len(missing) or some[-1] - some[0] >= len(some)
            if apart or look.stops[some[-1]] - look.firsts[some[0]] > self._read_rows:
                yield look, missing[begin:end]
                begin = end

    def _fill(self, look: _Look, blocks: Int64) -> None:
        """Compute the statistics of blocks that lie side by side."""
        first, stop = int(look.firsts[blocks[0]]), int(look.stops[blocks[-1]])
        cuts = [*range(first, stop, self._read_rows), stop]  # several only where one block alone has more
        for begin, end in itertools.pairwise(cuts):
            try:
                rows, counting = self._read(look.stream, begin, end)
            except _EvictedError:
                look.lasting[blocks] = look.there[blocks] = False
                self._evicted = True
                return
            for block in blocks.tolist():
                some = slice(max(int(look.firsts[block]), begin) - begin, int(look.stops[block]) - begin)
                part = self._places.of_rows(rows[some], counting[some])
                if begin > first:
                    part = self._places.together(self._places.side_by_side([look.records[block : block + 1], part]))
                look.records[block] = part[0]

    def _total(self, look: _Look) -> Array:
        """Return the statistics of the rows of a segment that are there; what stays so is known from now on."""
        segment, new = look.segment, look.lasting & ~look.segment.known
        segment.records[new], segment.known[new] = look.records[new], True
        self._new += int(new.sum())
        total = self._places.together(look.records[look.there])
        segment.total = total if look.lasting.all() else None
        return total

    def _slot(self, index: Index, stream: int, position: int) -> int:
        """Return where a row lies now. The lock must be held."""
        if position // index.segment_rows < int(index.table[stream, LOW]) // index.segment_rows:
            raise _EvictedError
        return index.slot(stream, position)

    def _checksums(self, stream: int, start: int) -> npt.NDArray[np.uint32]:
        """Return a checksum of what the store has of the rows of each block of a segment, but for their values."""
        checksums = np.zeros(self._store.layout.segment_rows // self._rows, np.uint32)

        def compute() -> None:
            slot = self._slot(self._reader.index, stream, start)
            columns = [self._store.values(path, slot) for path in KEPT]
            what = [(address_of(each), each[0].nbytes * self._rows) for each in columns]
            checksum_rows(0, stream, 0, 1, 0, np.array(what, np.int64), checksums)

        with self._store.lock:
            until_found([self._reader], compute)
        return checksums

    def _read(self, stream: int, first: int, stop: int) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Return a column's rows, and which of them count: of observations all, of others those at which something was done."""
        counting = np.ones(stop - first, np.bool_)

        def draw(index: Index) -> Draw:
            slot, at = self._slot(index, stream, first), first % index.segment_rows
            if self._of_steps:
                counting[:] = ~self._store.values("is_last", slot)[at : at + stop - first]
                counting[np.arange(first, stop) >= index.table[stream, HEAD]] = False
            return Draw(*np.array([[stream], [first], [first], [stop]], np.int64))

        rows: Array = self._reader.rows(self._path, draw, 0, stop - first)[0]
        return rows, counting

    def _result(self, record: Array, quantiles: Sequence[float]) -> ColumnStatistics:
        places, (one,) = self._places, record

        def shaped(values: Array) -> Array:
            return values.reshape(places.shape)

        n = np.where(one["n"] > 0, one["n"], np.nan)  # and so is what is divided by it
        at = places.quantiles(record, quantiles)
        return ColumnStatistics(
            count=shaped(one["n"]),
            mean=shaped(np.where(one["n"] > 0, one["mean"], np.nan)),
            std=shaped(np.sqrt(one["squares"] / n)),
            min=shaped(one["min"]),
            max=shaped(one["max"]),
            quantiles={q: shaped(values) for q, values in zip(quantiles, at, strict=True)},
            axis=places.axis,
        )

    # What is kept on the disk: a checksum, and the records. Whatever is not that is computed anew.

    @property
    def _file(self) -> str:
        return f"{self._path}/{FILE}"

    def _load(self) -> None:
        blocks = self._store.layout.segment_rows // self._rows
        most = 2 * int(self._reader.index.table[:, SEGMENTS].sum()) * blocks  # of which some may have been evicted since
        with contextlib.suppress(OSError, DiskBufferError):
            contents = self._store.files.read(self._file, 8 + self._saved.itemsize * most)
            if len(contents) % self._saved.itemsize == 8 and contents[:8] == self._checksum(contents[8:]):
                saved = np.frombuffer(contents[8:], self._saved)
                saved = saved[(saved["block"] >= 0) & (saved["block"] < blocks)]
                keys, begins = np.unique(saved["segment"], return_index=True)
                for key, some in zip(keys.tolist(), np.split(saved, begins[1:]), strict=True):
                    segment = self._segments[key] = _Segment(blocks, self._record)
                    segment.checksums[some["block"]], segment.known[some["block"]] = some["checksum"], True
                    segment.records[some["block"]] = some["of"]

    def _checksum(self, records: bytes) -> bytes:
        return int(google_crc32c.extend(self._seed, records)).to_bytes(8, "little")

    def _save(self) -> None:
        """Save what is known, once enough is new: it can be computed again, so a full disk and the like are nothing to tell."""
        count = sum(int(segment.known.sum()) for segment in self._segments.values()) if self._new else 0
        if not self._store.writable or self._new * _SAVED_SHARE <= count:
            return
        saved = np.zeros(count, self._saved)
        at = 0
        for key, segment in sorted(self._segments.items()):
            blocks = np.flatnonzero(segment.known)
            some = saved[at : at + len(blocks)]
            some["segment"], some["block"], some["checksum"] = key, blocks, segment.checksums[blocks]
            some["of"] = segment.records[blocks]
            at += len(blocks)
        records = saved.tobytes()
        with contextlib.suppress(OSError, DiskBufferError), self._store.writing():
            self._store.files.replace_contents(self._file, self._checksum(records) + records, sync=False)
            self._new = 0
