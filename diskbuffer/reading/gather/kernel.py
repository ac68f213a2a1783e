"""The compiled gather: from mapped segments into a batch, in one call that holds no GIL.

A chunk is decoded straight into the batch where its first rows are wanted, and only as far as they are; otherwise into a
scratch that stays in the CPU's cache, from which other samples of the same chunk are served, too, as runs come sorted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import madvise, memcpy, memset
from diskbuffer.native.memory import fetch_add, load_i64, prefetch
from diskbuffer.reading.gather.plan import AT, COUNT, OFFSET, PAD, POSITION, SAMPLE, STREAM
from diskbuffer.store.format.codec import BAD_ENTRY, decode

# Fields of a target: one column of the batch.
COLUMN = 0  # its place in the plan's sources
ROW_BYTES = 1
SKIP = 2  # the first row of the window that belongs to it
ROWS = 3  # how many do
OUT = 4  # address of (samples, ROWS, row)
CHUNK_ROWS = 5  # 0 for a flat column
CHUNKS = 6  # of a shard
TAIL = 7  # address of (streams, tail_rows, row)
ZEROS = 8  # 1 if what lies before an episode is zeros, 0 if it is the first row again
TARGET_FIELDS = 9

# Fields of the progress of a batch, which its threads share.
TURN = 0  # parts that somebody has taken
DONE = 1  # parts that are ready, or given up
REASON, TARGET, RUN, CHUNK = 2, 3, 4, 5  # why a chunk cannot be read, and which; 0 if nothing is wrong
PROGRESS_FIELDS = 6

_ENTRY_BYTES, _LINE, _PAGE, _WILLNEED, _EMPTY = 16, 64, 4096, 3, -1
_AHEAD = 2048  # bytes of a run's chunks
_SPINS = 2000  # some 20 us


@compiled
def gather_parts(
    targets: Any, runs: Any, sources: Any, parts: int, tail_rows: int, scratch: int, most: int, progress: Any
) -> None:
    """Take a share of a batch, which is split into `parts`, beside other threads that do the same: who is done takes the next.

    `scratch`, one of each thread, has room for two chunks of `most` bytes.
    """
    shared, n = progress.ctypes.data, runs.shape[0]
    while True:
        part = fetch_add(shared + 8 * TURN, 1)
        if part >= parts:
            return
        if progress[REASON] == 0:
            gather(targets, runs, sources, n * part // parts, n * (part + 1) // parts, tail_rows, scratch, most, progress)
        fetch_add(shared + 8 * DONE, 1)


@compiled
def is_done(progress: Any, parts: int) -> bool:
    """Wait a moment for other threads' parts; return whether all are done."""
    for _ in range(_SPINS):  # noqa: SIM110  numba has no any()
        if fetch_add(progress.ctypes.data + 8 * DONE, 0) == parts:
            return True
    return False


@compiled
def gather(
    targets: Any, runs: Any, sources: Any, begin: int, end: int, tail_rows: int, scratch: int, most: int, progress: Any
) -> None:
    """Copy or decode runs `begin` to `end` into all targets."""
    for t in range(targets.shape[0]):
        held, held_rows = np.int64(0), np.int64(0)
        row_bytes, chunk_rows, skip = targets[t, ROW_BYTES], targets[t, CHUNK_ROWS], targets[t, SKIP]
        for r in range(begin, end):
            cut = max(0, skip - runs[r, AT])
            offset, count = runs[r, OFFSET] + cut, min(runs[r, COUNT], skip + targets[t, ROWS] - runs[r, AT]) - cut
            if count <= 0:
                continue
            sample = targets[t, OUT] + runs[r, SAMPLE] * targets[t, ROWS] * row_bytes
            target = sample + (runs[r, AT] + cut - skip) * row_bytes
            source, size = sources[targets[t, COLUMN], r, 0], sources[targets[t, COLUMN], r, 1]
            if chunk_rows == 0:
                memcpy(target, source + offset * row_bytes, count * row_bytes)
            else:
                limit = size - targets[t, CHUNKS] * _ENTRY_BYTES
                if r + 1 < end:
                    _look_ahead(targets, runs, sources, t, r + 1)
                for chunk in range(offset // chunk_rows, (offset + count - 1) // chunk_rows + 1):
                    first, until = max(offset, chunk * chunk_rows), min(offset + count, (chunk + 1) * chunk_rows)
                    place = target + (first - offset) * row_bytes
                    n, skipped = (until - first) * row_bytes, first - chunk * chunk_rows
                    entry = source + limit + chunk * _ENTRY_BYTES
                    if entry == held and until - chunk * chunk_rows <= held_rows:
                        memcpy(place, scratch + skipped * row_bytes, n)
                        continue
                    at, length = load_i64(entry), load_i64(entry + 8)
                    if at == _EMPTY or length == _EMPTY:
                        ring = targets[t, TAIL] + runs[r, STREAM] * tail_rows * row_bytes
                        position = runs[r, POSITION] + cut + first - offset
                        for k in range(until - first):
                            memcpy(place + k * row_bytes, ring + (position + k) % tail_rows * row_bytes, row_bytes)
                        # A chunk is in its shard before its place in the tail is used again: if it still is not, then
                        # what was copied is what was meant.
                        at, length = load_i64(entry), load_i64(entry + 8)
                        if at == _EMPTY or length == _EMPTY:
                            continue
                    reason, chunk_bytes = BAD_ENTRY, chunk_rows * row_bytes
                    if 0 <= at <= limit and 0 <= length <= limit - at:
                        if skipped == 0:
                            reason = decode(source + at, length, chunk_bytes, n, place, scratch + most)
                        else:
                            held, held_rows = entry, until - chunk * chunk_rows
                            reason = decode(source + at, length, chunk_bytes, held_rows * row_bytes, scratch, scratch + most)
                            memcpy(place, scratch + skipped * row_bytes, n)
                    if reason:
                        progress[TARGET], progress[RUN], progress[CHUNK], progress[REASON] = t, r, chunk, reason
                        return
            for k in range(runs[r, PAD] - skip):
                if targets[t, ZEROS]:
                    memset(sample + k * row_bytes, 0, row_bytes)
                else:
                    memcpy(sample + k * row_bytes, target, row_bytes)


@compiled
def _look_ahead(targets: Any, runs: Any, sources: Any, t: int, r: int) -> None:
    """Have a run's chunks come into the caches while the one before is decoded; the entry of the next, too."""
    column, first = targets[t, COLUMN], runs[r, OFFSET] // targets[t, CHUNK_ROWS]
    index = targets[t, CHUNKS] * _ENTRY_BYTES
    source, limit = sources[column, r, 0], sources[column, r, 1] - index
    if r + 1 < runs.shape[0]:
        after = runs[r + 1, OFFSET] // targets[t, CHUNK_ROWS]
        prefetch(sources[column, r + 1, 0] + sources[column, r + 1, 1] - index + after * _ENTRY_BYTES)
    at = load_i64(source + limit + first * _ENTRY_BYTES)
    if 0 <= at <= limit:
        for line in range(0, _AHEAD, _LINE):
            prefetch(source + at + line)


@compiled
def advise(targets: Any, runs: Any, sources: Any) -> None:
    """Ask for all pages of a batch before the first is touched: first those of the indices, then those of the chunks."""
    for step in range(2):
        for t in range(targets.shape[0]):
            row_bytes, chunk_rows = targets[t, ROW_BYTES], targets[t, CHUNK_ROWS]
            for r in range(runs.shape[0]):
                source, size = sources[targets[t, COLUMN], r, 0], sources[targets[t, COLUMN], r, 1]
                offset, count = runs[r, OFFSET], runs[r, COUNT]
                if chunk_rows == 0:
                    if step == 0:
                        _will_need(source, offset * row_bytes, count * row_bytes)
                    continue
                limit = size - targets[t, CHUNKS] * _ENTRY_BYTES
                low, high = offset // chunk_rows, (offset + count - 1) // chunk_rows + 1
                if step == 0:
                    _will_need(source, limit + low * _ENTRY_BYTES, (high - low) * _ENTRY_BYTES)
                    continue
                for chunk in range(low, high):
                    entry = source + limit + chunk * _ENTRY_BYTES
                    at, length = load_i64(entry), load_i64(entry + 8)
                    if 0 <= at <= limit and 0 < length <= limit - at:
                        _will_need(source, at, length)


@compiled
def _will_need(source: int, at: int, size: int) -> None:
    begin = at // _PAGE * _PAGE
    madvise(source + begin, at + size - begin, _WILLNEED)
