"""Plots of curves, one below the other over a common axis: returns, rewards, actions. Matplotlib draws them."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.inspect.pictures.images import check_size
from diskbuffer.plugin import require

Float64 = npt.NDArray[np.float64]
_DPI, _MOST_LINES, _HUGE = 100, 8, 1e300
_LEFT, _RIGHT, _TOP, _BOTTOM, _NAME = 70, 16, 26, 50, 26  # pixels around panels


def curves(
    values: Mapping[str, npt.ArrayLike],
    *,
    x: npt.ArrayLike | None = None,
    x_label: str = "step",
    title: str = "",
    width: int = 800,
    height: int = 150,
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
        Of each panel, with its name.

    Returns
    -------
    bytes
        A PNG.

    Raises
    ------
    InputError
        Lengths differ, there is nothing to plot, or an array is not of numbers.
    MissingPackageError
        Matplotlib is not installed.
    """
    figures = require("matplotlib.figure", "matplotlib", "plots", "to draw plots")
    arrays = {name: _lines(name, given) for name, given in values.items()}
    if not arrays:
        raise InputError("expected arrays to plot, by name, found none")
    n = len(next(iter(arrays.values()))[0])
    places = np.arange(n, dtype=np.float64) if x is None else np.asarray(x, np.float64)
    lengths = {name: len(lines) for name, (lines, _) in arrays.items()} | {"x": len(places)}
    if len(set(lengths.values())) > 1 or places.ndim != 1 or not np.isfinite(places).all():
        raise InputError(f"expected arrays of one length, and x of (n,) finite numbers, found lengths {lengths}")
    if width < 3 * _LEFT or height < 60:
        raise InputError(f"a plot is at least {3 * _LEFT} pixels wide, and a panel 60 high, found {width} and {height}")
    full = height * len(arrays) + _TOP + _BOTTOM
    check_size(full, width)
    figure = figures.Figure((width / _DPI, full / _DPI), _DPI)
    panels = figure.subplots(len(arrays), 1, sharex=True, squeeze=False).ravel()
    gap = _NAME / (height - _NAME)  # for the name above each panel, of its height
    figure.subplots_adjust(_LEFT / width, _BOTTOM / full, 1 - _RIGHT / width, 1 - (_TOP + _NAME) / full, None, gap)
    for panel, (name, (lines, whole)) in zip(panels, arrays.items(), strict=True):
        _draw(panel, name, places, lines, whole=whole)
    panels[-1].set_xlabel(_plain(x_label), parse_math=False)
    if title:
        figure.suptitle(_plain(title), fontsize="medium", parse_math=False)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # which is drawn as a box
        figure.savefig(file, format="png", dpi=_DPI, bbox_inches=None)
    return file.getvalue()


def _draw(panel: Any, name: str, places: Float64, lines: Float64, *, whole: bool) -> None:
    panel.set_title(_plain(name), loc="left", fontsize="small", parse_math=False)
    panel.grid(visible=True, alpha=0.3)
    drawn = lines[:, :_MOST_LINES]
    for line in drawn.T:
        there = np.isfinite(line)
        around = np.pad(there, 1)
        alone = there & ~around[:-2] & ~around[2:]  # between two gaps
        if whole:
            panel.plot(places, line, "_")
        else:
            (shown,) = panel.plot(places, line, linewidth=1)
            panel.plot(places[alone], line[alone], ".", color=shown.get_color())
    if lines.shape[1] > 1:
        names = [f"[{n}]" for n in range(drawn.shape[1])]
        more = f"and {lines.shape[1] - _MOST_LINES:,} more" if lines.shape[1] > _MOST_LINES else None
        handles = panel.get_lines()[:: 1 if whole else 2]
        panel.legend(handles, names, title=more, loc="upper right", ncols=len(names), fontsize="x-small")


def _lines(name: str, given: npt.ArrayLike) -> tuple[Float64, bool]:
    """Return an array as lines, (n, lines), and whether they are of whole numbers."""
    array = np.asarray(given)
    if array.dtype.kind not in "buif" or array.ndim < 1:
        raise InputError(f"{name!r}: expected an array of numbers, (n, ...), found {array.dtype} of shape {array.shape}")
    lines = array.reshape(len(array), math.prod(array.shape[1:])).astype(np.float64)
    return np.where(np.isfinite(lines), np.clip(lines, -_HUGE, _HUGE), np.nan), array.dtype.kind != "f"


def _plain(text: str) -> str:
    """Return a text as one line that can be drawn."""
    return "".join(c if c.isprintable() else " " for c in text[:200])
