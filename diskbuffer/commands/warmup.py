"""``diskbuffer warmup``: compile beforehand."""

from __future__ import annotations

from diskbuffer.commands.output import WELL


def warmup() -> int:
    """Compile what else the first use compiles, for images and CI."""
    from diskbuffer.precompile import warmup as compiled

    print(f"ready, after {compiled():.0f} s")
    return WELL
