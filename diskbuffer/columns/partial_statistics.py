"""Statistics of some rows, and of several such parts together: how many numbers, moments, extremes, and a histogram.

A histogram has 256 bins. Their width is a power of two, below 1 % of the range, and their edges are multiples of it, so that the
bins of a smaller range fit into those of a larger one whole. Bytes have a bin for each value, and all else follows from these.
Moments of parts are put together as by Chan, Golub and LeVeque, 1979, "Updating formulae and a pairwise algorithm for computing
sample variances".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.blocks import count_bytes
from diskbuffer.schema.pictures import picture_kind
from diskbuffer.schema.schema import Column

Array = npt.NDArray[Any]
BINS = 256
_MOST_PLACES = 4096
_SMALLEST = -1000  # exponent of two: what is smaller is no width that numbers can be divided by
_AT_ONCE = 2**20  # bins that are brought into others at a time


@dataclass(frozen=True)
class Places:
    """What of a row has statistics of its own: each channel of a picture, each number of a vector, each place on a last axis.

    Attributes
    ----------
    shape : tuple of int
        Of the statistics.
    axis : int
        Of a row, counted from its end, on which they lie; 0 where there is one place.
    inner : int
        Consecutive values of one place.
    values : int
        Of a place, in a row.
    dtype : dtype
        The column's.
    """

    shape: tuple[int, ...]
    axis: int
    inner: int
    values: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, column: Column) -> Places:
        """Return those of a column."""
        shape, picture, size = column.shape, picture_kind(column.shape, column.np_dtype), math.prod(column.shape)
        axis = picture.axis if picture is not None else len(shape) - 1
        if axis is None or axis < 0 or shape[axis] > _MOST_PLACES:
            return cls((), 0, size, size, column.np_dtype)
        return cls((shape[axis],), axis - len(shape), math.prod(shape[axis + 1 :]), size // shape[axis], column.np_dtype)

    @property
    def count(self) -> int:
        """How many there are."""
        return self.shape[0] if self.shape else 1

    @property
    def of_bytes(self) -> bool:
        """Whether values are bytes without a sign."""
        return self.dtype.itemsize == 1 and self.dtype.kind in "ub"

    def record(self, counts: str) -> np.dtype[Any]:
        """Return what holds statistics, of numbers in bins of the dtype `counts`."""
        each = (self.count,)
        extremes: list[Any] = [("min", self.dtype, each), ("max", self.dtype, each)]
        moments: list[Any] = [("n", "<i8", each), ("mean", "<f8", each), ("squares", "<f8", each)]  # of differences from the mean
        bins: list[Any] = [("exponent", "<i4", each), ("first", "<i8", each), ("counts", counts, (*each, BINS))]
        return np.dtype([*extremes, *moments, *bins])

    def of_rows(self, rows: Array, counting: npt.NDArray[np.bool_]) -> Array:
        """Return the statistics of those of rows, (n, ...), that count: one record, (1,). NaN and infinity count in nothing."""
        rows = rows if counting.all() else rows[counting]
        record = np.zeros(1, self.record("<i8"))
        if self.of_bytes:
            count_bytes(rows.view(np.uint8).reshape(-1), self.count, self.inner, record["counts"].reshape(-1))
        elif len(rows):
            values = np.moveaxis(rows.reshape(-1, self.count, self.inner), 1, 0).reshape(self.count, -1)
            _fill(record, values)
        return record

    def side_by_side(self, parts: Sequence[Array]) -> Array:
        """Return records, (1,) each, of any dtype of counts, as one array, (n,).

        One by one: `np.concatenate` of two such dtypes takes the smaller one's size, and writes past its array.
        """
        every = np.zeros(len(parts), self.record("<i8"))
        for number, part in enumerate(parts):
            every[number] = part[0]
        return every

    def together(self, parts: Array) -> Array:
        """Return the statistics of parts, (n,) records, together: one record, (1,)."""
        record = np.zeros(1, self.record("<i8"))
        if self.of_bytes:
            record["counts"][0] = parts["counts"].sum(axis=0, dtype=np.int64)
        elif len(parts):
            _join(record, parts)
        return record

    def finish(self, record: Array) -> Array:
        """Return a record with all figures: of bytes, parts have only how often there is each."""
        if self.of_bytes:
            _follow(record)
        return record

    def quantiles(self, record: Array, some: Sequence[float]) -> Array:
        """Return quantiles, (n, places), to 1 % of the range; of integers in a bin each, the smallest that is enough."""
        (one,) = record
        found = np.full((len(some), self.count), np.nan)
        width = np.ldexp(1.0, one["exponent"])
        for place in np.flatnonzero(one["n"]).tolist():
            before = np.concatenate([[0], np.cumsum(one["counts"][place])])
            for k, q in enumerate(some):
                wanted = q * one["n"][place]
                at = min(max(int(np.searchsorted(before, wanted)) - 1, 0), BINS - 1)
                whole = self.dtype.kind in "bui" and one["exponent"][place] == 0
                share = 0 if whole else (wanted - before[at]) / max(before[at + 1] - before[at], 1)
                found[k, place] = (one["first"][place] + at + share) * width[place]
        clipped: Array = np.clip(found, one["min"].astype(np.float64), one["max"].astype(np.float64))
        return clipped


def _follow(record: Array) -> None:
    """Fill in what follows from how often there is each byte."""
    counts, values = record["counts"][0].astype(np.float64), np.arange(256.0)
    record["n"] = n = record["counts"][0].sum(axis=1)
    record["mean"] = mean = counts @ values / np.maximum(n, 1)
    record["squares"] = (counts * (values - mean[:, None]) ** 2).sum(axis=1)
    present = record["counts"][0] > 0
    record["min"], record["max"] = present.argmax(axis=1), np.where(n > 0, 255 - present[:, ::-1].argmax(axis=1), 0)


@np.errstate(over="ignore", invalid="ignore")
def _fill(record: Array, values: Array) -> None:
    """Fill in the statistics of numbers, (places, n)."""
    finite = np.isfinite(values)
    record["n"] = n = finite.sum(axis=1)
    which: Any = True if finite.all() else finite
    limits: Any = np.finfo(values.dtype) if values.dtype.kind == "f" else np.iinfo(values.dtype)
    record["min"] = np.where(n > 0, values.min(axis=1, where=which, initial=limits.max), 0)
    record["max"] = np.where(n > 0, values.max(axis=1, where=which, initial=limits.min), 0)
    exact = values.astype(np.float64)
    low = record["min"][0].astype(np.float64)  # where all numbers are equal, they deviate by nothing
    above = exact - low[:, None]
    mean = above.sum(axis=1, where=which) / np.maximum(n, 1)
    record["mean"], record["squares"] = low + mean, ((above - mean[:, None]) ** 2).sum(axis=1, where=which)
    _choose_bins(record)
    offsets = BINS * np.arange(len(values)) - record["first"][0]
    bins = np.floor(exact * np.ldexp(1.0, -record["exponent"][0])[:, None]) + offsets[:, None]
    bins = bins.reshape(-1) if which is True else bins[finite]
    record["counts"] = np.bincount(bins.astype(np.int64), minlength=BINS * len(values)).reshape(-1, BINS)


@np.errstate(over="ignore", invalid="ignore")
def _join(record: Array, parts: Array) -> None:
    """Fill in the statistics of parts together."""
    n, there = parts["n"], parts["n"] > 0
    record["n"] = total = n.sum(axis=0)
    first = np.argmax(there, axis=0), np.arange(n.shape[1])  # a part with numbers, as others have no extremes
    record["min"] = np.where(there, parts["min"], parts["min"][first]).min(axis=0)
    record["max"] = np.where(there, parts["max"], parts["max"][first]).max(axis=0)
    low = record["min"].astype(np.float64)
    above = parts["mean"] - low
    mean = (n * above).sum(axis=0) / np.maximum(total, 1)
    record["mean"], record["squares"] = low + mean, (parts["squares"] + n * (above - mean) ** 2).sum(axis=0)
    _choose_bins(record)
    places = BINS * np.arange(n.shape[1])[:, None]
    size = max(1, _AT_ONCE // (n.shape[1] * BINS))
    counts = np.zeros(n.shape[1] * BINS)
    for at in range(0, len(parts), size):
        some = parts[at : at + size]
        coarser = np.clip(record["exponent"] - some["exponent"], 0, 63)[..., None]
        bins = (some["first"][..., None] + np.arange(BINS) >> coarser) - record["first"][..., None]
        bins = np.clip(bins, 0, BINS - 1) + places  # outside of these there are none
        counts += np.bincount(bins.reshape(-1), weights=some["counts"].reshape(-1), minlength=len(counts))
    record["counts"] = counts.reshape(-1, BINS)


def _choose_bins(record: Array) -> None:
    """Choose the narrowest bins that reach from the smallest number to the largest."""
    low, high = record["min"].astype(np.float64), record["max"].astype(np.float64)
    largest = np.finfo(np.float64).max
    span = np.maximum(np.minimum(high - low, largest), np.spacing(np.maximum(abs(low), abs(high))))
    exponent = np.maximum(np.frexp(span)[1] - 8, 0 if record["min"].dtype.kind in "ui" else _SMALLEST)
    exponent += np.floor(np.ldexp(high, -exponent)) - np.floor(np.ldexp(low, -exponent)) >= BINS
    record["exponent"], record["first"] = exponent, np.floor(np.ldexp(low, -exponent))
