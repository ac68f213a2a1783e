"""The JSON files of the benchmarks, read for rendering and for comparing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Figures = dict[str, Any]  # what `bench.measure.Report` wrote

BENCHMARKS = {  # in the order in which they are run, and shown
    "sizes": "Batches of every size, of every kind of observation",
    "calls": "What a call costs, by its parts",
    "curves": "As there is more of everything",
    "adapters": "In other libraries, beside their own buffers",
    "trainings": "Whole trainings with Stable-Baselines3",
    "writing": "Writing, and what a million steps take",
    "verification": "What checksums cost",
    "prioritized": "Draws by priority",
    "sequences": "Sequences, beside TorchRL",
    "passes": "Passes over everything",
    "scale": "Draws from hundreds of millions of steps",
    "refreshing": "Readers that see what was added",
    "sealing": "How frames are compressed when they are sealed",
    "lossy": "Pictures that lose something, beside the same without a loss",
    "writers": "Several writers' stores, read as one",
    "formats": "To other formats and back",
    "reverb": "An actor and a learner, beside Reverb",
    "ray_buffers": "Over Ray, beside TorchRL's buffer and RLlib's",
    "rllib_curves": "What RLlib's DQN learns, beside its own buffer",
}


def read(place: Path) -> dict[str, Figures]:
    """Return the figures of a file, or of all of a directory's, by benchmark, in order.

    Raises
    ------
    FileNotFoundError
        There is no such file, or there are none in the directory.
    """
    paths = sorted(place.glob("*.json")) if place.is_dir() else [place]
    if not paths:
        raise FileNotFoundError(f"there are no figures in {place}: run `make bench`")
    found = {figures["benchmark"]: figures for figures in (json.loads(path.read_text()) for path in paths)}
    return {name: found[name] for name in BENCHMARKS if name in found}


def rows(figures: Figures) -> dict[str, dict[str, float]]:
    """Return everything that was measured once or more, by what it is: ``value``, ``low`` and ``high``."""
    found = {}
    for row in figures["rows"]:
        value = row["value"]
        found[row["what"]] = {"value": value, "low": row.get("low", value), "high": row.get("high", value)}
    for what, times in figures["times"].items():
        found[f"{what}, {times['unit']}"] = {"value": times["median"], "low": times["p25"], "high": times["p75"]}
    for curve, drawn in figures.get("curves", {}).items():
        for point in drawn["points"]:
            what = f"{curve}, {drawn['along']} {point['x']:,}: {point['name']}, {drawn['unit']}"
            found[what] = {"value": point["median"], "low": point["p25"], "high": point["p75"]}
    return found


def changes(old: dict[str, Figures], new: dict[str, Figures]) -> list[str]:
    """Return a line for every figure that changed by more than the spread of both runs: neither median is in the other's.

    Targets that are met now, or missed now, come first.
    """
    verdicts, moved = [], []
    for name in (name for name in new if name in old):
        met = {row["what"]: row["met"] for row in old[name]["rows"] if row["target"] != "none"}
        for row in new[name]["rows"]:
            if met.get(row["what"], row["met"]) != row["met"]:
                verdict = "met now" if row["met"] else "MISSED now"
                verdicts.append(f"{name}: {row['what']}: {verdict}, {row['value']:,g} {row['unit']} (target: {row['target']})")
        before, after = rows(old[name]), rows(new[name])
        for what in (what for what in after if what in before):
            a, b = before[what], after[what]
            if not a["low"] <= b["value"] <= a["high"] and not b["low"] <= a["value"] <= b["high"]:
                by = f" ({b['value'] / a['value'] - 1:+.0%})" if a["value"] > 0 else ""
                moved.append(f"{name}: {what}: {a['value']:,g} -> {b['value']:,g}{by}")
    return verdicts + moved
