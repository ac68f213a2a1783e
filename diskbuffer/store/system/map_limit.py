"""How many files a process may map: Linux allows 65,530 by default, and a store takes one for each segment of each column."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from diskbuffer.errors import InputError
from diskbuffer.store.format.layout import TABLE_SLOTS, Layout

_LIMIT, _MAPPED = Path("/proc/sys/vm/max_map_count"), Path("/proc/self/maps")
_FEW = 8  # what takes no more than one in so many of all is let through without counting, which takes milliseconds
_SPARE = 1024  # of maps and of descriptors, for all else that a process does


def files_of(layout: Layout, *, segments: int | None = None, stores: int = 1) -> int:
    """Return how many files are mapped of stores: with so many segments, or with as many as their capacity takes."""
    if segments is None:
        segments = 2 * layout.streams if layout.capacity is None else layout.first_slots()
    table = 1 + len(layout.table()) * max(1, -(-segments // max(1, stores) // TABLE_SLOTS)) + len(layout.packed)
    return segments * len(layout.schema) + stores * table


def problem(files: int) -> str | None:
    """Tell why this process cannot map so many files more; None if it can, or no limit is known."""
    with contextlib.suppress(OSError, ValueError):
        limit = int(_LIMIT.read_text())
        if files <= limit // _FEW:
            return None
        left = max(0, limit - _SPARE - len(_MAPPED.read_bytes().splitlines()))
        if files > left:
            return (
                f"it takes {files:,} files that are mapped, one for each segment of each column, and this process can map "
                f"{left:,} more. Raise the system's limit (sysctl -w vm.max_map_count={2 * (limit + files)}), or choose"
            )
    return None


def refuse_too_many(root: Path, layout: Layout, *, segments: int | None = None) -> None:
    """Raise an InputError where a store cannot be mapped as a whole, now or once its capacity is reached."""
    why = problem(files_of(layout, segments=segments))
    if why is not None:
        capacity = "" if layout.capacity is None else f" and a capacity of {layout.capacity:,}"
        raise InputError(
            f"{root} cannot be opened with {layout.n_envs:,} environments{capacity}, in segments of {layout.segment_rows:,} "
            f"rows: {why} a larger segment_rows= for a new store, a smaller capacity, or fewer environments"
        )


def refuse_too_many_stores(root: Path, layout: Layout, stores: int) -> None:
    """Raise an InputError where so many writers' stores cannot be read as one; `layout` has the streams of all."""
    why = problem(files_of(layout, stores=stores))
    if why is not None:
        raise InputError(
            f"{root} cannot be read: for {stores:,} writers with {layout.streams:,} environments, in segments of "
            f"{layout.segment_rows:,} rows, {why} a larger segment_rows= for a new directory, a smaller capacity, or fewer "
            "environments"
        )
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and stores > max(0, most - min(_SPARE, most // 2)):
        raise InputError(
            f"{root} cannot be read: it has {stores:,} writers' stores, each of which takes a file descriptor, and this process "
            f"may have {most:,}; raise the limit (ulimit -n {2 * stores + _SPARE}), or have fewer writers"
        )
