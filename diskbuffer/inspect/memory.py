"""How much memory this process has to itself, and how much the machine has left."""

from __future__ import annotations

import os
from pathlib import Path

_STATUS, _MEMINFO = Path("/proc/self/status"), Path("/proc/meminfo")


def anonymous_bytes() -> int | None:
    """Return the bytes of memory that this process has to itself, files that are mapped apart; None where it is not told."""
    return _kilobytes(_STATUS, "RssAnon")


def available_bytes() -> int | None:
    """Return the bytes of memory that programs can still get, the page cache counted as free; None where it is not told."""
    found = _kilobytes(_MEMINFO, "MemAvailable")
    if found is None and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    return found


def _kilobytes(file: Path, name: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:  # macOS
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
