"""The newest steps of many environments are those that each of them keeps alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diskbuffer.editing.newest import newest_steps
from diskbuffer.inspect.episodes import EpisodeTable
from tests.amounts import amount


def table(rng: np.random.Generator, streams: int, n: int) -> EpisodeTable:
    """Return episodes of streams, in any order."""
    stream, length = np.sort(rng.integers(0, streams, n)), rng.integers(1, 20, n)
    start, nothing = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for one in range(streams):
        mine = stream == one
        start[mine] = (np.cumsum(length[mine] + 1) - length[mine]) * streams + one
    whole, names = rng.random(n) < 0.8, nothing.astype(np.str_)
    every = (start, stream, start, length, nothing.astype(np.float64), names, names, nothing, whole, nothing)
    order = rng.permutation(n)
    return EpisodeTable(*(column[order] for column in every))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(amount(20, 300)))
def test_each_environment_keeps_its_newest_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    envs, protected = int(rng.integers(1, 9)), int(rng.integers(0, 3))
    capacity, each = int(rng.integers(1, 400)), bool(rng.integers(2))
    given = table(rng, envs + protected, int(rng.integers(0, 60)))
    layout: Any = SimpleNamespace(streams=envs + protected, n_envs=envs, capacity_each=each)
    found = newest_steps(given, capacity, layout)
    there = np.array([given.length[given.stream == env].sum() for env in range(envs)], np.int64)
    kept = [int(found.length[found.stream == env].sum()) for env in range(envs)]
    if each:
        assert kept == np.minimum(there, capacity // envs).tolist()
    else:
        assert sum(kept) == min(there.sum(), capacity)
        assert all(n == has or n >= max(kept) - 1 for n, has in zip(kept, there.tolist(), strict=True))
    steps = [
        {
            start + n * layout.streams
            for start, length in zip(one.start.tolist(), one.length.tolist(), strict=True)
            for n in range(length)
        }
        for one in (given, found)
    ]
    for stream in range(layout.streams):
        before, after = (sorted(step for step in those if step % layout.streams == stream) for those in steps)
        assert after == (before[len(before) - kept[stream] :] if stream < envs else before)
