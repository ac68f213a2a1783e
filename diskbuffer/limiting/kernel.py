"""The arithmetic of a limiter, compiled: it is done at every `add`.

All numbers are in one table of words of 64 bits that every process maps, at the places that are named below. Each writer has a
row of its own, as long as a line of the cache, that it alone writes to.
"""

from __future__ import annotations

from diskbuffer.native.compiling import compiled
from diskbuffer.native.memory import fetch_add, load_f64, load_i64, store_i64

# Words of the head of the table
VERSION, RATIO, MIN_SIZE, BOUND, SAMPLES, SAMPLES_BEFORE, SAMPLED_AT, SAMPLER_WAITS, ROWS = range(9)
HEAD = 16
# Words of a writer's row
ADDED, BEFORE, LOST, ADDED_AT, WAITS, COME = range(6)
ROW = 8
MOST = 1024  # writers
WORDS = HEAD + MOST * ROW


@compiled
def inserts(address: int) -> tuple[int, int]:
    """Return how many steps all writers added, ever, and how many of these were there before the limiter."""
    added, before = 0, 0
    for writer in range(min(load_i64(address + 8 * ROWS), MOST)):
        row = address + 8 * (HEAD + writer * ROW)
        added += load_i64(row + 8 * ADDED)
        before += load_i64(row + 8 * BEFORE)
    return added, before


@compiled
def surplus(address: int) -> float:
    """Return how many samples are due; below zero, how many too many there were."""
    added, before = inserts(address)
    counted = added - max(before, load_i64(address + 8 * MIN_SIZE))
    samples = load_i64(address + 8 * SAMPLES) - load_i64(address + 8 * SAMPLES_BEFORE)
    return float(load_f64(address + 8 * RATIO) * counted - samples)


@compiled
def may_add(address: int) -> bool:
    """Tell whether steps may be added now."""
    return bool(surplus(address) <= load_f64(address + 8 * BOUND))


@compiled
def may_sample(address: int) -> bool:
    """Tell whether steps may be sampled now."""
    if inserts(address)[0] < load_i64(address + 8 * MIN_SIZE):
        return False
    return bool(surplus(address) >= -load_f64(address + 8 * BOUND))


@compiled
def note_added(address: int, writer: int, added: int, now: int) -> None:
    """Note how many steps a writer's store has ever had; those that it lost stay counted."""
    row = address + 8 * (HEAD + writer * ROW)
    store_i64(row + 8 * ADDED, added + load_i64(row + 8 * LOST))
    store_i64(row + 8 * ADDED_AT, now)


@compiled
def note_sampled(address: int, samples: int, now: int) -> None:
    """Count samples, at once for all processes."""
    fetch_add(address + 8 * SAMPLES, samples)
    store_i64(address + 8 * SAMPLED_AT, now)
