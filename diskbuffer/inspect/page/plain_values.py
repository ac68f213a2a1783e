"""Arrays as JSON holds them: few enough points to be drawn, as few digits as one sees, and null for what is no number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_DIGITS = 6


def thinned(values: npt.NDArray[Any], most: int) -> npt.NDArray[np.int64]:
    """Choose rows of (n, k) values so that what is drawn of them looks the same; all where there are no more than `most`.

    The rows are cut into stretches, and of each the smallest and the largest value of every column is kept.
    """
    n, k = values.shape
    if n <= most:
        return np.arange(n)
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
    finite = np.isfinite(values)
    with np.errstate(over="ignore", invalid="ignore"):
        sums, counts = (np.append(0.0, np.cumsum(each)) for each in (np.where(finite, values, 0.0), finite))
        first = np.maximum(at + 1 - window, 0)
        return (sums[at + 1] - sums[first]) / (counts[at + 1] - counts[first])  # type: ignore[no-any-return]


def to_list(values: npt.NDArray[Any]) -> list[Any]:
    """Return (n,) values as a list: integers as they are, floats with six digits, None for NaN and infinities."""
    if values.dtype.kind != "f":
        return list((values + 0 if values.dtype.kind == "b" else values).tolist())
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in values.tolist()]
