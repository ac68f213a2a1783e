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


def step_names(steps: Any) -> npt.NDArray[np.int64]:
    """Return the names of steps, (n,) int64; an InputError where they are no integers."""
    ids = as_array("steps", steps)
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
        raise InputError(f"steps: expected integers of shape (n,), found {ids.dtype} of shape {ids.shape}")
    return ids.astype(np.int64)
