"""Timing competitors in turn, so that a machine's moods strike them all; ratios with their spread; parts; and JSON."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import Distribution, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

PACKAGES = (
    *("diskbuffer", "numpy", "torch", "numcodecs", "zarr", "zarrs", "tensorstore", "stable-baselines3"),
    *("sb3-extra-buffers", "torchrl", "tianshou", "cpprb", "flashbax", "jax", "memmap-replay-buffer", "pylance"),
    *("gymnasium", "ale-py", "box2d", "mujoco", "ray"),
)


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
    low, median, high = _quartiles(one[:n] / other[:n])
    return Ratio(median, low, high, n)


def _quartiles(values: Any) -> list[float]:
    return [float(value) for value in np.quantile(values, (0.25, 0.5, 0.75))]


def anonymous() -> int:
    """Return the bytes of RAM that this process has to itself: pages of files are the kernel's to drop."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("RssAnon")).split()[1])


def settled() -> int:
    """Return the same without what was freed, and is kept to be given out again."""
    gc.collect()
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
    return anonymous()


class Report:
    """Collect times, and rows with their targets; print them, and write them as JSON.

    `seed` is of everything random; with `quick` a few rounds of a part of the data are enough; `options` are all that the command
    was given.
    """

    def __init__(self, name: str, seed: int = 0, *, quick: bool = False, options: argparse.Namespace | None = None) -> None:
        self.quick, self.seed, self.options = quick, seed, options or argparse.Namespace()
        self._data: dict[str, Any] = {"benchmark": name, "quick": quick, "seed": seed, "machine": _machine()}
        installed = {package: version(package) for package in PACKAGES if list(Distribution.discover(name=package))}
        self._data |= {"versions": installed, "left_out": {}, "times": {}, "rows": []}
        self._begun, self._busy = time.monotonic(), [os.getloadavg()[0]]

    def left_out(self, what: str, why: str) -> None:
        """Note what could not take part."""
        if why not in self._data["left_out"].get(what, ""):
            self._data["left_out"][what] = why
            print(f"  {what} is left out: {why}")

    def times(self, name: str, seconds: Sequence[float], unit: float = 1e3, label: str = "ms") -> None:
        """Note the times of one competitor, in milliseconds or another unit."""
        low, median, high = (round(value * unit, 4) for value in _quartiles(seconds))
        self._data["times"][name] = {"unit": label, "median": median, "p25": low, "p75": high, "n": len(seconds)}
        self._tell(f"  {name:<58} {median:10.3f} {label}   ({low:.3f} to {high:.3f})")

    def row(
        self, what: str, value: float | Ratio, unit: str, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Note a figure, and its target, if it has one."""
        found = value if isinstance(value, Ratio) else Ratio(value, value, value, 1)
        met = (at_least is None or found.median >= at_least) and (at_most is None or found.median <= at_most)
        target = f"at least {at_least:,}" if at_least is not None else "none" if at_most is None else f"at most {at_most:,}"
        row: dict[str, Any] = {"what": what, "value": round(found.median, 4), "unit": unit, "target": target, "met": met}
        spread = ""
        if isinstance(value, Ratio):
            row |= {"low": round(value.low, 4), "high": round(value.high, 4), "n": value.n}
            spread = f" ({found.low:.3f} to {found.high:.3f})"
        self._data["rows"].append(row)
        self._tell(f"{'ok  ' if met else 'MISS'} {what:<68} {found.median:9.3f}{spread} {unit:<6} (target: {target})")

    def _tell(self, line: str) -> None:
        print(line, flush=True)
        self._busy.append(os.getloadavg()[0])

    def write(self, path: Path | None, *, keep: bool = False) -> None:
        """Write everything to a file; with `keep`, what it has and was not measured now stays there."""
        if path is None:
            return
        busy = round(float(np.median(self._busy)), 2)  # programs that want to run; this one counts as one, or as its threads
        self._data["machine"] |= {"seconds": round(time.monotonic() - self._begun), "busy": busy}
        written = self._data
        if keep and path.exists():
            old = json.loads(path.read_text())
            measured = {row["what"] for row in self._data["rows"]}
            rows = [row for row in old["rows"] if row["what"] not in measured] + self._data["rows"]
            both = {part: old.get(part, {}) | self._data[part] for part in ("left_out", "times")}
            written = {**self._data, **both, "rows": rows, "quick": self.quick or old.get("quick", False)}
        path.write_text(json.dumps(written, indent=2) + "\n")


Part = Callable[[Report, Path], None]  # measures something, in an empty directory that is removed afterwards


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks have."""
    options = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    options.add_argument("--json", type=Path, help="write all figures to this file")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--quick", action="store_true", help="a few rounds of a part of the data, to see that it runs")
    return options


def run(name: str, parts: Mapping[str, Part], options: argparse.ArgumentParser) -> None:
    """Measure all parts, or those that ``--only`` names, and write the file after each."""
    if len(parts) > 1:
        about = "measure these anew, and keep what the file has of the others"
        options.add_argument("--only", nargs="+", choices=list(parts), default=list(parts), metavar="PART", help=about)
    args = options.parse_args()
    report, chosen = Report(name, args.seed, quick=args.quick, options=args), args.only if len(parts) > 1 else list(parts)
    for part in chosen:
        directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
        try:
            parts[part](report, directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        report.write(args.json, keep=len(chosen) < len(parts))


def _machine() -> dict[str, Any]:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "disk": _disk(Path(tempfile.gettempdir()).resolve()),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
    }


def _disk(path: Path) -> str:
    """Return a path's file system, and what kind of disk holds it, as far as the system tells."""
    mounted = [each for each in psutil.disk_partitions(all=True) if path.is_relative_to(each.mountpoint)]
    there = max(mounted, key=lambda each: len(each.mountpoint), default=None)
    if there is None:
        return "unknown file system"
    if there.fstype == "tmpfs":
        return "tmpfs, in memory"
    virtual = Path(there.device).name.startswith(("vd", "xvd"))
    return f"{there.fstype}, virtual" if virtual else there.fstype
