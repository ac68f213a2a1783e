"""`diskbuffer stats`: what the values of a store are like, and what looks wrong with them."""

from __future__ import annotations

import json as json_module
import math
from pathlib import Path
from typing import Any

from diskbuffer.errors import InputError
from diskbuffer.inspect.statistics import MOST_ROWS, SECONDS, statistics
from diskbuffer.inspect.view import StoreView

_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN = 8  # different values that are counted one by one in the table


def stats(path: Path, *, rows: int = MOST_ROWS, seconds: float = SECONDS, seed: int = 0, json: bool = False) -> int:
    """Show the distributions of rewards, lengths, returns, actions and values, and what looks wrong with them.

    Finds constant, duplicate and black frames, NaN and infinite values, episodes without an end, actions and columns that never
    vary, rewards that are always zero, and values that look cut off. Of a large store some rows are looked at, drawn at random.

    Parameters
    ----------
    path
        The directory of the store.
    rows
        How many rows to look at, at most.
    seconds
        After which no more are looked at.
    seed
        For which rows are looked at.
    json
        Print all figures as JSON.
    """
    if rows < 1 or not seconds > 0:
        raise InputError(f"--rows must be at least 1, and --seconds above 0, found {rows} and {seconds:g}")
    view = StoreView(path)
    found = statistics(view, most_rows=rows, seconds=seconds, seed=seed)
    if json:
        print(json_module.dumps(finite(found), indent=2))
    else:
        _show(path, found)
    return 1 if view.damage is not None or any(finding["kind"] == "damaged" for finding in found["findings"]) else 0


def finite(found: Any) -> Any:
    """Return values as JSON holds them: None where a number is not finite."""
    if isinstance(found, dict):
        return {name: finite(value) for name, value in found.items()}
    if isinstance(found, list):
        return [finite(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def bars(counts: list[int]) -> str:
    """Draw a histogram in one line."""
    most = max(counts, default=0)
    return "".join(_BARS[math.ceil(8 * n / most)] if most else " " for n in counts)


def _show(path: Path, found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, looked = Console(highlight=False), found["looked_at"]
    some = "all" if looked["rows"] == looked["of_rows"] else f"of {looked['of_rows']:,}, drawn with seed {looked['seed']},"
    stopped = ", until time was up" if looked["stopped"] else ""
    console.print(f"[bold]{path}[/]: {looked['rows']:,} rows ({some} {looked['steps']:,} steps) were looked at{stopped}\n")
    if not looked["rows"]:
        console.print("There are no steps yet.")
        return
    table = Table("", "mean", "std", "min", "1 %", "median", "99 %", "max", "", box=None, pad_edge=False)
    for column in table.columns[1:8]:
        column.justify = "right"
    for name, values in {
        **found["columns"],
        "length of episodes": found["lengths"],
        "return of episodes": found["returns"],
    }.items():
        if "mean" not in values:
            continue
        quantiles = values["quantiles"]
        numbers = [
            values["mean"],
            values["std"],
            values["min"],
            quantiles["0.01"],
            quantiles["0.5"],
            quantiles["0.99"],
            values["max"],
        ]
        table.add_row(name, *(f"{number:.4g}" for number in numbers), Text(_shape(values)))
    console.print(table)
    endings = ", ".join(f"{n:,} {name}" for name, n in found["endings"].items())
    console.print(f"\nEpisodes: {endings or 'none'}\n")
    if not found["findings"]:
        console.print("Nothing looks wrong.")
    for finding in found["findings"]:
        console.print(Text(f"- {finding['text']}."))


def _shape(values: dict[str, Any]) -> str:
    counts = values.get("counts")
    if counts is not None and len(counts) <= _SHOWN:
        return ", ".join(f"{value}: {100 * n / values['n']:.2g} %" for value, n in counts.items())
    return bars(values["histogram"]["counts"])
