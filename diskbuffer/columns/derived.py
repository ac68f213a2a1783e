"""Columns that are computed from others and written back: priorities, values, advantages.

Each is an ordinary flat Zarr array, one file a segment, made when something is first written to it (a chunk that is missing is
zeros, in Zarr as here), and removed with its segment.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import as_array, step_ids
from diskbuffer.errors import EvictedError, InputError, SchemaError
from diskbuffer.index.fields import FLOOR, HEAD
from diskbuffer.native.arrays import address_of
from diskbuffer.native.blocks import scatter
from diskbuffer.reading.batch_reader import BatchReader, until_found
from diskbuffer.reading.recorded_column import OfStore
from diskbuffer.recording.values import fit
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.schema.schema import TAG, Column
from diskbuffer.store.format.checksums import replace_rows
from diskbuffer.store.store import Store

if TYPE_CHECKING:
    from diskbuffer.columns.statistics import StatisticsOfColumn

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
_A_ROW = 16 * 1024  # bytes whose checksum takes as long as what one row changes in it


@dataclass(frozen=True)
class SegmentSteps:
    """Consecutive steps of one stream that lie in one segment, in ascending order; some rows between them are no steps."""

    slot: int
    rows: Int64  # within the segment
    ended: npt.NDArray[np.bool_]  # whether the episode does not go on after a step, as far as it is known


class ColumnSegments(OfStore):
    """A column, segment by segment; it is made when values are first asked for."""

    _store: Store

    def __init__(self, columns: DerivedColumns, name: str, column: Column, check: Callable[[], Any]) -> None:
        super().__init__(columns.store, columns.reader, name, check)
        self._columns, self._column = columns, column

    @property
    def is_there(self) -> bool:
        """Whether the store has the column."""
        return self._name in self._store.layout.derived

    def hold(self, rows: Int64) -> bool:
        """Return whether rows of the store are still those of the index; where some were evicted since, it is read anew."""
        if self._store.writable:  # nobody else evicts
            return True
        try:
            self._store.refuse_evicted(np.unique(rows // self._store.layout.segment_rows))
        except EvictedError:
            self._reader.refresh()
            return False
        return True

    def values(self, slot: int) -> Array:
        """View the values of a segment, to read and to write."""
        self._columns.ensure(self._name, self._column)
        return self._store.derived(self._name, slot)


class DerivedColumns:
    """Write columns of an open store."""

    def __init__(self, store: Store, reader: BatchReader) -> None:
        self._store = self.store = store
        self._reader = self.reader = reader
        self._kept: weakref.WeakValueDictionary[str, ColumnSegments] = weakref.WeakValueDictionary()
        self._in_use: Counter[str] = Counter()  # by passes that are under way
        self.statistics: dict[tuple[int, str], StatisticsOfColumn] = {}  # by process and column

    def check(self, name: str) -> None:
        """Refuse to write to a column that was recorded."""
        if not isinstance(name, str):
            raise InputError(f"a column's name must be a string, found {name!r}")
        schema = self._store.layout.schema
        if name == TAG:
            raise SchemaError("column 'tag' has the numbers of tags; give them with set_tag() of episodes")
        if name in self._kept:
            raise SchemaError(f"column {name!r} belongs to a sampler that is in use; its update() writes to it")
        if name in schema.columns and name not in schema.derived:
            raise SchemaError(f"column {name!r} was recorded with the steps and stays as it is; write to another name")

    def ensure(self, name: str, column: Column) -> None:
        """Add a column, or make sure that the one that is there is such a column."""
        with self._store.lock:
            if not self._fits(name, column):
                self._change_columns(lambda: self._store.add_column(name, column))

    def _change_columns(self, change: Callable[[], None]) -> None:
        """Change which columns the store has. What is read follows in any case: a change may fail when it has been made."""
        with Uninterrupted():
            try:
                change()
            finally:
                self._reader.look_again()

    def _fits(self, name: str, column: Column) -> bool:
        """Return whether a column is there; a SchemaError where it is another, or cannot be."""
        schema = self._store.layout.schema
        if name not in schema.columns:
            schema.with_derived(name, column)
            return False
        if schema[name] != column:
            raise SchemaError(f"column {name!r} is there as {schema[name]}, and {column} was given; give that, or another name")
        return True

    def remove(self, name: str) -> None:
        """Remove a column for good."""
        with self._store.lock:
            schema = self._store.layout.schema
            if name not in schema.columns:
                removable = ", ".join(sorted(schema.derived)) or "none"
                raise SchemaError(f"there is no column {name!r}; those that can be removed are {removable}")
            if name not in schema.derived:
                raise SchemaError(
                    f"column {name!r} was recorded with the steps, and stays with them; only those that were "
                    "written later can be removed"
                )
            if name in self._kept:
                raise SchemaError(f"column {name!r} belongs to a sampler that is in use; delete the sampler first")
            if name in self._in_use:
                raise SchemaError(f"column {name!r} is being written to by map() or returns_and_advantages(); wait for that")
            self._change_columns(lambda: self._store.remove_column(name))

    @contextlib.contextmanager
    def in_use(self, names: Collection[str]) -> Iterator[None]:
        """Refuse that columns are removed meanwhile."""
        with self._store.lock:
            self._in_use.update(names)
        try:
            yield
        finally:
            with self._store.lock:
                self._in_use.subtract(names)
                self._in_use += Counter()  # without those that nobody uses any more

    def write(self, name: str, steps: Any, values: Any) -> int:
        """Write the values of some steps; return of how many, as those that were evicted since are left out."""
        ids, array = step_ids(steps, of_sequences=True), as_array(name, values)
        if array.shape[: ids.ndim] != ids.shape:
            raise InputError(f"{name}: expected a value for each of {ids.size} steps, found shape {array.shape}")
        if ids.ndim == 2:
            valid = ids.ravel() != -1
            ids, array = ids.ravel()[valid], array.reshape(-1, *array.shape[2:])[valid]
        try:
            column = Column(array.shape[1:], array.dtype)
        except SchemaError as error:
            raise InputError(f"{name}: {error}") from error
        try:
            array = fit(name, column, array, (array.shape,))
        except InputError as error:
            raise error.advising("Such columns are finite: write np.nan_to_num(values), or a number that you choose") from None
        self.check(name)
        with self._store.lock:
            return until_found([self._reader], lambda: self._write(name, column, ids, array))

    def _write(self, name: str, column: Column, ids: Int64, array: Array) -> int:
        store, index = self._store, self._reader.index
        streams, positions = ids % len(index.table), ids // len(index.table)
        some = self._present(name, ids)
        rows, size = index.rows_of(streams[some], positions[some]), store.layout.segment_rows
        slots, which = np.unique(rows // size, return_inverse=True)
        store.refuse_evicted(slots)
        self.ensure(name, column)
        checksums = [store.noted_checksum(name, slot) for slot in slots.tolist()]
        bases = np.array([address_of(store.derived(name, int(slot))) for slot in slots], np.int64)
        targets = bases[which] + rows % size * column.row_bytes
        array = np.ascontiguousarray(array[some])
        few = len(rows) * _A_ROW < len(slots) * size * column.row_bytes
        if few and None not in checksums:
            changes = replace_rows(array, targets, bases + store.layout.flat_bytes(name), which)
            for slot, before, change in zip(slots.tolist(), checksums, changes.tolist(), strict=True):
                store.note_checksum(name, slot, before ^ change)
        else:
            scatter(address_of(array), column.row_bytes, targets)
            for slot in slots.tolist():
                store.note_checksum(name, slot)
        return int(some.sum())

    def _present(self, what: str, ids: Int64) -> npt.NDArray[np.bool_]:
        """Return which steps are there; an InputError where one was never added. The lock must be held."""
        index = self._reader.index
        streams, positions = ids % len(index.table), ids // len(index.table)
        starts, _ = index.episodes_of(streams, positions)
        unknown = (starts < 0) & ((ids < 0) | (positions >= index.table[streams, FLOOR]))
        if unknown.any():
            raise InputError(f"{what}: step {ids[unknown][0]} was never added, or is no step")
        return np.asarray(starts >= 0)

    def open(self, name: str, column: Column, check: Callable[[], Any]) -> ColumnSegments:
        """Return a column for a sampler to keep, alone, as long as it lives."""
        if name in self._kept:
            raise InputError(f"another sampler keeps its priorities in {name!r}; give this one column= of another name")
        self.check(name)
        self._fits(name, column)
        segments = self._kept[name] = ColumnSegments(self, name, column, check)
        return segments

    # Passes over the columns of whole streams

    def segments(self, stream: int, some: Int64 | None = None) -> Iterator[SegmentSteps]:
        """Yield the steps of a stream as of now, newest first, segment by segment.

        The lock is held until the next is asked for: whoever writes to a segment must do so before it can be evicted.

        With `some`, positions in ascending order, as if there were no others.
        """
        size, head, behind = self._store.layout.segment_rows, int(self._reader.index.table[stream, HEAD]), True

        def find(ordinal: int) -> tuple[int, int, int, Array] | None:
            index = self._reader.index  # another one, where it was read anew
            first, until = max(ordinal * size, int(index.table[stream, FLOOR])), min((ordinal + 1) * size, head + 1)
            if first >= until:
                return None
            slot = index.slot(stream, first)
            self._store.refuse_evicted([slot])
            return slot, first, until, self._store.values("is_last", slot)

        for ordinal in range(head // size, -1, -1):
            with self._store.lock:
                segment = until_found([self._reader], partial(find, ordinal))
                if segment is None:
                    return
                slot, first, until, flags = segment
                last = flags[first - ordinal * size : until - ordinal * size].copy()
                if until == head + 1:
                    last[-1] = True  # or what is known of the episode ends there
                ended = np.append(last[1:], behind)
                behind = bool(last[0])
                rows, ended = np.flatnonzero(~last) + first - ordinal * size, ended[~last]
                if some is not None:
                    chosen = _among(rows + ordinal * size, some)
                    rows, ended = rows[chosen], ended[chosen] | ~_among(rows[chosen] + ordinal * size + 1, some)
                if len(rows):
                    yield SegmentSteps(slot, rows, ended)

    def by_stream(self, ids: Int64) -> list[Int64]:
        """Return the positions of steps that are there in each stream, in ascending order."""
        with self._store.lock:
            ids = np.unique(ids[self._present("steps", ids)])
        streams = self._store.layout.streams
        return [ids[ids % streams == stream] // streams for stream in range(streams)]


def _among(positions: Int64, some: Int64) -> npt.NDArray[np.bool_]:
    """Return which positions are among some that are in ascending order."""
    if not len(some):
        return np.zeros(len(positions), np.bool_)
    return np.asarray(some[np.searchsorted(some[:-1], positions)] == positions)
