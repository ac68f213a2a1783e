"""The distribution of a column's values, collected part by part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_BINS = 20
_KEPT = 2**18  # values that quantiles and the histogram are of; counts, mean, std and extremes are of all
_CATEGORIES = 64  # different integers, of which each is counted


class Distribution:
    """Count, mean, standard deviation, extremes, quantiles and a histogram of values that come part by part.

    Values of several axes count one by one. NaN and infinities are counted, and are in nothing else. Complex numbers count by
    their magnitude.

    Parameters
    ----------
    dtype : numpy.dtype
    seed : int
        For which values are kept, where there are many.
    """

    def __init__(self, dtype: np.dtype[Any], seed: int = 0) -> None:
        self._dtype = dtype
        self._rng = np.random.default_rng(seed)
        self.n = self.nan = self.infinite = 0
        self.mean = self._squares = 0.0
        self.low, self.high = math.inf, -math.inf
        self._kept: list[Array] = []
        self._n_kept, self._share = 0, 1.0
        self._counts: dict[Any, int] | None = {} if dtype.kind in "biu" else None

    @classmethod
    def of(cls, values: Array) -> Distribution:
        """Return the distribution of an array."""
        found = cls(values.dtype)
        found.add(values)
        return found

    def add(self, values: Array) -> None:
        """Count values, of any shape."""
        values = np.asarray(values).reshape(-1)
        if values.dtype.kind == "c":
            values = np.abs(values)
        if values.dtype.kind == "f":
            finite = np.isfinite(values)
            if not finite.all():
                self.nan += int(np.isnan(values).sum())
                self.infinite += int(np.isinf(values).sum())
                values = values[finite]
        if not len(values):
            return
        if values.dtype == np.uint8:  # pictures: a table of 256 counts tells all
            self._add_bytes(values)
        else:
            self._add(values)

    def _add_bytes(self, values: Array) -> None:
        counts = np.bincount(values, minlength=256)
        there = np.flatnonzero(counts)
        numbers = there.astype(np.float64)
        mean = float((numbers * counts[there]).sum() / len(values))
        self._merge(len(values), mean, float((counts[there] * (numbers - mean) ** 2).sum()), int(there[0]), int(there[-1]))
        self._count({int(value): int(counts[value]) for value in there}, most=256)

    def _add(self, values: Array) -> None:
        numbers = values.astype(np.float64)
        mean = float(numbers.mean())
        self._merge(len(values), mean, float(((numbers - mean) ** 2).sum()), values.min().item(), values.max().item())
        if self._counts is not None:
            some, counts = np.unique(values, return_counts=True)
            self._count(dict(zip(some.tolist(), counts.tolist(), strict=True)), most=_CATEGORIES)
        self._keep(numbers)

    def _merge(self, n: int, mean: float, squares: float, low: float, high: float) -> None:
        """Combine with the figures of a part (Chan, Golub and LeVeque, 1979)."""
        total = self.n + n
        apart = mean - self.mean
        self._squares += squares + apart**2 * self.n * n / total
        self.mean += apart * n / total
        self.n, self.low, self.high = total, min(self.low, low), max(self.high, high)

    def _count(self, counts: dict[Any, int], most: int) -> None:
        if self._counts is None:
            return
        for value, n in counts.items():
            self._counts[value] = self._counts.get(value, 0) + n
        if len(self._counts) > most:
            self._counts = None

    def _keep(self, numbers: Array) -> None:
        """Keep a share of the values, which is halved whenever there are too many, so that each has had the same chance."""
        if self._share < 1:
            numbers = numbers[self._rng.integers(0, len(numbers), self._rng.binomial(len(numbers), self._share))]
        self._kept.append(numbers)
        self._n_kept += len(numbers)
        while self._n_kept > 2 * _KEPT:
            together = np.concatenate(self._kept)
            self._kept = [self._rng.permutation(together)[: len(together) // 2]]
            self._n_kept, self._share = len(together) // 2, self._share / 2

    @property
    def std(self) -> float:
        """The standard deviation."""
        return math.sqrt(self._squares / self.n) if self.n else math.nan

    @property
    def counts(self) -> dict[Any, int] | None:
        """How often each value came, where there are few; ascending."""
        if self._counts is None:
            return None
        return dict(sorted(self._counts.items()))

    def to_json(self) -> dict[str, Any]:
        """Return all of it, as JSON has it: ``n``, ``nan`` and ``infinite`` always, the rest where there are finite values."""
        found: dict[str, Any] = {"n": self.n, "nan": self.nan, "infinite": self.infinite}
        if not self.n:
            return found
        found |= {"mean": self.mean, "std": self.std, "min": self.low, "max": self.high}
        counts = self.counts
        if counts is not None and self._dtype.kind in "iu" and not self._kept:  # bytes, of which all are counted
            values, weights = np.array(list(counts), np.float64), np.array(list(counts.values()))
        else:
            kept = np.concatenate(self._kept)
            values, weights = kept, np.ones(len(kept), np.int64)
        found["quantiles"] = {str(q): value for q, value in zip(QUANTILES, _quantiles(values, weights), strict=True)}
        bins = min(_BINS, max(1, int(self.high - self.low) + 1)) if self._dtype.kind in "biu" else _BINS
        try:
            heights, edges = np.histogram(values, bins, (float(self.low), float(self.high)), weights=weights)
        except ValueError:  # wider than the largest number, or too narrow to be divided
            heights, edges = np.array([weights.sum()]), np.array([self.low, self.high], np.float64)
        found["histogram"] = {"edges": edges.tolist(), "counts": heights.astype(int).tolist()}
        if counts is not None and len(counts) <= _CATEGORIES:
            found["counts"] = {str(value): n for value, n in counts.items()}
        return found


def _quantiles(values: Array, weights: Array) -> list[float]:
    """Return the smallest values that so many of all are not above."""
    order = np.argsort(values, kind="stable")
    until = np.cumsum(weights[order])
    at = [int(np.searchsorted(until, q * until[-1])) for q in QUANTILES]
    return [float(values[order[min(n, len(order) - 1)]]) for n in at]
