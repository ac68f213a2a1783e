"""What a campaign did, as a row of one table."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """A promise that was put to the test: how often, and how often it was broken."""

    what: str
    done: int
    broken: int
    notes: list[str] = field(default_factory=list)
