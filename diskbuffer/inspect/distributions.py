"""The distribution of an array's values, as JSON holds it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_BINS = 20
_CATEGORIES = 64  # different integers, of which each is counted


def distribution(values: Array) -> dict[str, Any]:
    """Return count, mean, standard deviation, extremes, quantiles and a histogram of an array's values.

    Parameters
    ----------
    values : array
        Of any shape; values count one by one. NaN and infinities are counted, and are in nothing else. Complex numbers count by
        their magnitude.

    Returns
    -------
    dict
        ``n``, ``nan`` and ``infinite`` always; where there are finite values, ``mean``, ``std``, ``min``, ``max``, ``quantiles``
        (the smallest value that so many of all are not above), ``histogram`` (``edges``, ``counts``); and ``counts``, of each
        value, where they are integers and at most 64 different ones.
    """
    values = np.asarray(values).reshape(-1)
    values = np.abs(values) if values.dtype.kind == "c" else values
    figures: dict[str, Any] = {"n": len(values), "nan": 0, "infinite": 0}
    if values.dtype.kind == "f":
        finite = np.isfinite(values)
        figures = {"n": int(finite.sum()), "nan": int(np.isnan(values).sum()), "infinite": int(np.isinf(values).sum())}
        values = values[finite]
    if not len(values):
        return figures
    whole, weights = values.dtype.kind in "biu", None
    if whole:  # a table of counts tells all, and is small
        values, weights = np.unique(values, return_counts=True)
    low, high = values.min().item(), values.max().item()
    numbers = values.astype(np.float64)
    scale = 2.0 ** (math.frexp(max(abs(low), abs(high)))[1] - 1)  # or squares, and sums, are too large for a number
    scaled = numbers / scale
    mean = np.average(scaled, weights=weights)
    std = np.sqrt(np.average((scaled - mean) ** 2, weights=weights))
    figures |= {"mean": float(mean) * scale, "std": float(std) * scale, "min": low, "max": high}
    quantiles = np.quantile(numbers, QUANTILES, method="inverted_cdf", weights=weights)
    figures["quantiles"] = {str(q): value for q, value in zip(QUANTILES, quantiles.tolist(), strict=True)}
    bins: Any = _BINS
    if whole:  # as many integers in each
        width = -(-(int(high) - int(low) + 1) // _BINS)
        bins = float(low) + float(width) * np.arange(-(-(int(high) - int(low) + 1) // width) + 1)
    try:
        heights, edges = np.histogram(numbers, bins, None if whole else (float(low), float(high)), weights=weights)
    except ValueError:  # wider than the largest number, or too narrow to be divided
        heights, edges = np.array([figures["n"]]), np.array([low, high], np.float64)
    figures["histogram"] = {"edges": edges.tolist(), "counts": heights.astype(int).tolist()}
    if weights is not None and len(values) <= _CATEGORIES:
        figures["counts"] = {str(value): n for value, n in zip(values.tolist(), weights.tolist(), strict=True)}
    return figures
