"""What users give in many places: tensors on any device, arrays, lists."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.integers import MOST, shown
from diskbuffer.errors import InputError

if TYPE_CHECKING:
    import torch


def is_tensor(value: Any) -> bool:
    """Return whether something is a tensor, without importing PyTorch, which makes tensors."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def as_array(name: str, values: Any) -> npt.NDArray[Any]:
    """Return numbers as an array; an InputError where they are none."""
    try:
        return np.asarray(values.detach().cpu().numpy() if is_tensor(values) else values)
    except (TypeError, ValueError, RuntimeError) as error:
        if is_tensor(values) and values.is_floating_point():
            raise InputError(f"{name}: expected a dtype that NumPy has, found {values.dtype}; give .float() of it") from error
        raise InputError(f"{name}: expected an array or a tensor of numbers, found {type(values).__name__}: {error}") from error


def seconds_of(name: str, seconds: float | None, *, none: str = "never") -> float:
    """Return seconds, infinity for None, which `none` says the meaning of; an InputError where they are none."""
    if seconds is None:
        return math.inf
    if not isinstance(seconds, int | float | np.number) or isinstance(seconds, bool) or not seconds >= 0:
        raise InputError(f"{name} must be seconds, 0 or more, or None for {none}, found {seconds!r}")
    return float(seconds)


def device_of(device: torch.device | str | None) -> torch.device | None:
    """Return a device that tensors can be sent to, None for the CPU's memory; an InputError where there is none such."""
    if device is None:
        return None
    import torch

    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device must be one that PyTorch knows, such as 'cuda' or 'cpu', found {device!r}") from error
    if parsed.type == "cpu":
        return None
    accelerator = torch.accelerator.current_accelerator()
    count = 0 if accelerator is None or accelerator.type != parsed.type else torch.accelerator.device_count()
    if (parsed.index or 0) < count:  # of those that are there, the current one is each thread's own
        return torch.device(parsed.type, torch.accelerator.current_device_index() if parsed.index is None else parsed.index)
    try:
        torch.empty(0, device=parsed)
    except (AssertionError, ImportError, NotImplementedError, RuntimeError) as error:
        raise InputError(
            f"device={str(parsed)!r} is none that this PyTorch can use: it finds {count or 'none'} of that type; leave "
            "device= out to have batches on the CPU, or install a PyTorch built for your GPU"
        ) from error
    return parsed


def step_ids(steps: Any, *, of_sequences: bool = False) -> npt.NDArray[np.int64]:
    """Return the ids of steps, (n,) int64, or of sequences (n, length), too; an InputError where they are no integers."""
    try:
        return integers("steps", steps, (1, 2) if of_sequences else (1,)).astype(np.int64)
    except InputError as error:
        raise error.advising('Steps are ids, as a batch\'s "steps", buffer.steps(), or episode.steps of an episode') from None


def integers(name: str, values: Any, axes: tuple[int, ...] = (1,)) -> npt.NDArray[np.int64]:
    """Return integers as an array with one of so many axes; an InputError where they are none, such as floats.

    It may share its memory with what was given. See `diskbuffer.arguments.integers.integer`, which is the same for a single one.
    """
    array = as_array(name, values)
    fits = array.dtype.kind == "i" or (array.dtype.kind == "u" and (array.itemsize < 8 or (array <= MOST).all()))
    if array.ndim not in axes or not (fits or not array.size):
        expected = " or ".join(("()", "(n,)", "(n, length)")[n] for n in axes)
        what = f"{array.dtype} of shape {array.shape}" if array.dtype.kind in "biufc" else shown(values)
        raise InputError(f"{name}: expected integers of shape {expected}, found {what}")
    return array.astype(np.int64, copy=False)


def column_paths(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the columns that alone are to be read, each once; None for all."""
    if columns is None:
        return None
    names: Iterable[Any] = columns
    if not isinstance(columns, (list, tuple)):
        names = list(columns) if isinstance(columns, Iterable) and not isinstance(columns, (str, Mapping)) else [None]
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"columns must be a list of names, such as ['reward'], found {shown(columns)}")
    return tuple(dict.fromkeys(names))


def refuse_alone(name: str, value: Any, other: str, others: Any) -> None:
    """Raise an InputError where an argument is given without another, and would do nothing."""
    if value is not None and others is None:
        raise InputError(f"{name}= does nothing without {other}=: give {other}=, too")


def truth(name: str, value: Any) -> bool:
    """Return a truth value; an InputError for anything else, which mostly was meant for another argument."""
    if value is True or value is False:  # most are, and are asked for at every call
        return value
    if not isinstance(value, np.bool_):
        raise InputError(f"{name} must be True or False, found {shown(value)}", option=name)
    return bool(value)
