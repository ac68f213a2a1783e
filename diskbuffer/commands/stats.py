"""`diskbuffer stats`: what the values of a store are like, and what looks wrong with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import diskbuffer as db
from diskbuffer.commands.arguments import AnyStore, Json, Whole
from diskbuffer.commands.output import WELL, WRONG, show, show_json, show_lines, table, telling_damage
from diskbuffer.inspect.statistics import MOST_ROWS, statistics
from diskbuffer.inspect.summary import number
from diskbuffer.plugin import Reader, integer

if TYPE_CHECKING:
    from rich.table import Table

_EIGHTHS = " ▁▂▃▄▅▆▇█"  # of a character's height
_SHOWN = 8  # different values that are counted one by one in the table


@telling_damage
def stats(path: AnyStore, /, *, column: str | None = None, rows: Whole = MOST_ROWS, seed: Whole = 0, json: Json = False) -> int:
    """Show the distributions of rewards, lengths, returns, actions and values, and what looks wrong with them.

    Finds constant, duplicate and black frames, NaN and infinite values, episodes without an end, actions and columns that never
    vary, rewards that are always zero, and values that look cut off. Of a large store some rows are looked at, of 64 MiB at most,
    drawn at random.

    Parameters
    ----------
    column
        Show exact statistics of this column instead, from all of its rows: of each number of a vector, or channel of a picture.
    rows
        How many rows to look at, at most.
    seed
        For which rows are looked at.
    """
    if column is not None:
        with db.ReplayBuffer(path, mode="r") as buffer:
            _show_column(buffer.columns.statistics(column), json=json)
        return WELL
    reader = Reader(path)
    report = statistics(reader, most_rows=integer("rows", rows), seed=seed)
    if json:
        show_json(report)
    else:
        _show(reader, report)
    return WRONG if any(finding["kind"] == "damaged" for finding in report["findings"]) else WELL


def _show_column(found: db.ColumnStatistics, *, json: bool) -> None:
    figures = {name: getattr(found, name) for name in ("count", "mean", "std", "min", "max")}
    figures |= {f"{100 * q:g} %": values for q, values in found.quantiles.items()}
    if json:
        show_json({name: values.tolist() for name, values in figures.items()})
    else:
        places = ["[]"] if not found.count.shape else [f"[{place}]" for place in range(len(found.count))]
        rows = zip(*(map(number, values.reshape(-1).tolist()) for values in figures.values()), strict=True)
        show(table(("", *figures), [(place, *row) for place, row in zip(places, rows, strict=True)], left=("",)))


def _show(reader: Reader, report: dict[str, Any]) -> None:
    looked = report["looked_at"]
    some = "all of them" if looked["rows"] == looked["of_rows"] else f"of {looked['of_rows']:,}, drawn with seed {looked['seed']}"
    show(f"{reader.path}: {looked['rows']:,} rows were looked at, {looked['steps']:,} of them steps ({some})", "")
    values = report["columns"] | {"length of episodes": report["lengths"], "return of episodes": report["returns"]}
    if not any("mean" in one for one in values.values()):
        show("There are no steps yet.")
        return
    show(distributions(values), "")
    endings = ", ".join(f"{n:,} {name}" for name, n in report["endings"].items())
    show(f"Episodes: {endings or 'none'}", "")
    lines = [f"- {finding['text']}." for finding in report["findings"]]
    show_lines(*(lines or ["Nothing looks wrong."]))


def distributions(by_name: Mapping[str, dict[str, Any]]) -> Table:
    """Return a table of distributions, by name, each as `diskbuffer.inspect.distributions.distribution` returns it."""
    rows = []
    for name, values in by_name.items():
        if "mean" in values:
            low, middle, high = (values["quantiles"][q] for q in ("0.01", "0.5", "0.99"))
            figures = (values["mean"], values["std"], values["min"], low, middle, high, values["max"])
            rows.append((name, *map(number, figures), _shape(values)))
    return table(("", "mean", "std", "min", "1 %", "median", "99 %", "max", " "), rows, left=("", " "))


def _shape(values: dict[str, Any]) -> str:
    """Return the share of each of few values, or a histogram in one line."""
    counts, heights = values.get("counts"), values["histogram"]["counts"]
    if counts is not None and len(counts) <= _SHOWN:
        return ", ".join(f"{value}: {100 * n / values['n']:.3g} %" for value, n in counts.items())
    return "".join(_EIGHTHS[math.ceil(8 * n / max(heights))] for n in heights)
