"""Numbers that users give: tensors on any device, arrays, lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.errors import InputError


def as_array(name: str, values: Any) -> npt.NDArray[Any]:
    """Return numbers as an array; an InputError where they are none."""
    try:
        return np.asarray(values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: expected an array or a tensor of numbers, found {type(values).__name__}: {error}") from error


def counted(n: int, what: str) -> str:
    """Return a number of things, as a sentence has it: "1 episode", "2,000 episodes"."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def device_of(device: torch.device | str | None) -> torch.device | None:
    """Return a device that tensors can be sent to, None for the CPU's memory; an InputError where there is none such."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device must be one that PyTorch knows, such as 'cuda' or 'cpu', found {device!r}") from error
    if found.type == "cuda" and (found.index or 0) >= (there := torch.cuda.device_count() if torch.cuda.is_available() else 0):
        raise InputError(
            f"device={str(found)!r} needs a GPU that PyTorch can use, and it finds {there or 'none'}; leave device= out to have "
            "batches on the CPU, or install a PyTorch built for your GPU"
        )
    return None if found.type == "cpu" else found


def step_names(steps: Any) -> npt.NDArray[np.int64]:
    """Return the names of steps, (n,) int64; an InputError where they are no integers."""
    ids = as_array("steps", steps)
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
        raise InputError(f"steps: expected integers of shape (n,), found {ids.dtype} of shape {ids.shape}")
    return ids.astype(np.int64)
