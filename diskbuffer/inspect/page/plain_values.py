"""Arrays as JSON holds them: few enough points to be drawn, as few digits as one sees, and null for what is no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_DIGITS = 6


def thinned(values: npt.NDArray[Any], most: int) -> npt.NDArray[np.int64] | None:
    """Choose rows of (n, k) values so that what is drawn of them looks the same; None where all can be.

    The rows are cut into stretches, and of each the smallest and the largest value of every column is kept.
    """
    n, k = values.shape
    if n <= most:
        return None
    size = -(-n * 2 * k // most)
    whole = n // size * size
    keep = [np.array([0, n - 1])]
    for column in values.T:
        numbers = column.astype(np.float64)
        for sign in (1, -1):
            filled = np.where(np.isfinite(numbers), sign * numbers, np.inf)  # what is no number is no smallest one
            stretches = filled[:whole].reshape(-1, size)
            keep.append(np.arange(len(stretches)) * size + stretches.argmin(axis=1))
            if whole < n:
                keep.append(whole + filled[whole:].argmin(axis=0, keepdims=True))
    return np.unique(np.concatenate(keep))


def running_mean(values: npt.NDArray[Any], at: npt.NDArray[np.int64], window: int) -> npt.NDArray[np.float64]:
    """Return the means of (n,) values at some rows, each with the `window` - 1 before it; of finite values, NaN where none is."""
    found = np.full(len(at), np.nan)
    for n, row in enumerate(at.tolist()):
        some = values[max(0, row + 1 - window) : row + 1]
        some = some[np.isfinite(some)]
        if len(some):
            with np.errstate(over="ignore"):
                found[n] = some.mean()
    return found


def to_list(values: npt.NDArray[Any]) -> list[Any]:
    """Return (n,) values as a list: integers as they are, floats with six digits, None for NaN and infinities."""
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    if values.dtype.kind != "f":
        return list(values.tolist())
    wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    size = np.abs(np.where(finite & (wide != 0), wide, 1.0))
    scale = 10.0 ** np.clip(_DIGITS - 1 - np.floor(np.log10(size)), -280, 280)
    rounded = np.round(np.where(finite, wide, 0.0) * scale) / scale
    if finite.all():
        return list(rounded.tolist())
    return [value if there else None for value, there in zip(rounded.tolist(), finite.tolist(), strict=True)]


def scalar(value: Any) -> Any:
    """Return one number as JSON holds it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return to_list(np.array([value]))[0]
    return value
