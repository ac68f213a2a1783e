"""Blocks of steps as users give them: named, taken out of dicts, and converted to what the store's columns hold.

What is an array of a column's dtype and shape, or a number, stays what it is, and native code reads it where it lies. Tensors
of PyTorch and arrays of JAX in this machine's memory are looked at as arrays, without a copy. All else is converted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from statistics import mode
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import is_tensor
from diskbuffer.errors import InputError
from diskbuffer.recording.values import check_names, fit, shape_of
from diskbuffer.schema.nested import flatten
from diskbuffer.schema.schema import Schema

Array = npt.NDArray[Any]
_FLAGS = ("terminated", "truncated")
EVERY_STEP = ("action", "reward", *_FLAGS)


class Axes(NamedTuple):
    """The leading axes of a block's values.

    Attributes
    ----------
    shape : tuple of int
        Steps and environments, as far as there are such axes.
    may_lack : bool
        Whether the last of them may be missing: that of a single environment, of which a single step is given.
    """

    shape: tuple[int, ...]
    may_lack: bool = False

    def of(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes that a block of values of a shape may have."""
        whole = (*self.shape, *shape)
        return (whole, whole[1:]) if self.may_lack else (whole,)


class Slot(NamedTuple):
    """One of the values that make a step: a column, or what is observed after the step."""

    path: str
    is_after: bool | None  # None for what is no observation

    @property
    def name(self) -> str:
        """What errors call it."""
        return "next_" + self.path if self.is_after else self.path


class Blocks:
    """Know in which order the values of a step are recorded, find them in what users give, and convert them.

    Parameters
    ----------
    schema : Schema
        Of what is recorded.
    frame_stack : int

    Attributes
    ----------
    slots : tuple of Slot
        First what belongs to the step itself, then observations before it, and after it.
    """

    def __init__(self, schema: Schema, frame_stack: int) -> None:
        self._schema, self._stack = schema, frame_stack
        self._is_direct = all(path in schema.step for path in EVERY_STEP)
        self._more = tuple(path for path in schema.step if path not in EVERY_STEP)
        self._step = (*EVERY_STEP, *self._more) if self._is_direct else schema.step
        self._is_plain, self._parts = schema.obs == ("obs",), _picker(schema.obs)
        self._names = {*EVERY_STEP, *(path.split("/")[0] for path in schema.step)}
        self.slots = (
            *(Slot(path, None) for path in self._step),
            *(Slot(path, False) for path in schema.obs),
            *(Slot(path, True) for path in schema.obs),
        )

    def of_step(self, obs: Any, next_obs: Any, step: tuple[Any, ...], more: dict[str, Any]) -> tuple[Any, ...]:
        """Return the values of a step in the order of `slots`, `step` being those of `EVERY_STEP`. Refuse other names."""
        if self._is_direct and len(more) == len(self._more):
            try:
                if self._is_plain:
                    return (*step, *[more[path] for path in self._more], obs, next_obs)
                if self._parts is not None:
                    return (*step, *[more[path] for path in self._more], *self._parts(obs), *self._parts(next_obs))
            except (LookupError, TypeError):
                pass  # others, or nested in another way
        values = self._flat(dict(zip(EVERY_STEP, step, strict=True)) | more)
        check_names(values, self._step)
        before, after = self._observations(flatten({"obs": obs}), flatten({"next_obs": next_obs}))
        return (*[values[path] for path in self._step], *before, *after)

    def _flat(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Take values apart; names of no column stay, also where they have no value, to be refused."""
        return dict.fromkeys(name for name in values if name not in self._names) | flatten(values)

    def _observations(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        check_names(before, self._schema.obs)
        check_names(after, ["next_" + path for path in self._schema.obs])
        return [before[path] for path in self._schema.obs], [after["next_" + path] for path in self._schema.obs]

    def of_arrays(
        self, obs: Any, next_obs: Any, values: Mapping[str, Any], envs: int | None
    ) -> tuple[tuple[Any, ...], tuple[int, ...]] | None:
        """Return the values of arrays that are named as the columns are, in their order, and the shape of their axes; or None.

        Whether they fit is for native code to find out, which takes None for flags that are not given; if not, `of_steps` tells
        what is wrong.
        """
        if not self._is_direct or len(values) != len(self._step):
            return None
        try:
            step = [values[path] for path in self._step]
            before: Sequence[Any] = self._picked(obs)
            after: Sequence[Any] | None = None if next_obs is None else self._picked(next_obs)
            steps = len(before[0]) - (after is None)
            if after is None:
                if steps > 1 and any(flag is not None and np.count_nonzero(flag[:-1]) for flag in step[2:4]):
                    return None
                before, after = [each[:-1] for each in before], [each[1:] for each in before]
        except (LookupError, TypeError, AttributeError, ValueError):
            return None
        return ((*step, *before, *after), (steps,) if envs is None else (steps, envs)) if steps > 0 else None

    def _picked(self, obs: Any) -> tuple[Any, ...]:
        """Return the parts of observations, in their order; a KeyError or TypeError where they are others, or nested deeper."""
        if self._is_plain:
            return (obs,)
        if self._parts is None:
            raise KeyError
        return self._parts(obs)

    def of_steps(self, obs: Any, next_obs: Any, values: Mapping[str, Any], envs: int | None) -> tuple[tuple[Any, ...], Axes]:
        """Return the values of many steps, of so many environments where there is an axis of these, and their axes.

        Without `next_obs`, observations are a trajectory's: one more than there are steps. Flags that are missing are False.
        """
        columns, observed, after = self._flat(values), flatten({"obs": obs}), flatten({"next_obs": next_obs})
        check_names({**columns, "terminated": 0, "truncated": 0}, self._step)
        name, first = next(iter(columns.items()))
        if shape_of(first) == ():
            raise InputError(f"{name}: expected an array with a leading axis of steps; for a single step there is add")
        lengths = [len(value) for value in columns.values() if _has_axis(value)]
        lengths += [len(value) - (not after) for value in observed.values() if _has_axis(value)]
        steps = mode(lengths)  # as most have it: an error is about the one that differs
        axes = Axes((steps,) if envs is None else (steps, envs))
        for flag in _FLAGS:
            if flag not in columns:
                columns[flag] = np.zeros(axes.shape, np.bool_)
        if not self._schema.obs:
            raise InputError("extend needs obs, in a store that has observations")
        step = [columns[path] for path in self._step]
        if after:
            before, following = self._observations(observed, after)
        else:
            before, following = self._of_trajectory(observed, axes)
            for path in _FLAGS:
                at = self._step.index(path)
                step[at] = self.fit(self.slots[at], on_host(step[at]), axes)
                _refuse_an_end_within(path, step[at])
        return (*step, *before, *following), axes

    def _of_trajectory(self, observed: Mapping[str, Any], axes: Axes) -> tuple[list[Array], list[Array]]:
        """Return a trajectory's observations before and after its steps: both are views."""
        longer = Axes((axes.shape[0] + 1, *axes.shape[1:]))
        check_names(observed, self._schema.obs)
        try:
            fitted = [self.fit(Slot(path, False), on_host(observed[path]), longer) for path in self._schema.obs]
        except InputError as error:
            if all(_has_axis(observed[path]) and len(observed[path]) == longer.shape[0] for path in self._schema.obs):
                raise
            raise InputError(
                f"{error} (without next_obs, obs is a trajectory: one observation more than there are steps)"
            ) from error
        return [array[:-1] for array in fitted], [array[1:] for array in fitted]

    def fit(self, slot: Slot, value: Any, axes: Axes) -> Array:
        """Return a value as an array that fits its column; an InputError where it does not."""
        try:
            return self._fit(slot, value, axes)
        except InputError as error:
            if len(axes.shape) == 1 or shape_of(value)[: len(axes.shape)] == axes.shape:
                raise
            raise InputError(
                f"{error} (these are steps of all {axes.shape[1]} environments; give env= for those of one)"
            ) from None

    def _fit(self, slot: Slot, value: Any, axes: Axes) -> Array:
        column = self._schema[slot.path]
        shapes = axes.of(column.shape)
        if slot.is_after is None or self._stack == 1:
            return fit(slot.name, column, value, shapes)
        stacks, shape = axes.of((self._stack, *column.shape)), shape_of(value)
        if shape in stacks and shape not in shapes:
            return fit(slot.name, column, value, stacks)
        try:
            return fit(slot.name, column, value, shapes)
        except InputError as error:
            if shape in shapes or not axes.may_lack:
                raise
            raise InputError(f"{error} (or, for stacks of frames, {stacks[0]})") from None


def on_host(values: Any) -> Any:
    """Return values, or a tuple of them, with arrays in this machine's memory in place of tensors on a device.

    All copies of a tuple go at once, into pinned memory, and are waited for together.
    """
    if not isinstance(values, tuple):
        return on_host((values,))[0]
    devices = {value.device for value in values if is_tensor(value) and not value.is_cpu}
    if not devices:
        return values
    import torch

    arrays = list[Any]()
    for value in values:
        if is_tensor(value) and value.device in devices:
            copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            arrays.append(copy.copy_(value.detach(), non_blocking=True).numpy())
        else:
            arrays.append(value)
    for device in devices:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        else:
            torch.accelerator.synchronize(device)
    return tuple(arrays)


def _has_axis(value: Any) -> bool:
    return hasattr(value, "__len__") and getattr(value, "shape", None) != ()


def _refuse_an_end_within(name: str, flag: Array) -> None:
    """Refuse flags at any step of a trajectory but its last: the observation that ended an episode is not among those given."""
    within = np.nonzero(flag[:-1])[0]
    if len(within):
        raise InputError(
            f"{name} is True at step {within[0]} of {len(flag)}, and without next_obs the arrays are one trajectory,"
            " which may end with its last step only: the observation that ended an episode is not among those given. Give"
            " next_obs, or each episode in a call of its own"
        )


def _picker(paths: Sequence[str]) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return what turns a dict of observations into a tuple of its parts; None for one part, and where they are nested deeper."""
    names = [path.removeprefix("obs/") for path in paths]
    if len(names) <= 1 or any("/" in name for name in names):
        return None
    pick = operator.itemgetter(*names)

    def parts(obs: Any) -> tuple[Any, ...]:
        if len(obs) != len(names):
            raise KeyError
        picked: tuple[Any, ...] = pick(obs)
        return picked

    return parts
