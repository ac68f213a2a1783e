"""Pictures of the curves: one SVG file each, readable on a light and on a dark page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bench.figures import Figures

TEXT = "#7d8590"  # on white and on black
OURS, LEAST = "#1f7fe0", "#8b949e"
COLOURS = ("#e8590c", "#2f9e44", "#ae3ec9", "#c99700", "#e03131", "#0ca678", "#d6336c", "#795548")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)))


def file_of(curve: str) -> str:
    """Return the name of a curve's picture."""
    return re.sub(r"[^a-z0-9]+", "-", curve.lower()).strip("-") + ".svg"


def draw(figures: Figures, directory: Path) -> list[Path]:
    """Draw all curves of a benchmark; return the files."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "diskbuffer", "svg.fonttype": "none", "font.size": 9})
    directory.mkdir(exist_ok=True)
    return [_draw(curve, drawn, directory / file_of(curve)) for curve, drawn in figures.get("curves", {}).items()]


def _draw(curve: str, drawn: Figures, path: Path) -> Path:
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure, axes = pyplot.subplots(figsize=(7.6, 4.0), layout="constrained")
    names = list(dict.fromkeys(point["name"] for point in drawn["points"]))
    others = [name for name in names if not name.startswith("diskbuffer") and name != "numpy"]
    for name in names:
        points = [point for point in drawn["points"] if point["name"] == name]
        x, median = [point["x"] for point in points], [point["median"] for point in points]
        style: dict[str, Any] = {"color": OURS, "linewidth": 2.4, "linestyle": "-" if name == "diskbuffer" else DASHES[1]}
        if name == "numpy":
            style = {"color": LEAST, "linewidth": 1.6, "linestyle": DASHES[1]}
        elif name in others:
            number = others.index(name)
            style = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS)], "linewidth": 1.2}
        axes.plot(x, median, label=name, marker="o", markersize=3, **style)
        axes.fill_between(
            x,
            [point["p25"] for point in points],
            [point["p75"] for point in points],
            color=style["color"],
            alpha=0.15,
            linewidth=0,
        )
    axes.set(xscale="log", yscale="log", xlabel=drawn["along"], ylabel=drawn["unit"])
    axes.set_title(curve, color=TEXT)
    ticks = sorted({point["x"] for point in drawn["points"]})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.tick_params(colors=TEXT, which="both")
    axes.xaxis.label.set_color(TEXT)
    axes.yaxis.label.set_color(TEXT)
    for spine in axes.spines.values():
        spine.set_color(TEXT)
    axes.grid(color=TEXT, alpha=0.2, linewidth=0.5)
    figure.legend(loc="outside right upper", frameon=False, labelcolor=TEXT, fontsize=7.5)
    figure.savefig(path, transparent=True, metadata={"Date": None})
    pyplot.close(figure)
    return path
