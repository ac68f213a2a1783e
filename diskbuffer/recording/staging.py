"""From what users give for one step to addresses that compiled code reads: checked, converted where need be, not copied twice."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.native import address_of
from diskbuffer.recording import steps
from diskbuffer.recording.inputs import check_names, fit, flatten
from diskbuffer.recording.stacks import RollingStacks
from diskbuffer.schema import Column, Schema

Array = npt.NDArray[Any]


class _StepColumn:
    """The value of one column in one step of every stream."""

    def __init__(self, path: str, column: Column, streams: int) -> None:
        self._path, self._column = path, column
        self.array = np.zeros((streams, *column.shape), column.np_dtype)
        self._dtype = column.np_dtype
        self._scalar = streams == 1 and column.shape == ()
        self._checks_nan = self._dtype.kind in "fc" and not column.allow_nan
        self._shapes = (self.array.shape, column.shape) if streams == 1 else (self.array.shape,)
        self._low: Any = 0
        self._high: Any = 1
        if self._dtype.kind in "iu":
            self._low, self._high = np.iinfo(self._dtype).min, np.iinfo(self._dtype).max
        elif self._dtype.kind == "f":
            self._high = float(np.finfo(self._dtype).max)
            self._low = -self._high

    def put(self, value: Any) -> None:
        """Take a value; an InputError where it does not fit."""
        if self._scalar and isinstance(value, int | float | np.generic):
            try:
                if self._low <= value <= self._high:
                    self.array[0] = value
                    if self._dtype.kind == "f" or self.array[0] == value:
                        return
            except TypeError:
                pass
        elif (
            value.__class__ is np.ndarray
            and value.dtype == self._dtype
            and value.shape == self.array.shape
            and not (self._checks_nan and (value != value).any())
        ):
            self.array[...] = value
            return
        self.array[...] = fit(self._path, self._column, value, self._shapes)


class Staging:
    """Check a step of every stream, and tell compiled code where it lies.

    Attributes
    ----------
    sources : (columns, SOURCE_FIELDS) int64
        For `steps.record`.
    flags : (3,) int64
        Places of terminated, truncated and reward in it.
    """

    def __init__(
        self,
        schema: Schema,
        streams: int,
        frame_stack: int,
        zeros: bool,
        tails: npt.NDArray[np.int64],
        newest: Callable[[str], Array],
    ) -> None:
        self._schema, self._streams, self._stack, self._zeros, self._newest = schema, streams, frame_stack, zeros, newest
        self._columns = {path: _StepColumn(path, schema[path], streams) for path in schema.step}
        self._plain = schema.obs[0] if len(schema.obs) == 1 and "/" not in schema.obs[0] else None
        self._place = {path: i for i, path in enumerate(schema)}
        self._obs = tuple((path, self._place[path], schema[path]) for path in schema.obs)
        self._stacks: dict[str, RollingStacks] = {}
        self.sources = np.zeros((len(schema), steps.SOURCE_FIELDS), np.int64)
        for path, i in self._place.items():
            self.sources[i, [steps.STRIDE, steps.NEXT_STRIDE, steps.ROW_BYTES]] = schema[path].row_bytes
            self.sources[i, steps.TAIL] = tails[i]
            self.sources[i, steps.ROLE] = steps.IS_LAST if path == "is_last" else steps.STEP
            if path in self._columns:
                self.sources[i, steps.VALUE] = self._columns[path].array.ctypes.data
        for _, i, _ in self._obs:
            self.sources[i, steps.ROLE] = steps.OBS
        reward = next(path for path in schema.step if path.split("/")[0] == "reward")
        self.flags = np.array([self._place[path] for path in ("terminated", "truncated", reward)], np.int64)

    def ended(self) -> npt.NDArray[np.bool_]:
        """Return which streams' episodes end with the step that was put."""
        return np.asarray(self._columns["terminated"].array | self._columns["truncated"].array)

    def put_values(self, values: dict[str, Any]) -> None:
        """Take what belongs to the step itself: action, reward, flags and extra columns."""
        if values.keys() != self._columns.keys():
            values = flatten(values)
            check_names(values, self._columns)
        for path, column in self._columns.items():
            column.put(values[path])

    def put_observations(
        self, obs: Any, next_obs: Any, running: npt.NDArray[np.bool_], resets: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.bool_] | None, list[Any]]:
        """Take the observations before and after the step.

        `running` and `resets` as in `RollingStacks.check`. Returns which streams must start an episode, and what has to
        stay in memory until the step is recorded, pairs of path and ``next_obs``.
        """
        if self._plain is None:
            before, after = flatten({"obs": obs}), flatten({"next_obs": next_obs})
            check_names(before, [path for path, _, _ in self._obs])
            check_names(after, ["next_" + path for path, _, _ in self._obs])
        else:
            before, after = {self._plain: obs}, {"next_" + self._plain: next_obs}
        cut, kept = None, []
        for path, i, column in self._obs:
            now, stacked = self._observation(path, column, before[path])
            following, also = self._observation("next_" + path, column, after["next_" + path])
            if stacked != also:
                raise InputError(f"{path} and next_{path} must both be single frames, or both stacks")
            if stacked:
                other = self._roll(path, column).check(now, following, running, resets)
                cut = other if cut is None else cut | other
            elif path in self._stacks:
                self._stacks[path].forget()
            source, newest = self.sources[i], (self._stack - 1) * column.row_bytes if stacked else 0
            source[steps.STRIDE] = source[steps.NEXT_STRIDE] = column.row_bytes + newest
            source[steps.VALUE], source[steps.NEXT] = address_of(now) + newest, address_of(following) + newest
            kept += [(path, following), (path, now)]
        return cut, kept

    def recorded(self, kept: list[Any]) -> None:
        """Remember stacks, to check the next ones against them."""
        for path, following in kept[::2]:
            if path in self._stacks and following.ndim > len(self._schema[path].shape) + 1:
                self._stacks[path].accept(following)

    def _observation(self, path: str, column: Column, value: Any) -> tuple[Array, bool]:
        """Return a value as (streams, ...), or as stacks, (streams, frame_stack, ...), and which of the two it is."""
        n, frame = self._streams, column.shape
        single, stack = (n, *frame), (n, self._stack, *frame)
        shape = np.shape(value) if value.__class__ is not np.ndarray else value.shape
        stacked = self._stack > 1 and (shape == stack or (n == 1 and shape == stack[1:])) and shape != single
        wanted = stack if stacked else single
        if value.__class__ is np.ndarray and value.dtype == column.np_dtype and value.flags.c_contiguous:
            if column.np_dtype.kind not in "fc" and (shape == wanted or (n == 1 and shape == wanted[1:])):
                return (value, False) if not stacked else (value.reshape(stack), True)
        shapes = (wanted, wanted[1:]) if n == 1 else (wanted,)
        if not stacked and self._stack > 1:
            shapes = (*shapes, *((stack, stack[1:]) if n == 1 else (stack,)))  # for the message alone
        return fit(path, column, value, shapes), stacked

    def _roll(self, path: str, column: Column) -> RollingStacks:
        if path not in self._stacks:
            newest = functools.partial(self._newest, path)
            self._stacks[path] = RollingStacks(path, self._streams, self._stack, column.row_bytes, self._zeros, newest)
        return self._stacks[path]
