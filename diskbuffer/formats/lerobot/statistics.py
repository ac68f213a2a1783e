"""Statistics of episodes and of all of them together, as LeRobot normalizes by them.

As LeRobot has them, arrays have one value for each place on their last axis. Quantiles are exact where an episode has no more
values than are kept of it, else those of rows that are spread evenly. Of pictures as many are looked at as LeRobot takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import ColumnStatistics
from diskbuffer.errors import SourceError
from diskbuffer.formats.json_files import read_json
from diskbuffer.formats.lerobot.features import Feature
from diskbuffer.formats.lerobot.info import STATISTICS
from diskbuffer.formats.lerobot.pixels import UInt8
from diskbuffer.plugin import picture_kind

Float64 = npt.NDArray[np.float64]
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)
_KEPT = 2**17  # values of an episode's feature, for its quantiles
_LARGE, _TARGET = 300, 150  # pixels a side: of larger pictures every so many pixels are taken


def read_statistics(root: Path, features: Iterable[Feature]) -> dict[str, npt.NDArray[Any]]:
    """Return the statistics in stats.json of features that have them, as `ColumnStatistics.arrays`; a SourceError if damaged."""
    path, found = root / STATISTICS, dict[str, npt.NDArray[Any]]()
    try:
        stored = read_json(path)
        for feature in features:
            if feature.name in stored and feature.column.np_dtype.kind != "c":  # of which the two parts are numbers there
                figures = {name: np.array(values, np.float64) for name, values in stored[feature.name].items() if name in NAMES}
                found |= _of_column(feature, figures).arrays(feature.path)
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise SourceError(f"{path} is damaged, and may be removed: {type(error).__name__} {error}") from error
    return found


def _of_column(feature: Feature, figures: Mapping[str, npt.NDArray[Any]]) -> ColumnStatistics:
    """Return what LeRobot has of a feature as statistics of its column: pixels from 0 to 255, a value for each channel."""
    kind = picture_kind(feature.column.shape, feature.column.np_dtype)
    if feature.pixels is None:
        shape, axis = feature.column.shape[-1:], -1 if feature.column.shape else 0
    else:
        axis = 0 if kind is None or kind.axis is None else kind.axis - len(feature.column.shape)
        shape = (feature.column.shape[axis],) if axis else ()
    scale = 255 if feature.pixels is not None and feature.column.np_dtype == np.uint8 else 1

    def shaped(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        flat = values.reshape(-1)
        return flat[: math.prod(shape)].reshape(shape)  # a grey picture has three equal channels there

    of = {name: shaped(figures[name]) * scale for name in ("mean", "std", "min", "max")}
    quantiles = {at: shaped(figures[name]) * scale for name, at in QUANTILES.items() if name in figures}
    count = np.full(shape, figures["count"].reshape(-1)[0], np.int64)
    return ColumnStatistics(count=count, quantiles=quantiles, axis=axis, **of)


class Numbers:
    """Statistics of a feature's rows of numbers, given in blocks.

    Parameters
    ----------
    rows : int
        How many there will be.
    """

    def __init__(self, rows: int) -> None:
        self._rows, self._count, self._every = rows, 0, 1
        self._mean: Float64 = np.zeros(0)
        self._squares: Float64 = np.zeros(0)  # of differences from the mean
        self._low: npt.NDArray[Any] = np.zeros(0)
        self._high: npt.NDArray[Any] = np.zeros(0)
        self._kept: list[npt.NDArray[Any]] = []

    def add(self, first: int, values: npt.NDArray[Any]) -> None:
        """Add rows, (n, ...), of which `first` is the first one's number."""
        flat = values.reshape(-1, values.shape[-1])
        low, high = flat.min(axis=0), flat.max(axis=0)
        if not self._count:
            self._every = -(-self._rows * values[0].size // _KEPT)
            self._mean, self._squares = np.zeros(flat.shape[1]), np.zeros(flat.shape[1])
            self._low, self._high = low, high
        self._low, self._high = np.minimum(self._low, low), np.maximum(self._high, high)
        with np.errstate(invalid="ignore", over="ignore"):
            exact = flat.astype(np.float64)
            mean = exact.mean(axis=0)
            total, off = self._count + len(flat), mean - self._mean
            self._squares += ((exact - mean) ** 2).sum(axis=0) + off**2 * (self._count * len(flat) / total)
            self._mean += off * (len(flat) / total)
        self._count = total
        kept = values[-first % self._every :: self._every]
        self._kept.append(kept.reshape(-1, values.shape[-1]).copy())

    def result(self) -> dict[str, list[Any]]:
        """Return the statistics by name."""
        kept = np.concatenate(self._kept)
        with np.errstate(invalid="ignore", over="ignore"):
            quantiles = {name: np.quantile(kept.astype(np.float64), at, axis=0) for name, at in QUANTILES.items()}
        deviation = np.sqrt(self._squares / self._count)
        basic = {"min": self._low, "max": self._high, "mean": self._mean, "std": deviation, "count": np.array([self._rows])}
        return {name: value.tolist() for name, value in (basic | quantiles).items()}


class Pictures:
    """Statistics of a feature's pictures, given in blocks: of each channel, as (3, 1, 1), of values from 0 to 1.

    Parameters
    ----------
    rows : int
        How many there will be.
    """

    def __init__(self, rows: int) -> None:
        count = max(min(100, rows), min(int(rows**0.75), 10_000))
        self._sampled = np.unique(np.round(np.linspace(0, rows - 1, count)).astype(np.int64))
        self._counts = np.zeros((3, 256), np.int64)

    def add(self, first: int, pixels: UInt8) -> None:
        """Add pictures, (n, H, W) or (n, H, W, 3), of which `first` is the first one's number."""
        sampled = self._sampled[(self._sampled >= first) & (self._sampled < first + len(pixels))] - first
        height, width = pixels.shape[1:3]
        every = 1 if max(height, width) < _LARGE else max(height, width) // _TARGET
        for each in pixels[sampled][:, ::every, ::every]:
            for channel in range(3):
                values = each if each.ndim == 2 else each[..., channel]
                if channel and each.ndim == 2:
                    self._counts[channel] = self._counts[0]
                else:
                    self._counts[channel] += np.bincount(values.reshape(-1), minlength=256)

    def result(self) -> dict[str, list[Any]]:
        """Return the statistics by name."""
        figures: dict[str, list[Any]] = {name: [] for name in NAMES}
        values = np.arange(256) / 255
        for counts in self._counts:
            present, total = np.flatnonzero(counts), counts.sum()
            mean = float((values * counts).sum() / total)
            one = {
                "min": values[present[0]],
                "max": values[present[-1]],
                "mean": mean,
                "std": np.sqrt((counts * (values - mean) ** 2).sum() / total),
                **{name: values[np.searchsorted(np.cumsum(counts), at * total)] for name, at in QUANTILES.items()},
            }
            for name, value in one.items():
                figures[name].append([[float(value)]])
        return figures | {"count": [len(self._sampled)]}


class Together:
    """Statistics of all episodes, of those of each: as LeRobot puts them together."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, npt.NDArray[Any]]] = {}

    def add(self, feature: str, statistics: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add the statistics of n episodes, (n, ...) each."""
        mine = dict(statistics)
        before = self._parts.get(feature)
        if before is not None:
            mine = {name: np.concatenate([before[name][None], values]) for name, values in mine.items()}
        self._parts[feature] = _merged(mine)

    def result(self) -> dict[str, dict[str, Any]]:
        """Return them by feature and name."""
        return {feature: {name: value.tolist() for name, value in parts.items()} for feature, parts in self._parts.items()}


def _merged(statistics: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    count = statistics["count"]  # (n, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        weight = (count / count.sum()).reshape(-1, *[1] * (statistics["mean"].ndim - 1))
        mean = (statistics["mean"] * weight).sum(axis=0)
        variance = ((statistics["std"] ** 2 + (statistics["mean"] - mean) ** 2) * weight).sum(axis=0)
        quantiles = {name: (statistics[name] * weight).sum(axis=0) for name in QUANTILES}
    low, high = statistics["min"].min(axis=0), statistics["max"].max(axis=0)
    return {"min": low, "max": high, "mean": mean, "std": np.sqrt(variance), "count": count.sum(axis=0), **quantiles}
