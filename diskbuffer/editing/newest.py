"""The newest steps of a table of episodes: what a store of a smaller capacity would have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diskbuffer.plugin import EpisodeTable, StoreInfo

Int64 = npt.NDArray[np.int64]


def newest_steps(table: EpisodeTable, capacity: int | None, info: StoreInfo) -> EpisodeTable:
    """Return the newest steps, `capacity` of them, or all where there are fewer, or it is None.

    Environments lose as many steps as makes them have equally many, those with fewer none: a step of one is as old as the step
    of another after which as many came. With ``capacity_each`` every environment has its own share. The first episode that is
    left of an environment may begin later than it did.
    """
    if capacity is None:
        return table
    streams, envs = info.streams, np.arange(info.n_envs)
    counts = _counts(table, info)
    kept = np.minimum(counts, capacity // info.n_envs) if info.capacity_each else _share(counts, capacity)
    lengths, starts = table.length.copy(), table.start.copy()
    for env in envs.tolist():
        mine = np.flatnonzero(table.stream == env)
        mine = mine[np.argsort(table.start[mine])]
        after = lengths[mine].sum() - np.cumsum(lengths[mine])
        lengths[mine] = np.clip(kept[env] - after, 0, lengths[mine])
    starts += (table.length - lengths) * streams
    whole = table.whole & (lengths == table.length)
    return replace(table, start=starts, length=lengths, whole=whole).select(lengths > 0)


def capacity_for(table: EpisodeTable, info: StoreInfo) -> int:
    """Return the least capacity with which a store like another keeps all steps of some episodes."""
    counts = _counts(table, info)
    return int(info.n_envs * counts.max() if info.capacity_each else counts.sum())


def _counts(table: EpisodeTable, info: StoreInfo) -> Int64:
    return np.bincount(table.stream, table.length, info.n_envs).astype(np.int64)


def _share(counts: Int64, capacity: int) -> Int64:
    """Return how many steps each environment keeps, so that all have `capacity`, and the most that one has is the least."""
    if counts.sum() <= capacity:
        return counts
    low, high = 0, int(counts.max())  # the most that one keeps: too few, and enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if np.minimum(counts, middle).sum() >= capacity else (middle, high)
    kept = np.minimum(counts, high)
    kept[np.flatnonzero(kept == high)[: int(kept.sum()) - capacity]] -= 1
    return kept
