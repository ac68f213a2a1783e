"""Words of messages."""

from __future__ import annotations


def counted(n: int, what: str) -> str:
    """Return a number of things, as a sentence has it: "1 episode", "2,000 episodes"."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def size(n: float) -> str:
    """Return a number of bytes as people write it: "1 byte", "17.3 KB", "1.2 GB"."""
    if n == 1:
        return "1 byte"
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if abs(n) < 1000 or unit == "TB":
            break
        n /= 1000
    return f"{n:,.0f} {unit}" if unit == "bytes" or abs(n) >= 100 else f"{n:.3g} {unit}"
