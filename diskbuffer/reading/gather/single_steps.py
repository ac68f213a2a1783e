"""Single steps of flat columns: found and copied in one compiled call, where plan, gather and pooled memory would cost more.

Of a batch of 256 steps of a few numbers, that is a third of the time. Columns in chunks, stacks and sequences go through a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.index.fields import LOW, SLOTS
from diskbuffer.index.index import Index
from diskbuffer.index.lookup import find_episodes, locate_recent
from diskbuffer.native import objects
from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import memcpy
from diskbuffer.native.memory import load_i64, load_u8, load_u32, prefetch, store_i64, store_u8, store_u32
from diskbuffer.native.objects import DATA
from diskbuffer.reading.gather import kernel
from diskbuffer.reading.gather.targets import Columns
from diskbuffer.schema import is_obs, key_of

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Copy = Callable[..., int]  # one of the functions below

# Fields of an array to fill.
COLUMN, ROW_BYTES, FLAG = 0, 1, 2  # as of a target of the gather's
AFTER = 3  # 1 for observations after the step, which are in the row after it
FIELDS = 4

MOST = 65_536  # bytes of an array: larger ones are in pooled memory, as fresh pages cost more than the gather
ALL, NOT_MAPPED = -1, -2  # of the compiled functions, which else return which of the wanted steps there is not
_AHEAD = 8  # how many steps before it is copied a row is asked for


@compiled
def copy_recent(table: Any, mapped: Any, segment_rows: int, wanted: Any, ages: Any, streams: Any, items: int, filled: int) -> int:
    """Copy steps by their ages. `filled` is a tuple, whose `items` lie there: the arrays, and one for the steps' names."""
    found = np.empty((4, ages.shape[0]), np.int64)
    missing = locate_recent(table, streams, ages, found)
    return missing if missing >= 0 else _copy(table, mapped, segment_rows, wanted, found[0], found[1], filled + items)


@compiled
def copy_named(table: Any, mapped: Any, segment_rows: int, wanted: Any, names: Any, items: int, filled: int) -> int:
    """Copy steps by their names, as `copy_recent` does."""
    streams, positions = np.empty(names.shape, np.int64), np.empty(names.shape, np.int64)
    episodes = np.empty((2, names.shape[0]), np.int64)
    for i in range(names.shape[0]):
        streams[i], positions[i] = names[i] % table.shape[0], names[i] // table.shape[0]
    find_episodes(table, streams, positions, episodes)
    for i in range(names.shape[0]):
        if episodes[0, i] < 0:
            return i
    return _copy(table, mapped, segment_rows, wanted, streams, positions, filled + items)


@compiled
def copy_drawn(
    table: Any, mapped: Any, segment_rows: int, wanted: Any, streams: Any, positions: Any, items: int, filled: int
) -> int:
    """Copy steps that are there, by their streams and positions, as `copy_recent` does."""
    return _copy(table, mapped, segment_rows, wanted, streams, positions, filled + items)


@compiled
def _copy(table: Any, mapped: Any, segment_rows: int, wanted: Any, streams: Any, positions: Any, filled: int) -> int:
    """Copy steps by their streams and positions to the arrays whose addresses, as objects, lie at `filled`; then their names."""
    n = positions.shape[0]
    rows = np.empty((n, 4), np.int64)  # slot and row of a step, and of the one after it
    for i in range(n):
        stream, first = streams[i], table[streams[i], LOW] // segment_rows
        for after in range(2):
            segment = (positions[i] + after) // segment_rows
            slot = load_i64(table[stream, SLOTS] + 8 * (segment - first))
            if slot >= mapped.shape[1]:
                return NOT_MAPPED
            rows[i, 2 * after], rows[i, 2 * after + 1] = slot, positions[i] + after - segment * segment_rows
    for w in range(wanted.shape[0]):
        column, row_bytes, out = wanted[w, COLUMN], wanted[w, ROW_BYTES], load_i64(load_i64(filled + 8 * w) + DATA)
        which = 2 * wanted[w, AFTER]
        for i in range(n):
            if i + _AHEAD < n:
                prefetch(mapped[column, rows[i + _AHEAD, which], 0] + rows[i + _AHEAD, which + 1] * row_bytes)
            source = mapped[column, rows[i, which], 0]
            if source == 0:
                return NOT_MAPPED
            source += rows[i, which + 1] * row_bytes
            if wanted[w, FLAG]:
                for k in range(row_bytes):
                    store_u8(out + i * row_bytes + k, load_u8(source + k) != 0)
            elif row_bytes == 8:
                store_i64(out + 8 * i, load_i64(source))
            elif row_bytes == 4:
                store_u32(out + 4 * i, load_u32(source))
            else:
                memcpy(out + i * row_bytes, source, row_bytes)
    names = load_i64(load_i64(filled + 8 * wanted.shape[0]) + DATA)
    for i in range(n):
        store_i64(names + 8 * i, positions[i] * table.shape[0] + streams[i])
    return ALL


class SingleSteps:
    """Arrays for single steps of some columns, each of which is flat.

    Parameters
    ----------
    columns : Columns

    Attributes
    ----------
    names : tuple of str
        Of the arrays: the columns' paths, ``next_`` before that of an observation after the step.
    keys : list of (tuple, key)
        Where each is in a batch: the keys of the dicts above it, and its own there.
    most : int
        Steps that can be read at once.
    """

    def __init__(self, columns: Columns) -> None:
        names, wanted, kinds = list[str](), list[tuple[int, ...]](), list[tuple[tuple[int, ...], np.dtype[Any]]]()
        for path, target in zip(columns.paths, columns.targets[0].tolist(), strict=True):
            for after in range(1 + is_obs(path)):
                names.append("next_" + path if after else path)
                wanted.append((target[kernel.COLUMN], target[kernel.ROW_BYTES], target[kernel.FLAG], after))
                kinds.append((columns.schema[path].shape, columns.schema[path].np_dtype))
        self.names = tuple(names)
        nested = [tuple(map(key_of, name.split("/"))) for name in names]
        self.keys = [(keys[:-1], keys[-1]) for keys in nested]
        self._wanted, self._kinds = np.array(wanted, np.int64).reshape(-1, FIELDS), kinds
        largest = max((row[ROW_BYTES] for row in wanted), default=1)
        self.most = MOST // max(largest, 1)

    @staticmethod
    def can_be(columns: Columns) -> bool:
        """Tell whether all of the columns are flat, and objects are where compiled code looks for them."""
        return bool(objects.TUPLE_ITEMS) and not columns.targets[0, :, kernel.CHUNK_ROWS].any()

    def filled(self, copy: Copy, index: Index, mapped: Int64, *steps: Int64) -> tuple[Array, ...] | None:
        """Return the arrays of steps, and their names, filled by a function above; None where only a plan can, or can say why."""
        size = steps[0].size
        if size > self.most:
            return None
        filled = (*[np.empty((size, *shape), dtype) for shape, dtype in self._kinds], np.empty(size, np.int64))
        steps = (*map(np.array, steps),)  # read-only ones would be another type to numba, which would compile all of it once more
        code = copy(index.table, mapped, index.segment_rows, self._wanted, *steps, objects.TUPLE_ITEMS, id(filled))
        return filled if code == ALL else None
