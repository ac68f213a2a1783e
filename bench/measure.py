"""Timing competitors in turn, so that a machine's moods strike them all; ratios with their spread; and writing JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.machine import busy, machine, versions

ONLY = "measure these anew, and keep what the file has of the others"


def in_turn(
    rounds: int,
    competitors: Mapping[str, Callable[[Any], Any]],
    given: Callable[[], Any],
    each: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time the competitors in turn, `each` calls of one on inputs that the others get, too; return seconds by name.

    With several calls in a row a competitor's median call finds the CPU's caches as it left them itself, as in a loop that
    samples; with one, as the competitor before left them. Competitors that have threads or allocators of their own belong into
    processes of their own: see `bench.worker.in_turns`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in range(rounds):
        values = [given() for _ in range(each)]
        for name, call in competitors.items():
            for value in values:
                begin = clock()
                result = call(value)
                seconds[name].append(clock() - begin)
                del result
    return seconds


class Ratio(NamedTuple):
    """The quotient of two competitors' times, round by round: the median, and from which to which quarter of the rounds."""

    median: float
    low: float
    high: float
    n: int


def ratio(a: Sequence[float], b: Sequence[float], each: int = 1) -> Ratio:
    """Return a's time over b's, each the median of a round's calls. Where one took part in fewer rounds, those count."""
    one, other = (np.median(np.reshape(seconds, (-1, each)), axis=1) for seconds in (a, b))
    n = min(len(one), len(other))
    quotients = one[:n] / other[:n]
    low, median, high = (float(np.quantile(quotients, q)) for q in (0.25, 0.5, 0.75))
    return Ratio(median, low, high, n)


def percent_more(value: Ratio) -> Ratio:
    """Return how many percent more a is than b."""
    median, low, high = (100 * (part - 1) for part in value[:3])
    return Ratio(median, low, high, value.n)


def quantiles(seconds: Sequence[float], unit: float = 1e3) -> dict[str, float]:
    """Summarise times, in milliseconds or another unit."""
    low, median, high = (float(np.quantile(seconds, q)) * unit for q in (0.25, 0.5, 0.75))
    return {"median": round(median, 4), "p25": round(low, 4), "p75": round(high, 4), "n": len(seconds)}


class Report:
    """Collect times, curves, and rows with their targets; print them, and write them as JSON."""

    def __init__(self, name: str, seed: int, *, quick: bool = False) -> None:
        self.quick = quick
        self._data: dict[str, Any] = {
            "benchmark": name,
            "quick": quick,
            "seed": seed,
            "machine": machine(),
            "versions": versions(),
            "left_out": {},
            "times": {},
            "curves": {},
            "rows": [],
        }
        self._begun, self._busy = time.monotonic(), [busy()]

    def left_out(self, what: str, why: str) -> None:
        """Note what could not take part."""
        if why not in self._data["left_out"].get(what, ""):
            self._data["left_out"][what] = why
            print(f"  {what} is left out: {why}")

    def times(self, name: str, seconds: Sequence[float], unit: float = 1e3, label: str = "ms") -> None:
        """Note the times of one competitor."""
        found = quantiles(seconds, unit)
        self._data["times"][name] = {"unit": label, **found}
        print(f"  {name:<58} {found['median']:10.3f} {label}   ({found['p25']:.3f} to {found['p75']:.3f})")

    def point(
        self, curve: str, along: str, x: float, name: str, values: Sequence[float], unit: float = 1e6, label: str = "us"
    ) -> None:
        """Note what one competitor took at `x` of a curve, whose horizontal axis is called `along`."""
        found = quantiles(values, unit)
        drawn = self._data["curves"].setdefault(curve, {"along": along, "unit": label, "points": []})
        drawn["points"].append({"x": x, "name": name, **found})
        print(
            f"  {curve}, {along} {x:<9,} {name:<42} {found['median']:10.3f} {label}   ({found['p25']:.3f} to {found['p75']:.3f})"
        )
        self._busy.append(busy())

    def row(
        self, what: str, value: float | Ratio, unit: str, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Note a figure, and its target, if it has one."""
        found = value if isinstance(value, Ratio) else Ratio(value, value, value, 1)
        met = (at_least is None or found.median >= at_least) and (at_most is None or found.median <= at_most)
        target = f"at least {at_least:,}" if at_least is not None else "none" if at_most is None else f"at most {at_most:,}"
        row: dict[str, Any] = {"what": what, "value": round(found.median, 4), "unit": unit, "target": target, "met": met}
        if isinstance(value, Ratio):
            row |= {"low": round(value.low, 4), "high": round(value.high, 4), "n": value.n}
        self._data["rows"].append(row)
        spread = f" ({found.low:.3f} to {found.high:.3f})" if isinstance(value, Ratio) else ""
        print(f"{'ok  ' if met else 'MISS'} {what:<68} {found.median:9.3f}{spread} {unit:<6} (target: {target})")
        self._busy.append(busy())

    def write(self, path: Path | None, *, keep: bool = False) -> None:
        """Write everything to a file; with `keep`, what it has and was not measured now stays there."""
        if path is None:
            return
        self._busy.append(busy())
        seconds = round(time.monotonic() - self._begun)
        self._data["machine"] |= {"seconds": seconds, "busy": round(float(np.median(self._busy)), 2)}
        written = self._data
        if keep and path.exists():
            old = json.loads(path.read_text())
            measured = {row["what"] for row in self._data["rows"]}
            rows = [row for row in old["rows"] if row["what"] not in measured] + self._data["rows"]
            both = {part: {**old.get(part, {}), **self._data[part]} for part in ("left_out", "times", "curves")}
            written = {**self._data, **both, "rows": rows, "quick": self.quick or old.get("quick", False)}
        path.write_text(json.dumps(written, indent=2) + "\n")


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks have."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--json", type=Path, help="write all figures to this file")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--quick", action="store_true", help="a few rounds of a part of the data, to see that it runs")
    return options


def arguments(description: str) -> argparse.Namespace:
    """Parse them."""
    return parser(description).parse_args(sys.argv[1:])
