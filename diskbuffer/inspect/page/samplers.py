"""The samplers that the page offers, and what can be chosen of each. Imports no sampler: torch would come with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """A number that a sampler takes."""

    name: str
    title: str
    value: float
    step: str


@dataclass(frozen=True)
class Kind:
    """A sampler as the page offers it."""

    title: str
    options: tuple[Option, ...] = ()


SAMPLERS = {
    "uniform": Kind("Uniform"),
    "recent": Kind("Uniform, recent steps only", (Option("max_age", "largest age, in steps", 50_000, "any"),)),
    "epochs": Kind("Uniform, without replacement"),
    "slices": Kind("Slices", (Option("length", "length", 64, "1"),)),
}


def to_json() -> list[dict[str, Any]]:
    """Return them as plain values."""
    return [
        {"name": name, "title": kind.title, "options": [vars(option) for option in kind.options]}
        for name, kind in SAMPLERS.items()
    ]
