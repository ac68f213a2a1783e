"""Timing competitors in turn, on the same indices, so that a machine's moods strike them all; and writing JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("diskbuffer", "numpy", "torch", "zarr", "numcodecs", "numba", "stable-baselines3", "torchrl", "tianshou", "cpprb")


def in_turn(
    rounds: int, competitors: Mapping[str, Callable[[Any], Any]], given: Callable[[], Any], each: int = 1
) -> dict[str, list[float]]:
    """Time the competitors in turn, `each` calls of one on inputs that the others get, too; return seconds by name.

    With several calls in a row a competitor's median call finds the CPU's caches as it left them itself, as in a loop that
    samples; with one, as the competitor before left them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in range(rounds):
        values = [given() for _ in range(each)]
        for name, call in competitors.items():
            for value in values:
                begin = time.perf_counter()
                result = call(value)
                seconds[name].append(time.perf_counter() - begin)
                del result
    return seconds


def ratio(a: list[float], b: list[float], each: int = 1) -> float:
    """Return the median, over rounds, of a's time over b's, which are each the median of the round's calls."""
    one, other = (np.median(np.reshape(seconds, (-1, each)), axis=1) for seconds in (a, b))
    return float(np.median(one / other))


def quantiles(seconds: list[float], unit: float = 1e3) -> dict[str, float]:
    """Summarise times, in milliseconds or another unit."""
    low, median, high = (float(np.quantile(seconds, q)) * unit for q in (0.25, 0.5, 0.75))
    return {"median": round(median, 4), "p25": round(low, 4), "p75": round(high, 4), "n": len(seconds)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Report:
    """Collect rows with their targets, print them, and write them as JSON."""

    def __init__(self, name: str, seed: int) -> None:
        self._data: dict[str, Any] = {
            "benchmark": name,
            "seed": seed,
            "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
            "versions": {package: _version(package) for package in PACKAGES},
            "times": {},
            "rows": [],
        }

    def times(self, name: str, seconds: list[float], unit: float = 1e3, label: str = "ms") -> None:
        """Note the times of one competitor."""
        found = quantiles(seconds, unit)
        self._data["times"][name] = {"unit": label, **found}
        print(f"  {name:<58} {found['median']:10.3f} {label}   ({found['p25']:.3f} to {found['p75']:.3f})")

    def row(self, what: str, value: float, unit: str, target: str, met: bool) -> None:
        """Note a figure that has a target."""
        self._data["rows"].append({"what": what, "value": round(value, 4), "unit": unit, "target": target, "met": bool(met)})
        print(f"{'ok  ' if met else 'MISS'} {what:<68} {value:9.3f} {unit:<6} (target: {target})")

    def write(self, path: Path | None) -> None:
        """Write everything to a file."""
        if path is not None:
            path.write_text(json.dumps(self._data, indent=2) + "\n")


def arguments(description: str) -> argparse.Namespace:
    """Parse the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds and of the frames, to see that it runs")
    return parser.parse_args(sys.argv[1:])
