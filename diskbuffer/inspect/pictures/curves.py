"""Plots of curves, one below the other over a common axis: returns, rewards, actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.inspect.pictures.images import GRID, INK, MUTED, PAPER, check_size, font, pillow, saved, shortened
from diskbuffer.plugin import require

Float64 = npt.NDArray[np.float64]
_LEFT, _RIGHT, _GAP, _TEXT, _FINE = 70, 16, 8, 13, 3  # pixels; lines are drawn _FINE times as large, and made smaller: smooth
_MOST_LINES, _HUGE = 8, 1e300
# Colours that are told apart by everybody, dark enough on white (after Okabe and Ito, 2008).
_COLOURS = (
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (0, 0, 0),
    (128, 128, 128),
)


@dataclass(frozen=True)
class _Axis:
    """Numbers from `low` to `high`, on so many pixels."""

    low: float
    high: float
    pixels: int

    def at(self, values: Any) -> Float64:
        """Return where numbers lie, from 0 to `pixels` - 1."""
        return (np.asarray(values, np.float64) - self.low) / (self.high - self.low) * (self.pixels - 1)


def curves(
    values: Mapping[str, npt.ArrayLike],
    *,
    x: npt.ArrayLike | None = None,
    x_label: str = "step",
    title: str = "",
    width: int = 800,
    height: int = 110,
) -> bytes:
    """Plot arrays of equal length, a panel each, over a common axis.

    Parameters
    ----------
    values : mapping of str to (n,) or (n, ...) array
        By name. Of floats the points are connected; integers and booleans, such as actions, are drawn as dashes. What is no
        number, or infinite, is a gap. An array of several axes has a line for each component, of which the first eight are drawn.
    x : (n,) array, optional
        Where they lie, in ascending order; 0 to n - 1 by default.
    x_label, title : str
        Below the axis, and above everything.
    width : int
        Of the plot, in pixels.
    height : int
        Of each panel.

    Returns
    -------
    bytes
        A PNG. However many values there are, no peak is left out: of those that lie on one column of pixels the smallest and the
        largest are drawn.

    Raises
    ------
    InputError
        Lengths differ, there is nothing to plot, or an array is not of numbers.
    MissingPackageError
        pillow is not installed.
    """
    arrays = {name: _lines(name, given) for name, given in values.items()}
    if not arrays:
        raise InputError("expected arrays to plot, by name, found none")
    n = len(next(iter(arrays.values()))[0])
    places = np.arange(n, dtype=np.float64) if x is None else np.asarray(x, np.float64)
    lengths = {name: len(lines) for name, (lines, _) in arrays.items()} | {"x": len(places)}
    if len(set(lengths.values())) > 1 or places.ndim != 1 or not np.isfinite(places).all():
        raise InputError(f"expected arrays of one length, and x of (n,) finite numbers, found lengths {lengths}")
    if width < _LEFT + _RIGHT + 50 or not 40 <= height <= 2000:
        raise InputError(
            f"a plot is at least {_LEFT + _RIGHT + 50} pixels wide, and a panel 40 to 2,000 high, found {width} and {height}"
        )
    letters = font(_TEXT)
    top = _TEXT + 3 * _GAP if title else _GAP
    step = height + _TEXT + 3 * _GAP
    full = top + len(arrays) * step + 2 * _TEXT + 2 * _GAP
    check_size(full, width)
    image = pillow().new("RGB", (width, full), PAPER)
    draw = require("PIL.ImageDraw", "pillow", "notebook").Draw(image)
    if title:
        draw.text((_LEFT, _GAP), shortened(title, width - _LEFT, letters), INK, letters)
    across = _Axis(*_range(places, 0.005), width - _LEFT - _RIGHT)
    y = top
    for name, (lines, whole) in arrays.items():
        _head(draw, letters, name, lines.shape[1], width, y)
        y += _TEXT + _GAP
        _panel(image, draw, letters, across, places, lines, whole, y, height)
        y += height + 2 * _GAP
    y -= _GAP
    for tick in _ticks(across.low, across.high, max(2, across.pixels // 90), whole=x is None):
        text = _number(tick, across)
        draw.text((_LEFT + across.at(tick).item() - letters.getlength(text) / 2, y), text, MUTED, letters)
    label = shortened(x_label, across.pixels, letters)
    draw.text((_LEFT + (across.pixels - letters.getlength(label)) / 2, y + _TEXT + _GAP // 2), label, INK, letters)
    return saved(image)


def _lines(name: str, given: npt.ArrayLike) -> tuple[Float64, bool]:
    """Return an array as lines, (n, lines), and whether they are of whole numbers."""
    array = np.asarray(given)
    if array.dtype.kind not in "buif" or array.ndim < 1:
        raise InputError(f"{name!r}: expected an array of numbers, (n, ...), found {array.dtype} of shape {array.shape}")
    lines = array.reshape(len(array), math.prod(array.shape[1:])).astype(np.float64)
    return np.where(np.isfinite(lines), np.clip(lines, -_HUGE, _HUGE), np.nan), array.dtype.kind != "f"


def _range(values: Float64, part: float) -> tuple[float, float]:
    """Return from where to where an axis goes: a part of its length farther than the values, each way."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if low == high or (low + high) / 2 + (high - low) / 4 in (low, high):  # or nearly, for floating point
        margin = abs(low) / 10 or 1.0
        return low - margin, high + margin
    margin = (high - low) * part
    return low - margin, high + margin


def _ticks(low: float, high: float, most: int, *, whole: bool) -> list[float]:
    """Return round numbers on an axis, `most` or fewer."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def _number(value: float, axis: _Axis) -> str:
    """Write a tick, with as many digits as neighbours need."""
    digits = max(0, 2 - math.floor(math.log10(axis.high - axis.low)))
    if digits > 6 or max(abs(axis.low), abs(axis.high)) >= 1e9:
        return f"{value:.3g}"
    text = f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _head(draw: Any, letters: Any, name: str, lines: int, width: int, y: int) -> None:
    """Write a panel's name, and which line is which."""
    text = shortened(name, width * 0.5, letters)
    draw.text((_LEFT, y), text, INK, letters)
    at = _LEFT + letters.getlength(text) + 2 * _GAP
    if lines == 1:
        return
    for n in range(min(lines, _MOST_LINES)):
        draw.text((at, y), f"[{n}]", _COLOURS[n], letters)
        at += letters.getlength(f"[{n}]") + _GAP
    if lines > _MOST_LINES:
        draw.text((at, y), f"and {lines - _MOST_LINES:,} more", MUTED, letters)


def _panel(
    image: Any, draw: Any, letters: Any, across: _Axis, places: Float64, lines: Float64, whole: bool, y: int, height: int
) -> None:
    """Draw one panel: ticks, grid and lines."""
    lines = lines[:, :_MOST_LINES]
    up = _Axis(*_range(lines, 0.06), height)
    fine = pillow().new("RGB", (across.pixels * _FINE, height * _FINE), PAPER)
    pen = require("PIL.ImageDraw", "pillow", "notebook").Draw(fine)
    for tick in _ticks(up.low, up.high, max(2, height // 22), whole=whole):
        place = height - 1 - up.at(tick).item()
        pen.line([(0, place * _FINE), (fine.width, place * _FINE)], GRID, _FINE)
        text = shortened(_number(tick, up), _LEFT - _GAP, letters)
        draw.text((_LEFT - _GAP - letters.getlength(text), y + place - _TEXT * 0.6), text, MUTED, letters)
    for tick in _ticks(across.low, across.high, max(2, across.pixels // 90), whole=False):
        place = across.at(tick).item() * _FINE
        pen.line([(place, 0), (place, fine.height)], GRID, _FINE)
    at = across.at(places) * _FINE
    for n in range(lines.shape[1]):
        heights = (height - 1 - up.at(lines[:, n])) * _FINE
        (_dashes if whole else _connected)(pen, at, heights, _COLOURS[n])
    pen.rectangle([(0, 0), (fine.width - 1, fine.height - 1)], None, GRID, _FINE)
    image.paste(fine.resize((across.pixels, height), pillow().Resampling.BOX), (_LEFT, y))


def _connected(pen: Any, at: Float64, heights: Float64, colour: tuple[int, int, int]) -> None:
    """Connect points, but for gaps; a point between two gaps is a dot."""
    there = np.isfinite(heights)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], there, [False]]).astype(np.int8)))
    for first, last in edges.reshape(-1, 2).tolist():
        points = _thinned(at[first:last], heights[first:last])
        if len(points) == 1:
            (x, y), r = points[0], 2 * _FINE
            pen.ellipse([(x - r, y - r), (x + r, y + r)], colour)
        else:
            pen.line(points, colour, round(1.5 * _FINE), joint="curve" if len(points) < 2000 else None)


def _thinned(at: Float64, heights: Float64) -> list[tuple[float, float]]:
    """Return points to connect: of many on one column of pixels its first, smallest, largest and last."""
    columns = np.floor(at / _FINE)
    if len(at) <= 4 * len(np.unique(columns)):
        return list(zip(at.tolist(), heights.tolist(), strict=True))
    firsts = np.flatnonzero(np.diff(columns, prepend=columns[0] - 1))
    lasts = np.append(firsts[1:], len(at)) - 1
    ends = np.minimum.reduceat(heights, firsts), np.maximum.reduceat(heights, firsts)
    points = np.stack([heights[firsts], *ends, heights[lasts]], axis=1)
    return list(zip(np.repeat(at[firsts], 4).tolist(), points.ravel().tolist(), strict=True))


def _dashes(pen: Any, at: Float64, heights: Float64, colour: tuple[int, int, int]) -> None:
    """Draw a dash for each point, as wide as the smallest distance between two, within limits."""
    half = min(max(float(np.diff(at).min(initial=np.inf)) / 2, _FINE), 4 * _FINE)
    there = np.isfinite(heights)
    tall = 2**16  # more than any panel has
    for mark in np.unique(np.rint(at[there]).astype(np.int64) * tall + np.rint(heights[there]).astype(np.int64)).tolist():
        x, y = divmod(mark, tall)
        pen.rectangle([(x - half, y - _FINE), (x + half, y + _FINE)], colour)
