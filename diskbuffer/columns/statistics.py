"""Statistics of a column, of what is there now: those of blocks of rows that nothing will change are kept, and only others read.

A block is known by its first row, and by a checksum of the checksums that the store has of its rows. So nothing has to be taken
back where rows are evicted or cleared, or where the store goes back: what is kept counts where it still is of these very rows.
On the disk are the sums of whole segments.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
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
_SAVED_SHARE = 8  # one more segment in so many has all of them saved


class _EvictedError(Exception):
    """Rows were evicted after they were listed."""


class _Segment:
    """What is known of the blocks of a segment, and which of them were there at the last look.

    Attributes
    ----------
    stream : int
    firsts, stops : (blocks,) int64
        Positions of the rows that are there; of none, `firsts` is not less than `stops`.
    lasting : (blocks,) bool
        Which have all their rows, which stay as they are.
    checksums : (blocks,) uint32
        Of these.
    records : (blocks,) records
        Of what was there when a block was read last.
    known : (blocks,) bool
        Which of them are of lasting rows with these checksums.
    total : (1,) record
        Of all of them together.
    summed : int or None
        The checksum of the checksums of which it is, where it is of a whole segment.
    """

    def __init__(self, stream: int, blocks: int, record: np.dtype[Any]) -> None:
        self.stream = stream
        self.firsts, self.stops, self.lasting = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64), np.zeros(blocks, np.bool_)
        self.checksums, self.known, self.records = np.zeros(blocks, np.uint32), self.lasting.copy(), np.zeros(blocks, record)
        self.summed: int | None = None
        self.total: Array = np.zeros(1, record)

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """Which blocks have any rows."""
        return self.firsts < self.stops


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
        self._saved = np.dtype([("segment", "<i8"), ("checksum", "<u4"), ("of", self._places.record("<i8"))])
        self._seed = int(google_crc32c.value(repr((self._saved.descr, self._rows)).encode()))
        self._segments: dict[int, _Segment] = {}
        self._alone = threading.Lock()
        self._new = 0  # sums that are not saved
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
        segments, looks = dict[int, _Segment](), list[_Segment]()
        for stream, start, floor, head in listed:
            if floor < start + size and head >= start:
                key = start * streams + stream
                segment = segments[key] = self._segments.get(key) or self._segment(stream)
                whole = floor <= start and start + size <= head and segment.lasting.all() and segment.summed is not None
                if not (whole and self._store.writable):  # beside a writer, others may be there now
                    self._look(segment, start, floor, head)
                    looks += [segment] if segment.summed is None else []
        tasks = [task for segment in looks for task in self._tasks(segment)]
        do_all(lambda task: self._fill(*task), tasks, self._reader.gatherer.threads, "diskbuffer-statistics")
        for segment in looks:
            self._sum(segment)
        total = self._places.together(self._places.side_by_side([segment.total for segment in segments.values()]))
        self._segments = {} if self._changes else segments
        self._save()
        return total

    def _segment(self, stream: int) -> _Segment:
        return _Segment(stream, self._store.layout.segment_rows // self._rows, self._record)

    def _look(self, segment: _Segment, start: int, floor: int, head: int) -> None:
        """Find out which blocks of a segment are there, and of which the statistics are known."""
        begins = np.arange(start, start + self._store.layout.segment_rows, self._rows)
        ends = begins + self._rows
        segment.firsts, segment.stops = np.maximum(begins, floor), np.minimum(ends, head + 1)
        segment.lasting = (begins >= floor) & (ends <= head) & (not self._changes)  # the newest row is not final yet
        before = segment.checksums
        if segment.lasting.any():
            try:
                segment.checksums = self._checksums(segment.stream, start)
            except _EvictedError:
                segment.stops, segment.lasting[:], self._evicted = segment.firsts, False, True
        segment.known &= segment.lasting & (segment.checksums == before)
        if not (segment.lasting.all() and segment.summed == self._joint(segment.checksums)):
            segment.summed = None

    def _tasks(self, segment: _Segment) -> Iterator[tuple[_Segment, Int64]]:
        """Yield blocks whose statistics are missing, as far as they lie side by side, and are read together."""
        missing = np.flatnonzero(segment.there & ~segment.known)
        begin = 0
        for end in range(1, len(missing) + 1):
            some = missing[begin : end + 1]
            apart = end == len(missing) or some[-1] - some[0] >= len(some)
            if apart or segment.stops[some[-1]] - segment.firsts[some[0]] > self._read_rows:
                yield segment, missing[begin:end]
                begin = end

    def _fill(self, segment: _Segment, blocks: Int64) -> None:
        """Compute the statistics of blocks that lie side by side."""
        first, stop = int(segment.firsts[blocks[0]]), int(segment.stops[blocks[-1]])
        cuts = [*range(first, stop, self._read_rows), stop]  # several only where one block alone has more
        for begin, end in itertools.pairwise(cuts):
            try:
                rows, counting = self._read(segment.stream, begin, end)
            except _EvictedError:
                segment.stops[blocks], segment.lasting[blocks], self._evicted = segment.firsts[blocks], False, True
                return
            for block in blocks.tolist():
                some = slice(max(int(segment.firsts[block]), begin) - begin, int(segment.stops[block]) - begin)
                part = self._places.of_rows(rows[some], counting[some])
                if begin > first:
                    part = self._places.together(self._places.side_by_side([segment.records[block : block + 1], part]))
                segment.records[block] = part[0]

    def _sum(self, segment: _Segment) -> None:
        """Put the statistics of the rows of a segment that are there together; what stays so is known from now on."""
        segment.known |= segment.lasting
        segment.total = self._places.together(segment.records[segment.there])
        if segment.lasting.all():
            segment.summed = self._joint(segment.checksums)
            self._new += 1

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
        most = 2 * int(self._reader.index.table[:, SEGMENTS].sum())  # of which some may have been evicted since
        with contextlib.suppress(OSError, DiskBufferError):
            contents = self._store.files.read(self._file, 8 + self._saved.itemsize * most)
            if len(contents) % self._saved.itemsize == 8 and contents[:8] == self._checksum(contents[8:]):
                for each in np.frombuffer(contents[8:], self._saved)[:, None]:
                    key = int(each["segment"][0])
                    segment = self._segments[key] = self._segment(key % self._store.layout.streams)
                    segment.summed, segment.total = int(each["checksum"][0]), each["of"]

    def _checksum(self, records: bytes) -> bytes:
        return int(google_crc32c.extend(self._seed, records)).to_bytes(8, "little")

    @staticmethod
    def _joint(checksums: npt.NDArray[np.uint32]) -> int:
        return int(google_crc32c.value(checksums.tobytes()))

    def _save(self) -> None:
        """Save sums, once enough are new: they can be computed again, so a full disk and the like are nothing to tell."""
        known = [(key, each.summed, each.total) for key, each in sorted(self._segments.items()) if each.summed is not None]
        if not self._store.writable or self._new * _SAVED_SHARE <= len(known):
            return
        saved = np.zeros(len(known), self._saved)
        for at, (key, summed, total) in enumerate(known):
            saved["segment"][at], saved["checksum"][at], saved["of"][at] = key, summed, total[0]
        records = saved.tobytes()
        with contextlib.suppress(OSError, DiskBufferError), self._store.writing():
            self._store.files.replace_contents(self._file, self._checksum(records) + records, sync=False)
            self._new = 0
