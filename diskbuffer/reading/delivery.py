"""The last of a batch's way: a function of the caller's over it, and to the device where it is wanted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from diskbuffer.errors import InputError
from diskbuffer.inputs import device_of
from diskbuffer.reading.batches.base import Arrays, Batch

Transform = Callable[[Batch], Any]


def transform_of(given: Any) -> Transform | None:
    """Return what is to be done with every batch; an InputError where that is no function."""
    if given is not None and not callable(given):
        raise InputError(f"transform must be a function of a batch, found {given!r}")
    return given  # type: ignore[no-any-return]


def send(arrays: Arrays, transform: Transform | None = None, device: torch.device | None = None) -> Any:
    """Return filled arrays as a batch, or what a function makes of it, on a device if one is given.

    Without a function, frames that ``obs`` and ``next_obs`` share are sent once.
    """
    if transform is not None:
        return _moved(transform(arrays.batch()), device)
    return arrays.batch() if device is None else arrays.deliver(_moved(arrays.tensors(), device))


def sending(transform: Any, device: torch.device | str | None) -> Callable[[Arrays], Any]:
    """Return what makes a batch of filled arrays, as a caller wants it."""
    if transform is None and device is None:
        return send
    return functools.partial(send, transform=transform_of(transform), device=device_of(device))


def _moved(found: Any, device: torch.device | None) -> Any:
    """Copy tensors and arrays in something to a device; dicts, lists and tuples of them stay such."""
    if device is None:
        return found
    if isinstance(found, np.ndarray) and found.dtype.kind in "biufc":
        found = torch.from_numpy(np.ascontiguousarray(found))
    if isinstance(found, torch.Tensor):
        return found.to(device, non_blocking=True, copy=True)
    if isinstance(found, dict):
        return {name: _moved(part, device) for name, part in found.items()}
    if isinstance(found, tuple) and hasattr(found, "_fields"):  # a named one
        return type(found)(*(_moved(part, device) for part in found))
    if isinstance(found, list | tuple):
        return type(found)(_moved(part, device) for part in found)
    return found


def tensors_in(found: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a batch, or in what was made of one."""
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, dict | list | tuple):
        for part in found.values() if isinstance(found, dict) else found:
            yield from tensors_in(part)
