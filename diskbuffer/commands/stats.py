"""`diskbuffer stats`: what the values of a store are like, and what looks wrong with them."""

from __future__ import annotations

import math
from typing import Any

from diskbuffer.commands.arguments import Whole
from diskbuffer.commands.output import EIGHTHS, WRONG, number, show, show_json, show_lines, table, told_of_damage
from diskbuffer.errors import InputError
from diskbuffer.inspect.statistics import MOST_ROWS, SECONDS, statistics
from diskbuffer.plugin import Reader

_SHOWN = 8  # different values that are counted one by one in the table


def stats(path: str, /, *, rows: Whole = MOST_ROWS, seconds: float = SECONDS, seed: Whole = 0, json: bool = False) -> int:
    """Show the distributions of rewards, lengths, returns, actions and values, and what looks wrong with them.

    Finds constant, duplicate and black frames, NaN and infinite values, episodes without an end, actions and columns that never
    vary, rewards that are always zero, and values that look cut off. Of a large store some rows are looked at, drawn at random.

    Parameters
    ----------
    path
        The directory of the store, or of several writers' stores.
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
    reader = Reader(path, tolerate_damage=True)
    found = statistics(reader, most_rows=rows, seconds=seconds, seed=seed)
    if json:
        show_json(found)
    else:
        _show(reader, found)
    code = told_of_damage(reader.info.damage, reader.path)
    return WRONG if any(finding["kind"] == "damaged" for finding in found["findings"]) else code


def _histogram(counts: list[int]) -> str:
    """Draw a histogram in one line."""
    most = max(counts, default=0)
    return "".join(EIGHTHS[math.ceil(8 * n / most)] if most else " " for n in counts)


def _show(reader: Reader, found: dict[str, Any]) -> None:
    looked = found["looked_at"]
    some = "all of them" if looked["rows"] == looked["of_rows"] else f"of {looked['of_rows']:,}, drawn with seed {looked['seed']}"
    stopped = ", until time was up" if looked["stopped"] else ""
    show(f"{reader.path}: {looked['rows']:,} rows were looked at, {looked['steps']:,} of them steps ({some}{stopped})", "")
    rows = []
    episodes = {"length of episodes": found["lengths"], "return of episodes": found["returns"]}
    for name, values in {**found["columns"], **episodes}.items():
        if "mean" in values:
            low, middle, high = (values["quantiles"][q] for q in ("0.01", "0.5", "0.99"))
            figures = (values["mean"], values["std"], values["min"], low, middle, high, values["max"])
            rows.append((name, *map(number, figures), _shape(values)))
    if not rows:
        show("There are no steps yet.")
        return
    show(table(("", "mean", "std", "min", "1 %", "median", "99 %", "max", " "), rows, left=("", " ")), "")
    endings = ", ".join(f"{n:,} {name}" for name, n in found["endings"].items())
    show(f"Episodes: {endings or 'none'}", "")
    lines = [f"- {finding['text']}." for finding in found["findings"]]
    show_lines(*(lines or ["Nothing looks wrong."]))


def _shape(values: dict[str, Any]) -> str:
    counts = values.get("counts")
    if counts is not None and len(counts) <= _SHOWN:
        return ", ".join(f"{value}: {100 * n / values['n']:.3g} %" for value, n in counts.items())
    return _histogram(values["histogram"]["counts"])
