"""Plots of curves, one below the other over a common axis: returns, rewards, actions. Matplotlib draws them."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.inspect.pictures.images import check_size
from diskbuffer.plugin import require

_DPI, _PANEL, _AROUND = 100, 150, 70  # pixels an inch, of a panel's height, and above and below all panels
_MOST_LINES, _HUGE = 8, 1e300


def curves(values: Mapping[str, npt.NDArray[Any]], x: npt.NDArray[Any], *, x_label: str, title: str = "", width: int) -> bytes:
    """Plot arrays of numbers, a panel each, over a common axis; return a PNG.

    Parameters
    ----------
    values : mapping of str to (n,) or (n, ...) array
        By name. Of floats the points are connected; integers and booleans, such as actions, are drawn as dashes. What is no
        number, or infinite, is a gap. An array of several axes has a line for each component, of which the first eight are drawn.
    x : (n,) array
        Where they lie, in ascending order.
    x_label, title : str
        Below the axis, and above everything.
    width : int
        Of the plot, in pixels.

    Raises
    ------
    MissingPackageError
        Matplotlib is not installed.
    """
    figures = require("matplotlib.figure", "matplotlib", "plots", "to draw plots")
    height = _PANEL * len(values) + _AROUND
    check_size(height, width)
    figure = figures.Figure((width / _DPI, height / _DPI), _DPI, layout="constrained")
    panels = figure.subplots(len(values), 1, sharex=True, squeeze=False).ravel()
    for panel, (name, array) in zip(panels, values.items(), strict=True):
        panel.set_title(_plain(name), loc="left", fontsize="small", parse_math=False)
        panel.grid(visible=True, alpha=0.3)
        _draw(panel, x, array)
    panels[-1].set_xlabel(x_label, parse_math=False)
    figure.suptitle(_plain(title), fontsize="medium", parse_math=False)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # which is drawn as a box
        figure.savefig(file, format="png", dpi=_DPI)
    return file.getvalue()


def _draw(panel: Any, x: npt.NDArray[Any], array: npt.NDArray[Any]) -> None:
    lines = array.reshape(len(array), math.prod(array.shape[1:])).astype(np.float64)
    lines, handles = np.where(np.isfinite(lines), np.clip(lines, -_HUGE, _HUGE), np.nan), []
    for line in lines[:, :_MOST_LINES].T:
        handles += panel.plot(x, line, "-" if array.dtype.kind == "f" else "_", linewidth=1)
        finite = np.pad(np.isfinite(line), 1)
        alone = finite[1:-1] & ~finite[:-2] & ~finite[2:]  # between two gaps
        panel.plot(x[alone], line[alone], ".", color=handles[-1].get_color())
    if lines.shape[1] > 1:
        more = f"and {lines.shape[1] - _MOST_LINES:,} more" if lines.shape[1] > _MOST_LINES else None
        names = [f"[{n}]" for n in range(len(handles))]
        legend = panel.legend(handles, names, title=more, loc="upper right", ncols=len(names), fontsize="x-small")
        legend.set_in_layout(False)  # it lies within the panel


def _plain(text: str) -> str:
    """Return a text as one line that can be drawn."""
    return "".join(c if c.isprintable() else " " for c in text[:200])
