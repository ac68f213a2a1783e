"""One row of the table that all campaigns make together."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """What was tried, how often, how often the promise was broken, and how to see it again."""

    what: str
    done: int
    broken: int
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n  ".join([f"{self.what}: {self.done:,} done, {self.broken:,} broken", *self.notes])
