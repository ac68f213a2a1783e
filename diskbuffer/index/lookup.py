"""Looking steps and episodes up for what is compiled by numba; all else calls `diskbuffer.native.lookup`."""

from __future__ import annotations

from typing import Any

import numpy as np

from diskbuffer.index.fields import EPISODES, FLOOR, HEAD, STARTS
from diskbuffer.native.compiling import compiled
from diskbuffer.native.memory import load_i64


@compiled
def steps_of(table: Any, stream: int) -> int:
    """Count the steps of a stream that can be sampled."""
    return max(table[stream, HEAD] - table[stream, FLOOR] - max(table[stream, EPISODES] - 1, 0), 0)


@compiled
def count(table: Any) -> int:
    """Count the steps that can be sampled."""
    total = 0
    for stream in range(table.shape[0]):
        total += steps_of(table, stream)
    return total


@compiled
def count_each(table: Any, counts: Any) -> None:
    """Count the steps of each stream that can be sampled."""
    for stream in range(table.shape[0]):
        counts[stream] = steps_of(table, stream)


@compiled
def _last_row(table: Any, stream: int, episode: int) -> int:
    if episode + 1 < table[stream, EPISODES]:
        return load_i64(table[stream, STARTS] + 8 * (episode + 1)) - 1
    return int(table[stream, HEAD])


@compiled
def _episode_of_step(starts: int, episodes: int, wanted: int, guess: int) -> int:
    """Find the last episode j with ``starts[j] - j <= wanted``, in a range that is doubled from a guess on and halved again."""
    low, high, reach = 0, episodes, 8
    if load_i64(starts + 8 * guess) - guess <= wanted:
        low = guess
        while low + reach < high and load_i64(starts + 8 * (low + reach)) - low - reach <= wanted:
            low, reach = low + reach, 2 * reach
        high = min(high, low + reach)
    else:
        high = guess
        while high - reach > low and load_i64(starts + 8 * (high - reach)) - high + reach > wanted:
            high, reach = high - reach, 2 * reach
        low = max(low, high - reach)
    while high - low > 1:
        middle = (low + high) // 2
        if load_i64(starts + 8 * middle) - middle <= wanted:
            low = middle
        else:
            high = middle
    return int(low)


@compiled
def locate(table: Any, ordinals: Any, found: Any) -> None:
    """Find steps as `Index.locate` does."""
    ends, total = np.empty(table.shape[0], np.int64), 0
    for stream in range(table.shape[0]):
        total += steps_of(table, stream)
        ends[stream] = total
    # First guess all episodes from their streams' mean lengths, and load what is there: all at once, where one search after the
    # other would wait for memory each time.
    for i in range(ordinals.shape[0]):
        stream = np.searchsorted(ends, ordinals[i], side="right")
        before = ends[stream - 1] if stream else 0
        wanted = ordinals[i] - before + table[stream, FLOOR]  # its position, if no episode had ended since the floor
        starts, episodes = table[stream, STARTS], table[stream, EPISODES]
        first = load_i64(starts)
        guess = np.int64((wanted - first) / max(table[stream, HEAD] - episodes - first, 1) * episodes)
        guess = min(max(guess, np.int64(0)), episodes - 1)
        found[0, i], found[1, i], found[2, i], found[3, i] = stream, wanted, guess, load_i64(starts + 8 * guess)
    for i in range(ordinals.shape[0]):
        stream, wanted = found[0, i], found[1, i]
        low = _episode_of_step(table[stream, STARTS], table[stream, EPISODES], wanted, found[2, i])
        found[1, i], found[2, i] = wanted + low, load_i64(table[stream, STARTS] + 8 * low)
        found[3, i] = _last_row(table, stream, low)


@compiled
def episode_at(table: Any, stream: int, position: int) -> int:
    """Find the episode that a position lies in, by its place in `starts`; the first for what lies before all."""
    starts, low, high = table[stream, STARTS], np.int64(0), table[stream, EPISODES]
    while high - low > 1:
        middle = (low + high) // 2
        if load_i64(starts + 8 * middle) <= position:
            low = middle
        else:
            high = middle
    return int(low)
