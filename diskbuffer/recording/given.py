"""What users give for a step, if it is what the store's columns hold: found by compiled code, in one call for all columns.

So it mostly is: arrays of the columns' dtypes and shapes, floats and flags, and stacks that roll on from those of the last step.
So are Python's integers, as actions and rewards of one environment. All else (lists, tensors, other dtypes, stacks that start an
episode) is for `Staging`, which checks column by column, converts, and says what is wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.index.fields import ENDED, HEAD
from diskbuffer.index.fields import FIELDS as INDEX_FIELDS
from diskbuffer.native import objects
from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import memcpy
from diskbuffer.native.memory import int8_array, int64_array, load_f64, load_i32, load_i64, store_f32, store_i64, store_u8
from diskbuffer.native.objects import ALIGNED, CONTIGUOUS, DATA, DTYPE, FLAGS, NDIM, NUMBER, SHAPE, TYPE
from diskbuffer.recording import kernel
from diskbuffer.recording.equality import are_bools, float_bytes, same_values
from diskbuffer.recording.rolling_stacks import RollingStacks
from diskbuffer.schema import Column, Schema

Array = npt.NDArray[Any]

# Fields of a table of what may be given, which begins with one row of addresses of Python's own objects, ...
ROWS, ITEMS = 0, 1  # how many rows follow; where a tuple's items begin
ARRAY, FLOAT, FLOAT64, DTYPE64, TRUE, FALSE = range(2, 8)
STREAMS, OBSERVATIONS, STACK = 8, 9, 10  # how many there are; columns of observations; frames of a stack
# ... and has a row for each value: first the observations before the step, then those after it, then all else.
PLACE = 0  # where the value's address is to be written to, and the bytes to that of the next stream after it
TYPED = 1  # dtype
NDIMS, DIMS = 2, 3  # of an array of all streams; with a single one, its axis may be missing
SCALAR = 4  # numpy's type of single numbers, 0 where the value is not one number of one stream
KIND = 5
STAGED, SIZE = 6, 7  # where a number is copied to, or what is rounded to float32; a number's bytes
BYTES = 8  # of one stream's value
STACK_DIMS = 9  # of an observation: what DIMS is of stacks, 0 where there are none
WIDTH = 10  # the bytes of a float, 0 for others
LAST, KNOWN = 11, 12  # the last stacks, and whether they are known: both of `RollingStacks`
FIELDS = 13

EVERY_STEP = ("action", "reward", "terminated", "truncated")
_OTHER, _FLAG, _SINGLE, _DOUBLE = range(4)  # kinds: truth values, float32 and float64, which may be of several types
_EXACT = 2**11  # up to which every float can say every integer
_STAGED = 4096  # bytes of numbers that are rounded to float32
NOT_FOUND = -(2**40)  # of `record_given`: less than what `kernel.record` returns
_SINGLE_FRAMES, _STACKS = 1, 2  # how observations are given


@compiled
def find_given(table: Any, given: int) -> int:
    """Write where the values of a tuple lie to their places; return how observations are given, 0 for what no column holds.

    Of stacks, that is where their newest frames lie.
    """
    items, stacked = given + table[0, ITEMS], 0
    for n in range(1, table[0, ROWS] + 1):
        value, apart = load_i64(items + 8 * (n - 1)), table[n, BYTES]
        found = _find(table, n, value)
        if found == 0 and table[n, STACK_DIMS] and load_i64(value + TYPE) == table[0, ARRAY]:
            found = _find_array(table, n, value, table[n, NDIMS] + 1, table[n, STACK_DIMS])
            if found == 0:
                return 0
            found, apart, stacked = found + (table[0, STACK] - 1) * apart, table[0, STACK] * apart, stacked + 1
        if found == 0:
            return 0
        store_i64(table[n, PLACE], found)
        store_i64(table[n, PLACE] + 8, apart)
    if stacked == 0:
        return _SINGLE_FRAMES
    for n in range(1, table[0, OBSERVATIONS] + 1):
        if _is_stack(table, n) != _is_stack(table, n + table[0, OBSERVATIONS]):
            return 0
    return _STACKS


@compiled
def _is_stack(table: Any, n: int) -> bool:
    """Tell whether a value that was found is a stack."""
    return bool(load_i64(table[n, PLACE] + 8) != table[n, BYTES])


@compiled
def _find(table: Any, n: int, value: int) -> int:
    """Return where a value's bytes lie, or a copy of them; 0 where it is not what the column holds."""
    kind, of = table[n, KIND], load_i64(value + TYPE)
    if of == table[0, ARRAY]:
        return _find_array(table, n, value, table[n, NDIMS], table[n, DIMS])
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
def _find_array(table: Any, n: int, array: int, ndim: int, lengths: int) -> int:
    """Return where an array's bytes lie, or rounded copies of them; 0 where it has other lengths, or another dtype."""
    flags, dims = load_i32(array + FLAGS), load_i32(array + NDIM)
    if flags & CONTIGUOUS == 0 or flags & ALIGNED == 0:
        return 0
    if dims != ndim and (dims != ndim - 1 or table[0, STREAMS] != 1):
        return 0
    shape, wanted, size = load_i64(array + SHAPE), lengths + 8 * (ndim - dims), 1
    for d in range(dims):
        if load_i64(shape + 8 * d) != load_i64(wanted + 8 * d):
            return 0
        size *= load_i64(shape + 8 * d)
    data, dtype = load_i64(array + DATA), load_i64(array + DTYPE)
    if dtype == table[n, TYPED]:
        return int(data) if table[n, KIND] != _FLAG or are_bools(data, size) else 0
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
def record_given(job: int, given: int, told: int) -> int:
    """Do as `kernel.record`, with the values of a tuple, if they are what the columns hold; else return `NOT_FOUND`."""
    fields = int64_array(job, (kernel.JOB_FIELDS,))
    table = int64_array(fields[kernel.GIVEN], (fields[kernel.COLUMNS] * 2 + 1, FIELDS))
    how = find_given(table, given)
    if how == 0:
        return NOT_FOUND
    if how == _STACKS:
        if not _all_roll_on(table, fields, told):
            return NOT_FOUND
        told = fields[kernel.GO_ON_ALL]
    recorded = kernel.record_job(fields, told)
    if recorded >= 0:
        _remember(table)
    return recorded


@compiled
def _all_roll_on(table: Any, job: Any, told: int) -> bool:
    """Tell whether the stacks of every stream are the last ones, moved on by a frame, in an episode that is not over.

    What else is observed must be as the step before left it.
    """
    streams, observations = job[kernel.ENVS], table[0, OBSERVATIONS]
    index, says = int64_array(job[kernel.TABLE], (streams, INDEX_FIELDS)), int8_array(told, (streams,))
    for s in range(streams):
        if index[s, HEAD] < 0 or index[s, ENDED] or says[s] == kernel.START:
            return False
    for n in range(1, observations + 1):
        if not _is_stack(table, n):
            column = (table[n, PLACE] - job[kernel.SOURCES]) // (8 * kernel.SOURCE_FIELDS)
            for s in range(streams):
                if says[s] != kernel.GO_ON and not kernel.is_newest(job, column, s, index[s, HEAD]):
                    return False
        elif load_i64(table[n, KNOWN]) == 0 or not _rolls_on(table, n, streams):
            return False
    return True


@compiled
def _rolls_on(table: Any, n: int, streams: int) -> bool:
    """Tell whether a column's stacks of every stream are the last ones, moved on by a frame."""
    frame, width = table[n, BYTES], table[n, WIDTH]
    older, whole = (table[0, STACK] - 1) * frame, table[0, STACK] * frame
    now, following = load_i64(table[n, PLACE]) - older, load_i64(table[n + table[0, OBSERVATIONS], PLACE]) - older
    for s in range(streams):
        at = s * whole
        if not same_values(now + at, table[n, LAST] + at, whole, width):
            return False
        if not same_values(following + at, now + at + frame, older, width):
            return False
    return True


@compiled
def _remember(table: Any) -> None:
    """Remember the stacks that were recorded, as `RollingStacks.accept` does."""
    whole = table[0, STACK] * table[0, STREAMS]
    for n in range(1, table[0, OBSERVATIONS] + 1):
        if _is_stack(table, n):
            after, frame = load_i64(table[n + table[0, OBSERVATIONS], PLACE]), table[n, BYTES]
            memcpy(table[n, LAST], after - (table[0, STACK] - 1) * frame, whole * frame)
        elif table[n, KNOWN]:
            store_i64(table[n, KNOWN], 0)


class Given:
    """Tell compiled code what to expect.

    Parameters
    ----------
    schema : Schema
    streams : int
    sources : (columns, SOURCE_FIELDS) int64
        For `kernel.record`: where values lie is written to it.
    stacks : dict of str to RollingStacks
        Of each column of observations, where they may be stacks.
    frame_stack : int

    Attributes
    ----------
    table : (rows, FIELDS) int64
    """

    def __init__(
        self,
        schema: Schema,
        streams: int,
        sources: npt.NDArray[np.int64],
        stacks: dict[str, RollingStacks],
        frame_stack: int,
    ) -> None:
        self._kept: list[Any] = [sources, stacks]  # by what is in the table
        order, more = list(schema), tuple(path for path in schema.step if path not in EVERY_STEP)
        places = [(path, kernel.VALUE) for path in schema.obs] + [(path, kernel.NEXT) for path in schema.obs]
        places += [(path, kernel.VALUE) for path in (*EVERY_STEP, *more) if path in schema.step]
        self.table = np.zeros((2 * len(order) + 1, FIELDS), np.int64)
        self.table[0, [ROWS, ITEMS, STREAMS]] = len(places), objects.TUPLE_ITEMS, streams
        self.table[0, [OBSERVATIONS, STACK]] = len(schema.obs), frame_stack
        of_all = (np.ndarray, float, np.float64, np.dtype(np.float64), True, False)
        self.table[0, ARRAY : FALSE + 1] = [id(each) for each in of_all]
        for row, (path, field) in zip(self.table[1:], places, strict=False):
            row[PLACE] = sources.ctypes.data + 8 * (order.index(path) * kernel.SOURCE_FIELDS + field)
            self._describe(row, schema[path], streams)
            if path in stacks:
                dims = np.array((streams, frame_stack, *schema[path].shape), np.int64)
                self._kept.append(dims)
                row[[STACK_DIMS, LAST, KNOWN]] = dims.ctypes.data, stacks[path].last.ctypes.data, stacks[path].known.ctypes.data
        self._is_plain, self._parts = schema.obs == ("obs",), _picker(schema.obs)
        self._fits = objects.TUPLE_ITEMS != 0 and all(path in schema.step for path in EVERY_STEP)
        self._more = more
        self._of_int = [_of_int(schema[path].np_dtype) for path in EVERY_STEP[:2] if path in schema.step]

    def _describe(self, row: Array, column: Column, streams: int) -> None:
        dtype, dims = np.dtype(column.np_dtype.type), np.array((streams, *column.shape), np.int64)  # the dtype that arrays share
        row[[TYPED, NDIMS, DIMS]] = id(dtype), len(dims), dims.ctypes.data
        row[[BYTES, WIDTH]] = column.row_bytes, float_bytes(column.np_dtype)
        self._kept += [dtype, dims]
        row[KIND] = {"bool": _FLAG, "float32": _SINGLE, "float64": _DOUBLE}.get(dtype.name, _OTHER)
        is_number = streams == 1 and column.shape == ()
        if is_number or (dtype == np.float32 and streams * column.row_bytes <= _STAGED):
            staged = np.zeros(dims, dtype)
            self._kept.append(staged)
            row[[STAGED, SIZE]] = staged.ctypes.data, dtype.itemsize
        if is_number:
            row[SCALAR] = id(dtype.type)

    def pick(self, obs: Any, next_obs: Any, step: tuple[Any, ...], more: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return the values in the table's order; None where there are others, or they are nested in another way.

        `step` has action, reward, terminated and truncated, `more` the other columns.
        """
        if not self._fits or len(more) != len(self._more):
            return None
        try:
            if step[0].__class__ is int or step[1].__class__ is int:
                step = self._of_numpy(step)
            if self._is_plain:
                found = (obs, next_obs, *step)
            elif self._parts is None:
                return None
            else:
                found = (*self._parts(obs), *self._parts(next_obs), *step)
            return (*found, *[more[path] for path in self._more]) if more else found
        except (KeyError, TypeError):
            return None

    def _of_numpy(self, step: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a step whose action and reward are numbers of numpy's, or floats, if they were Python's integers."""
        found = [make(value) if value.__class__ is int else value for make, value in zip(self._of_int, step, strict=False)]
        return (*found, *step[len(found) :])


def _of_int(dtype: np.dtype[Any]) -> Callable[[int], Any]:
    """Return what makes a number that compiled code finds of one of Python's integers, where there is such a thing."""
    if dtype.kind in "iu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        return lambda number: dtype.type(number) if least <= number <= most else number
    return (lambda number: float(number) if abs(number) <= _EXACT else number) if dtype.kind == "f" else lambda number: number


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
