"""Pictures that are given, transformed as their columns say before anything else looks at them; each of them once, mostly."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import as_array
from diskbuffer.errors import InputError
from diskbuffer.native.transforms import transform_pictures
from diskbuffer.recording.values import convert
from diskbuffer.schema.nested import flatten, put
from diskbuffer.schema.schema import Column, Schema
from diskbuffer.schema.transforms import MOST_PIXELS, are_pictures, is_grey, notation, picture_axes

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]


class _Transformed(NamedTuple):
    """Pictures, (n, height, width, channels), and what they became."""

    pictures: Array
    rows: Array


class Pictures:
    """Transform observations; those of columns without transforms stay as they are.

    Parameters
    ----------
    schema : Schema
    streams : int
        Environments that give a step at a time.
    """

    def __init__(self, schema: Schema, streams: int = 1) -> None:
        self._columns = {path: _Pictures(path, schema[path], streams) for path in schema.obs if schema[path].transforms}

    def __bool__(self) -> bool:
        return bool(self._columns)

    def of_step(self, obs: Any, next_obs: Any) -> tuple[Any, Any]:
        """Return the observations before and after a step of every stream, transformed. `obs` was mostly given before."""
        before, after = flatten({"obs": obs}), flatten({"next_obs": next_obs})
        for path, column in self._columns.items():
            if path in before and "next_" + path in after:
                before[path], after["next_" + path] = column.of_step(before[path], after["next_" + path])
        return _nested(before), _nested(after)

    def of_steps(self, obs: Any, next_obs: Any, envs: int = 1) -> tuple[Any, Any]:
        """Return the observations before and after many steps, transformed; those of a trajectory are all in `obs`.

        There is an axis of environments behind that of steps where there are several.
        """
        before, after = flatten({"obs": obs}), flatten({"next_obs": next_obs})
        for path, column in self._columns.items():
            if path in before:
                before[path], following = column.of_steps(before[path], after.get("next_" + path), envs)
                if following is not None:
                    after["next_" + path] = following
        return _nested(before), _nested(after)

    def transformed(self, obs: Any) -> Any:
        """Return observations, with any leading axes, as they are stored."""
        parts = flatten({"obs": obs})
        for path, column in self._columns.items():
            if path in parts:
                parts[path] = column.of_steps(parts[path], None, 1)[0]
        return _nested(parts)


class _Pictures:
    """Transform the pictures of one column."""

    def __init__(self, path: str, column: Column, streams: int) -> None:
        self._path, self._column, self._streams = path, column, streams
        self._grey, self._axes = is_grey(column.transforms), picture_axes(column.transforms, column.shape)
        self._last: _Transformed | None = None  # those after the step before
        self._which: dict[tuple[int, ...], tuple[Int64, Int64]] = {}

    def of_step(self, now: Any, following: Any) -> tuple[Any, Any]:
        """See `Pictures.of_step`."""
        before, after = self._raw(self._path, now), self._raw("next_" + self._path, following)
        last, transformed = self._last, None
        if isinstance(before, _Raw):
            transformed = self._transform(before, last, self._places(before.lead)[0])
            now = self._shaped(before, transformed)
        if isinstance(after, _Raw):
            pictures = self._transform(after, transformed, self._places(after.lead)[1])
            following = self._shaped(after, pictures)
            self._remember(last, pictures)
        return now, following

    def _places(self, lead: tuple[int, ...]) -> tuple[Int64, Int64]:
        """Return which picture after the last step each one before this is, and which one before this step each after it is."""
        if lead not in self._which:
            stack = lead[-1] if len(lead) > 1 or (lead and self._streams == 1) else 1
            numbers = np.arange(math.prod(lead))
            self._which[lead] = numbers, _rolled(numbers, stack)
        return self._which[lead]

    def _remember(self, last: _Transformed | None, newest: _Transformed) -> None:
        """Keep a copy of pictures, whose arrays are the caller's. A Ctrl-C at any instant leaves it right, or none."""
        self._last = None
        kept = (
            last.pictures if last is not None and last.pictures.shape == newest.pictures.shape else np.empty_like(newest.pictures)
        )
        np.copyto(kept, newest.pictures)
        self._last = _Transformed(kept, newest.rows)

    def of_steps(self, now: Any, following: Any, envs: int) -> tuple[Any, Any]:
        """See `Pictures.of_steps`; `following` may be None."""
        before = self._raw(self._path, now)
        after = None if following is None else self._raw("next_" + self._path, following)
        transformed = None
        if isinstance(before, _Raw):
            numbers, stack = before.numbers(envs)
            rolled, step = _rolled(numbers, stack), envs * stack
            transformed = self._transform(before, None, np.where((numbers < step) | (rolled < 0), -1, rolled - step))
            now = self._shaped(before, transformed)
        if isinstance(after, _Raw):
            numbers, stack = after.numbers(envs)
            step = envs * stack
            after_it = numbers + step < len(numbers)  # what is before the step that follows
            which = np.where(after_it, numbers + step, _rolled(numbers, stack))
            following = self._shaped(after, self._transform(after, transformed, which))
        return now, following

    def _transform(self, raw: _Raw, known: _Transformed | None, which: Int64) -> _Transformed:
        """Transform pictures; `which` says which of the known ones each may be, of those before it where there are none."""
        pictures, shape = raw.pictures, self._column.shape
        rows = np.empty((len(pictures), *shape[:2], 1 if len(shape) == 2 else shape[2]), np.uint8)
        if known is None:
            known, which = _Transformed(pictures, rows), np.where(which < np.arange(len(which)), which, -1)
        elif known.pictures.shape[1:] != pictures.shape[1:] or len(known.pictures) <= which.max(initial=-1):
            which = np.full(len(pictures), -1)
        transform_pictures(pictures, rows, which, known.pictures, known.rows, self._grey)
        return _Transformed(pictures, rows)

    def _shaped(self, raw: _Raw, transformed: _Transformed) -> Array:
        return transformed.rows.reshape(*raw.lead, *self._column.shape)

    def _raw(self, name: str, value: Any) -> _Raw | None:
        """Return pictures that are to be transformed; None for what has the shape that is stored. An InputError for all else."""
        array, stored, axes = as_array(name, value), self._column.shape, self._axes
        if array.shape[-len(stored) :] == stored:
            return None
        shape = array.shape[-len(axes) :]
        if not are_pictures(shape, axes):
            expected = str(tuple("any" if n is None else n for n in axes)).replace("'", "")
            raise InputError(
                f"{name}: expected pictures of shape {expected}, which {notation(self._column.transforms)} makes {stored}, or "
                f"such as have that shape already; found {array.shape}"
            )
        if 0 in shape or shape[0] * shape[1] > MOST_PIXELS:
            raise InputError(f"{name}: expected pictures of 1 to {MOST_PIXELS} pixels, found {array.shape}")
        if array.dtype != np.uint8:
            array = convert(name, self._column.np_dtype, array)
        channels = shape[2:] or (1,)
        return _Raw(np.ascontiguousarray(array).reshape(-1, *shape[:2], *channels), array.shape[: -len(axes)])


class _Raw(NamedTuple):
    """Pictures, (n, height, width, channels), and the axes that the caller had in place of the first."""

    pictures: Array
    lead: tuple[int, ...]

    def numbers(self, envs: int) -> tuple[Int64, int]:
        """Return the pictures' numbers, and how many make a stack, behind the axes of steps and of several environments."""
        axes = 1 + (envs > 1)
        return np.arange(len(self.pictures)), self.lead[axes] if len(self.lead) > axes else 1


def _rolled(numbers: Int64, stack: int) -> Int64:
    """Return which picture of a stack comes after each, -1 after the newest."""
    after: Int64 = np.where((numbers + 1) % stack == 0, -1, numbers + 1)
    return after


def _nested(parts: dict[str, Any]) -> Any:
    nested: dict[str, Any] = {}
    for path, value in parts.items():
        put(nested, path, value)
    return next(iter(nested.values()), None)
