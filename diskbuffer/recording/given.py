"""What users give for a step, if it is what the store's columns hold: found by compiled code, in one call for all columns.

So it mostly is: arrays of the columns' dtypes and shapes, floats and flags. All else (lists, integers, tensors, other dtypes,
stacks of frames, nested observations) is for `Staging`, which checks column by column, converts, and says what is wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native import objects
from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import memcpy
from diskbuffer.native.memory import int64_array, load_f64, load_i32, load_i64, store_f32, store_i64, store_u8
from diskbuffer.native.objects import ALIGNED, CONTIGUOUS, DATA, DTYPE, FLAGS, NDIM, NUMBER, SHAPE, TYPE
from diskbuffer.recording import kernel
from diskbuffer.schema import Column, Schema

Array = npt.NDArray[Any]

# Fields of a table of what may be given, which begins with one row of addresses of Python's own objects, ...
ROWS, ITEMS = 0, 1  # how many rows follow; where a tuple's items begin
ARRAY, FLOAT, FLOAT64, DTYPE64, TRUE, FALSE = range(2, 8)
STREAMS = 8
# ... and has a row for each value: first the observations before the step, then those after it, then all else.
PLACE = 0  # where the value's address is to be written to
TYPED = 1  # dtype
NDIMS, DIMS = 2, 3  # of an array of all streams; with a single one, its axis may be missing
SCALAR = 4  # numpy's type of single numbers, 0 where the value is not one number of one stream
KIND = 5
STAGED, SIZE = 6, 7  # where a number is copied to, or what is rounded to float32; a number's bytes
FIELDS = 9

_OTHER, _FLAG, _SINGLE, _DOUBLE = range(4)  # kinds: flags, float32 and float64, of which Python and numpy have several types
_STAGED = 4096  # bytes of numbers that are rounded to float32
NOT_FOUND = -(2**40)  # of `record_given`: less than what `kernel.record` returns


@compiled
def find_given(table: Any, given: int) -> bool:
    """Write the addresses of the values of a tuple to their places; return whether all of them are what the columns hold."""
    items = given + table[0, ITEMS]
    for n in range(table[0, ROWS]):
        value = load_i64(items + 8 * n)
        found = _find(table, n + 1, value)
        if found == 0:
            return False
        store_i64(table[n + 1, PLACE], found)
    return True


@compiled
def _find(table: Any, n: int, value: int) -> int:
    """Return where a value's bytes lie, or a copy of them; 0 where it is not what the column holds."""
    kind, of = table[n, KIND], load_i64(value + TYPE)
    if of == table[0, ARRAY]:
        return _find_array(table, n, value)
    if table[n, SCALAR] == 0:
        return 0
    if kind == _FLAG and (value == table[0, TRUE] or value == table[0, FALSE]):
        store_u8(table[n, STAGED], value == table[0, TRUE])
    elif of == table[n, SCALAR] or (kind == _DOUBLE and of == table[0, FLOAT]):
        memcpy(table[n, STAGED], value + NUMBER, table[n, SIZE])
    elif (
        kind != _SINGLE or (of != table[0, FLOAT] and of != table[0, FLOAT64]) or not _round(value + NUMBER, 1, table[n, STAGED])
    ):
        return 0
    return int(table[n, STAGED])


@compiled
def _find_array(table: Any, n: int, array: int) -> int:
    flags, dims, ndim = load_i32(array + FLAGS), load_i32(array + NDIM), table[n, NDIMS]
    if flags & CONTIGUOUS == 0 or flags & ALIGNED == 0:
        return 0
    if dims != ndim and (dims != ndim - 1 or table[0, STREAMS] != 1):
        return 0
    shape, wanted, size = load_i64(array + SHAPE), table[n, DIMS] + 8 * (ndim - dims), 1
    for d in range(dims):
        if load_i64(shape + 8 * d) != load_i64(wanted + 8 * d):
            return 0
        size *= load_i64(shape + 8 * d)
    data, dtype = load_i64(array + DATA), load_i64(array + DTYPE)
    if dtype == table[n, TYPED]:
        return int(data)
    if dtype != table[0, DTYPE64] or table[n, KIND] != _SINGLE or not _round(data, size, table[n, STAGED]):
        return 0
    return int(table[n, STAGED])


@compiled
def _round(doubles: int, n: int, singles: int) -> bool:
    """Round float64 to float32; return whether there is room, and all fit. NaN does."""
    if singles == 0:
        return False
    for i in range(n):
        double = load_f64(doubles + 8 * i)
        single = np.float32(double)
        if np.isinf(single) and not np.isinf(double):
            return False
        store_f32(singles + 4 * i, single)
    return True


@compiled
def record_given(job: Any, given: int) -> int:
    """Do as `kernel.record`, with the values of a tuple, if they are what the columns hold; else return `NOT_FOUND`."""
    if not find_given(int64_array(job[kernel.GIVEN], (job[kernel.COLUMNS] * 2 + 1, FIELDS)), given):
        return NOT_FOUND
    return kernel.record(job)


class Given:
    """Tell compiled code what to expect.

    Parameters
    ----------
    schema : Schema
    streams : int
    sources : (columns, SOURCE_FIELDS) int64
        For `kernel.record`: values' addresses are written to it.

    Attributes
    ----------
    table : (rows, FIELDS) int64
    """

    def __init__(self, schema: Schema, streams: int, sources: npt.NDArray[np.int64]) -> None:
        self._kept: list[Any] = [sources]  # by what is in the table
        order = list(schema)
        places = [(path, kernel.VALUE) for path in schema.obs] + [(path, kernel.NEXT) for path in schema.obs]
        places += [(path, kernel.VALUE) for path in schema.step]
        self.table = np.zeros((2 * len(order) + 1, FIELDS), np.int64)
        self.table[0, [ROWS, ITEMS, STREAMS]] = len(places), objects.TUPLE_ITEMS, streams
        of_all = (np.ndarray, float, np.float64, np.dtype(np.float64), True, False)
        self.table[0, ARRAY : FALSE + 1] = [id(each) for each in of_all]
        for row, (path, field) in zip(self.table[1:], places, strict=False):
            row[PLACE] = sources.ctypes.data + 8 * (order.index(path) * kernel.SOURCE_FIELDS + field)
            self._describe(row, schema[path], streams)
        self._is_plain, self._parts = schema.obs == ("obs",), _picker(schema.obs)
        self._step, self._steps = operator.itemgetter(*schema.step), len(schema.step)

    def _describe(self, row: Array, column: Column, streams: int) -> None:
        dtype, dims = np.dtype(column.np_dtype.type), np.array((streams, *column.shape), np.int64)  # the dtype that arrays share
        row[[TYPED, NDIMS, DIMS]] = id(dtype), len(dims), dims.ctypes.data
        self._kept += [dtype, dims]
        row[KIND] = {"bool": _FLAG, "float32": _SINGLE, "float64": _DOUBLE}.get(dtype.name, _OTHER)
        is_number = streams == 1 and column.shape == ()
        if is_number or (dtype == np.float32 and streams * column.row_bytes <= _STAGED):
            staged = np.zeros(dims, dtype)
            self._kept.append(staged)
            row[[STAGED, SIZE]] = staged.ctypes.data, dtype.itemsize
        if is_number:
            row[SCALAR] = id(dtype.type)

    def pick(self, obs: Any, next_obs: Any, values: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return the values in the table's order; None where there are others, or they are nested in another way."""
        if objects.TUPLE_ITEMS == 0 or len(values) != self._steps:
            return None
        try:
            if self._is_plain:
                return (obs, next_obs, *self._step(values))
            return None if self._parts is None else (*self._parts(obs), *self._parts(next_obs), *self._step(values))
        except (KeyError, TypeError):
            return None


def _picker(paths: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return what turns a dict of observations into a tuple of its parts; None for one part, and where they are nested deeper."""
    names = [path.removeprefix("obs/") for path in paths]
    if len(names) == 1 or any("/" in name for name in names):
        return None
    pick = operator.itemgetter(*names)

    def parts(obs: Any) -> tuple[Any, ...]:
        if len(obs) != len(names):
            raise KeyError
        found: tuple[Any, ...] = pick(obs)
        return found

    return parts
