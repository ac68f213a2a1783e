"""Words of messages."""

from __future__ import annotations


def counted(n: int, what: str) -> str:
    """Return a number of things, as a sentence has it: "1 episode", "2,000 episodes"."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"
