"""From what users give for one step to addresses that compiled code reads: checked, converted where need be, not copied twice."""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError, StackError
from diskbuffer.native.arrays import address_of
from diskbuffer.nested import flatten
from diskbuffer.recording import kernel
from diskbuffer.recording.blocks import does_not_roll, same_rows
from diskbuffer.recording.equality import copy_bools, float_bytes
from diskbuffer.recording.rolling_stacks import Compared, RollingStacks
from diskbuffer.recording.values import bools, check_names, fit, shape_of
from diskbuffer.schema import CHECKSUM, Column, Schema

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Told = npt.NDArray[np.int8]
Prepared = list[tuple[str, bool, Array, Array]]  # path, whether stacked, next_obs and obs: what compiled code reads from

_ROLES = {"is_last": kernel.IS_LAST, CHECKSUM: kernel.CHECK}
_BOOLS = {bool, np.bool_}
_INTEGERS = {int, bool, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64}
_FLOATS = {float, np.float32, np.float64}
# By which the struct module knows numbers.
_CODES = {"bool": "?", "float16": "e", "float32": "f", "float64": "d"} | dict(
    zip(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), "bhiqBHIQ", strict=True)
)
_COPIED = 4096  # bytes of observations that are copied


class _StepColumn:
    """The value of one column in one step of every stream.

    Attributes
    ----------
    array : (streams, ...)
    numbers : frozenset of type
        What Python's and numpy's numbers may be of that are the value; none where it is not one number.
    """

    def __init__(self, path: str, column: Column, streams: int) -> None:
        self._path, self._column = path, column
        self._dtype, kind = column.np_dtype, column.np_dtype.kind
        self.put_into(np.zeros((streams, *column.shape), self._dtype))
        self._is_single = self._dtype == np.float32
        self._shapes = (self.array.shape, column.shape) if streams == 1 else (self.array.shape,)
        self.numbers: frozenset[type] = frozenset()
        if streams == 1 and column.shape == ():
            self.numbers = frozenset({"b": _BOOLS, "i": _INTEGERS, "u": _INTEGERS, "f": _INTEGERS | _FLOATS}.get(kind, ()))

    def put_into(self, array: Array) -> None:
        """Have values put into an array, (streams, ...)."""
        self.array, self._bools_at = array, address_of(array) if self._dtype == np.bool_ else 0

    def put(self, value: Any) -> None:
        """Take a value; an InputError where it does not fit, but for NaN, which compiled code finds."""
        if isinstance(value, np.ndarray) and value.shape in self._shapes:
            if value.dtype == self._dtype:
                self.array[...] = value
                if self._bools_at:  # as `bools` does, in a fifth of the time
                    copy_bools(self._bools_at, self._bools_at, self.array.size)
                return
            if (
                self._is_single and value.dtype == np.float64 and kernel.narrow(value.ravel(), self.array.ravel())
            ):  # mostly rewards
                return
        self.array[...] = fit(self._path, self._column, value, self._shapes)


class _Numbers:
    """The columns whose value is one number, packed by one call of the C library's."""

    def __init__(self, columns: dict[str, _StepColumn]) -> None:
        found = {path: column for path, column in columns.items() if column.numbers}
        dtypes = [column.array.dtype for column in found.values()]
        self._packing = struct.Struct("=" + "".join(f"{_CODES[d.name]}{8 - d.itemsize}x" for d in dtypes))
        self._bytes = bytearray(self._packing.size)
        for n, column in enumerate(found.values()):
            column.put_into(np.frombuffer(self._bytes, column.array.dtype, 1, 8 * n))
        self.others = tuple((path, column) for path, column in columns.items() if path not in found)
        self._kinds = tuple(column.numbers for column in found.values())
        self._pick = operator.itemgetter(*found) if len(found) > 1 else None  # both flags are numbers, or no column is
        self._fits: dict[tuple[type, ...], bool] = {}  # types that were given, and whether they all may be

    def _may_be(self, types: tuple[type, ...]) -> bool:
        found = self._fits.get(types)
        if found is None:
            found = self._fits[types] = all(given in kinds for given, kinds in zip(types, self._kinds, strict=True))
        return found

    def put(self, values: dict[str, Any]) -> bool:
        """Take the values of all of them if each is a number that fits; NaN does. If not, what is there now means nothing."""
        if self._pick is None:
            return True
        given = self._pick(values)
        if not self._may_be((*map(type, given),)):
            return False
        try:
            self._packing.pack_into(self._bytes, 0, *given)
        except (struct.error, OverflowError):
            return False
        return True


class _ObsColumn:
    """How an observation may be given: single frames, or stacks of them, of every stream."""

    def __init__(self, path: str, column: Column, streams: int, frame_stack: int) -> None:
        self.path, self.next_path, self._column = path, "next_" + path, column
        self._dtype = column.np_dtype
        self._is_bool = self._dtype == np.bool_
        self._stack_may_have_nan = self._dtype.kind not in "fc" or column.allow_nan
        self.row_bytes = column.row_bytes
        # Of what is small, a copy costs less than finding out where it lies.
        self._copies = np.zeros((2, streams, *column.shape), self._dtype) if streams * column.row_bytes <= _COPIED else None
        self.copied_to = (0, 0) if self._copies is None else (address_of(self._copies[0]), address_of(self._copies[1]))
        single, stack = (streams, *column.shape), (streams, frame_stack, *column.shape)
        self._single = (single, single[1:]) if streams == 1 else (single,)
        self._stack: tuple[tuple[int, ...], ...] = ()
        if frame_stack > 1:
            self._stack = tuple(s for s in ((stack, stack[1:]) if streams == 1 else (stack,)) if s not in self._single)

    def check(self, value: Any, name: str) -> tuple[Array, bool]:
        """Return a value as a contiguous array, and whether it is of stacks; an InputError where it does not fit.

        NaN is left to compiled code to find, but for that in stacks.
        """
        if isinstance(value, np.ndarray) and value.dtype == self._dtype and value.flags.c_contiguous:
            if value.shape in self._single:
                return bools(value), False
            if value.shape in self._stack and self._stack_may_have_nan:
                return bools(value), True
        if shape_of(value) in self._stack:
            return fit(name, self._column, value, self._stack), True
        try:
            return fit(name, self._column, value, self._single), False
        except InputError as error:
            if not self._stack or shape_of(value) in self._single:
                raise
            raise InputError(f"{error} (or, for stacks of frames, {self._stack[0]})") from None

    def copy(self, now: Any, following: Any) -> bool:
        """Copy frames, if they are arrays that fit as they are, and small."""
        if self._copies is None or now.__class__ is not np.ndarray or following.__class__ is not np.ndarray:
            return False
        if now.dtype != self._dtype or following.dtype != self._dtype:
            return False
        if now.shape not in self._single or following.shape not in self._single:
            return False
        self._copies[0], self._copies[1] = (bools(now), bools(following)) if self._is_bool else (now, following)
        return True

    def prepared(self) -> Prepared:
        """Return the copies, as `Staging.put_observations` does."""
        return [] if self._copies is None else [(self.path, False, self._copies[1], self._copies[0])]

    def addresses(self, now: Array, following: Array) -> tuple[int, int]:
        """Return where frames lie that `check` returned, or copies of them."""
        if self._copies is None:
            return address_of(now), address_of(following)
        self._copies[0], self._copies[1] = now, following
        return self.copied_to


class Staging:
    """Check a step of every stream, and tell compiled code where it lies.

    `newest(path)` returns the stack, (streams, frame_stack, ...), that each stream ends with, `newest_frame(path)` the last frame
    of it, (streams, ...).

    Attributes
    ----------
    sources : (columns, SOURCE_FIELDS) int64
        For `kernel.record`.
    flags : (3,) int64
        Places of terminated, truncated and reward in it.
    stacks : dict of str to RollingStacks
        Of each column of observations; none where they are never stacks.
    """

    def __init__(
        self,
        schema: Schema,
        streams: int,
        frame_stack: int,
        zeros: bool,
        tails: npt.NDArray[np.int64],
        newest: Callable[[str], Array],
        newest_frame: Callable[[str], Array],
    ) -> None:
        self._schema, self._streams, self._stack, self._zeros, self._newest = schema, streams, frame_stack, zeros, newest
        self._newest_frame = newest_frame
        self._columns = {path: _StepColumn(path, schema[path], streams) for path in schema.step}
        self._is_plain = len(schema.obs) == 1 and "/" not in schema.obs[0]
        self._numbers = _Numbers(self._columns)
        self._place = {path: i for i, path in enumerate(schema)}
        self._obs = tuple((self._place[path], _ObsColumn(path, schema[path], streams, frame_stack)) for path in schema.obs)
        # Where observations are single frames of one column, and small, that is known before all else.
        self._alone = self._obs[0][1] if self._is_plain and frame_stack == 1 else None
        self._copied = self._obs[0][1].prepared()
        self._stacked = [False] * len(schema)
        self.stacks: dict[str, RollingStacks] = {}
        if frame_stack > 1:
            self.stacks = {path: self._rolling(path) for path in schema.obs}
        self.sources = np.zeros((len(schema), kernel.SOURCE_FIELDS), np.int64)
        for path, i in self._place.items():
            self.sources[i, [kernel.STRIDE, kernel.NEXT_STRIDE, kernel.ROW_BYTES]] = schema[path].row_bytes
            self.sources[i, kernel.TAIL] = tails[i]
            self.sources[i, kernel.FLOAT] = float_bytes(schema[path].np_dtype)
            self.sources[i, kernel.NO_NAN] = 0 if schema[path].allow_nan else self.sources[i, kernel.FLOAT]
            self.sources[i, kernel.ROLE] = _ROLES.get(path, kernel.STEP)
            if path in self._columns:
                self.sources[i, kernel.VALUE] = self._columns[path].array.ctypes.data
        for i, column in self._obs:
            self.sources[i, kernel.ROLE] = kernel.OBS
            self.sources[i, [kernel.VALUE, kernel.NEXT]] = column.copied_to
        self._reward = next(path for path in schema.step if path.split("/")[0] == "reward")
        self.flags = np.array([self._place[path] for path in ("terminated", "truncated", self._reward)], np.int64)

    def ended(self) -> Bools:
        """Return which streams' episodes end with the step that was put."""
        return np.asarray(self._columns["terminated"].array | self._columns["truncated"].array)

    def put_values(self, values: dict[str, Any]) -> None:
        """Take what belongs to the step itself: action, reward, flags and extra columns."""
        if values.keys() != self._columns.keys():
            values = flatten(values)
            check_names(values, self._columns)
        if self._numbers.put(values):
            for path, column in self._numbers.others:
                column.put(values[path])
        else:
            for path, column in self._columns.items():
                column.put(values[path])

    def put_observations(
        self, obs: Any, next_obs: Any, running: Callable[[], tuple[Bools, Bools]], told: Told
    ) -> tuple[Told, Bools | None, Prepared]:
        """Take the observations before and after the step.

        `running` returns which streams have an episode that is not over, and in which a reset step may come, as one is. `told` is
        of `kernel.record`. Returns that, as the stacks have it; which streams start an episode with a stack that has frames of
        its own, None if there is none; and what has to stay in memory until `recorded`. A StackError where ``next_obs`` is
        not ``obs`` moved on by a frame.
        """
        if self._alone is not None and self._alone.copy(obs, next_obs):
            return told, None, self._copied
        if not self._is_plain:
            before, after = flatten({"obs": obs}), flatten({"next_obs": next_obs})
            check_names(before, [column.path for _, column in self._obs])
            check_names(after, ["next_" + column.path for _, column in self._obs])
        kept, compared = [], dict[str, Compared]()
        for i, column in self._obs:
            path, then = column.path, column.next_path
            now, stacked = column.check(obs if self._is_plain else before[path], path)
            following, also = column.check(next_obs if self._is_plain else after[then], then)
            if stacked != also:
                raise InputError(f"{path} and {then} must both be single frames, or both stacks")
            source = self.sources[i]
            if stacked:
                newest = (self._stack - 1) * column.row_bytes
                compared[path] = self.stacks[path].compare(now, following)
                source[kernel.VALUE], source[kernel.NEXT] = address_of(now) + newest, address_of(following) + newest
            else:
                source[kernel.VALUE], source[kernel.NEXT] = column.addresses(now, following)
            if stacked != self._stacked[i]:
                source[kernel.STRIDE] = source[kernel.NEXT_STRIDE] = column.row_bytes * (self._stack if stacked else 1)
                self._stacked[i] = stacked
            kept.append((path, stacked, following, now))
        if not compared:
            return told, None, kept
        return *self._begin(compared, kept, running, told), kept

    def _begin(
        self, compared: dict[str, Compared], kept: Prepared, running: Callable[[], tuple[Bools, Bools]], told: Told
    ) -> tuple[Told, Bools | None]:
        """Decide how the steps of stacks begin, and which have earlier frames of their own."""
        found = list(compared.values())
        same = functools.reduce(np.logical_and, [each.same for each in found])
        for path, stacked, _, now in kept:
            if not stacked:
                newest = self._newest_frame(path)
                if now.tobytes() != newest.tobytes():  # mostly they are the same, and few
                    same = same & same_rows(now.reshape(self._streams, -1), newest.reshape(self._streams, -1))
        same = (same | (told == kernel.GO_ON)) & (told != kernel.START)
        goes_on, resets = running()
        goes_on = goes_on & same
        if resets.any():
            idle = ~self.ended() & (self._columns[self._reward].array.reshape(self._streams, -1) == 0).all(axis=1)
            resets = resets & same & idle
        for path, each in compared.items():
            bad = ~each.rolls & ~resets
            if bad.any():
                raise StackError(does_not_roll(f"{path} of environment {int(np.flatnonzero(bad)[0])}", self._stack))
        starts = ~goes_on & ~resets
        if not starts.any():
            return np.where(goes_on, np.int8(kernel.GO_ON), told), None
        whole = functools.reduce(np.logical_and, [each.starts for each in found])
        leads = starts & ~whole
        told = np.where(starts, np.int8(kernel.START), np.where(goes_on, np.int8(kernel.GO_ON), told))
        return told, leads if leads.any() else None

    def recorded(self, kept: Prepared, told: Told) -> None:
        """Remember the stacks that were recorded, to check the next ones against them; `told` is of `kernel.record`."""
        for path, stacked, following, _ in kept if self.stacks else ():
            if stacked:
                self.stacks[path].accept(following, told == kernel.GO_ON)
            else:
                self.stacks[path].forget()

    def refuse_nan(self, place: int, kept: Prepared) -> None:
        """Raise the InputError for NaN in a column, by its place in `sources`; `kept` is as `put_observations` returned it."""
        path = tuple(self._schema)[place]
        given = {path: self._columns[path].array} if path in self._columns else {}
        for column, _, following, now in kept:
            given |= {path: now, "next_" + path: following} if column == path else {}
        for name, array in given.items():
            fit(name, self._schema[path], array, (array.shape,))

    def forget(self) -> None:
        """Do not check the next stacks against the last ones: other rows were added since."""
        for stacks in self.stacks.values():
            stacks.forget()

    def _rolling(self, path: str) -> RollingStacks:
        column, newest = self._schema[path], functools.partial(self._newest, path)
        how = column.row_bytes, column.np_dtype, self._zeros, newest
        return RollingStacks(self._streams, self._stack, *how, lossy=column.is_lossy)
