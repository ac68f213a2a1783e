"""The compiled gather: from mapped segments into a batch, in one call that holds no GIL.

A chunk is decoded straight into the batch where its first rows are wanted, and only as far as they are; otherwise into a
scratch that stays in the CPU's cache, from which other samples of the same chunk are served, too, as runs come sorted. Of a
chunk that is stored as it is, only the rows that are wanted are read: their own checksums verify them, not the chunk's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import crc32c_extend, decode, decode_picture, memcpy, memset, pad, row_seed
from diskbuffer.native.memory import fetch_add, load_i64, load_u8, load_u32, prefetch, store_u8
from diskbuffer.reading.gather.plan import AT, COUNT, OF_STORE, OFFSET, PAD, POSITION, SAMPLE, STREAM
from diskbuffer.store.format.checksums import OBS
from diskbuffer.store.format.codec import BAD_ENTRY, CHECKSUM, HEADER

# Fields of a target: one column of the batch, as one store has it. Of several stores only what is said to be its own differs.
COLUMN = 0  # its place in the plan's sources
ROW_BYTES = 1
SKIP = 2  # the first row of the window that belongs to it
ROWS = 3  # how many do
OUT = 4  # address of (samples, ROWS, row)
CHUNK_ROWS = 5  # 0 for a flat column
CHUNKS = 6  # of a shard
TAIL = 7  # address of (streams, tail_rows, row), the store's own
ZEROS = 8  # 1 if what lies before an episode is zeros, 0 if it is the first row again
FLAG = 9  # 1 for booleans, which are made 0 or 1: a stranger's store may have other bytes, which torch does not expect
CHECKSUMS = 10  # place in the sources of the rows' checksums, where they are of this column alone and can save reading; else -1
SALT = 11  # what these start from, the store's own
TAIL_ROWS = 12  # the store's own
HEIGHT, WIDTH = 13, 14  # of a column that is compressed with a loss, whose chunks are pictures; 0 for others
GET_INFO, DECODE_INTO = 15, 16  # addresses of the functions that decode these
TARGET_FIELDS = 17

# Fields of the progress of a batch, which its threads share.
TURN = 0  # parts that somebody has taken
REASON, TARGET, RUN, CHUNK = 1, 2, 3, 4  # why a chunk cannot be read, and which; 0 if nothing is wrong
PROGRESS_FIELDS = 5

ENTRY_BYTES = 16  # of a shard's index
_LINE, _EMPTY = 64, -1
_PICTURES = 8  # of the last that were decoded, which the next runs may want, too
_AHEAD = 2048  # bytes of a run's chunks
_RUNS_AHEAD, _COPIED_AHEAD = 12, 512  # how many runs before it is copied what lies flat is asked for, and how many bytes of it


@compiled
def gather_parts(targets: Any, runs: Any, sources: Any, parts: int, scratch: int, most: int, progress: Any) -> None:
    """Take a share of a batch, which is split into `parts`, beside other threads that do the same: who is done takes the next.

    `scratch`, one of each thread, has room for two chunks of `most` bytes.
    """
    shared, n = progress.ctypes.data, runs.shape[0]
    while True:
        part = fetch_add(shared + 8 * TURN, 1)
        if part >= parts:
            return
        if progress[REASON] == 0:
            gather(targets, runs, sources, n * part // parts, n * (part + 1) // parts, scratch, most, progress)


@compiled
def gather(targets: Any, runs: Any, sources: Any, begin: int, end: int, scratch: int, most: int, progress: Any) -> None:
    """Copy or decode runs `begin` to `end` into all targets, (stores, columns, TARGET_FIELDS)."""
    for t in range(targets.shape[1]):
        if targets[0, t, CHUNK_ROWS] == 0:
            _copy(targets[0], runs, sources, begin, end, t)
            continue
        first = begin
        while first < end:
            store, until = runs[first, OF_STORE], first + 1
            while until < end and runs[until, OF_STORE] == store:
                until += 1
            if targets[store, t, WIDTH]:
                decoded = _decode_pictures(targets[store], runs, sources, first, until, t, progress)
            else:
                decoded = _decode(targets[store], runs, sources, first, until, t, scratch, most, progress)
            if not decoded:
                return
            first = until


@compiled
def _copy(targets: Any, runs: Any, sources: Any, begin: int, end: int, t: int) -> None:
    """Copy the rows of runs of a flat column."""
    column, row_bytes = targets[t, COLUMN], targets[t, ROW_BYTES]
    for r in range(begin, end):
        if r + _RUNS_AHEAD < end:
            after = sources[r + _RUNS_AHEAD, column, 0] + runs[r + _RUNS_AHEAD, OFFSET] * row_bytes
            for line in range(0, min(runs[r + _RUNS_AHEAD, COUNT] * row_bytes, _COPIED_AHEAD), _LINE):
                prefetch(after + line)
        cut, count, target = _place(targets, runs, t, r)
        if count > 0:
            memcpy(target, sources[r, column, 0] + (runs[r, OFFSET] + cut) * row_bytes, count * row_bytes)
            _finish(targets, runs, t, r, count, target)


@compiled
def _decode(
    targets: Any,
    runs: Any,
    sources: Any,
    begin: int,
    end: int,
    t: int,
    scratch: int,
    most: int,
    progress: Any,
) -> bool:
    """Decode the rows of runs of a column in chunks; return whether all could be."""
    column, row_bytes, chunk_rows = targets[t, COLUMN], targets[t, ROW_BYTES], targets[t, CHUNK_ROWS]
    held, held_rows = np.int64(0), np.int64(0)
    for r in range(begin, end):
        cut, count, target = _place(targets, runs, t, r)
        if count <= 0:
            continue
        offset, source = runs[r, OFFSET] + cut, sources[r, column, 0]
        limit = sources[r, column, 1] - targets[t, CHUNKS] * ENTRY_BYTES
        if r + 1 < end:
            _look_ahead(targets, runs, sources, t, r + 1)
        for chunk in range(offset // chunk_rows, (offset + count - 1) // chunk_rows + 1):
            first, until = max(offset, chunk * chunk_rows), min(offset + count, (chunk + 1) * chunk_rows)
            place = target + (first - offset) * row_bytes
            n, skipped = (until - first) * row_bytes, first - chunk * chunk_rows
            entry = source + limit + chunk * ENTRY_BYTES
            if entry == held and until - chunk * chunk_rows <= held_rows:
                memcpy(place, scratch + skipped * row_bytes, n)
                continue
            at, length = load_i64(entry), load_i64(entry + 8)
            if at == _EMPTY or length == _EMPTY:
                tail_rows = targets[t, TAIL_ROWS]
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
                stored = reads_rows(targets, t, length, until - first)
                if stored and _copy_stored(targets, runs, sources, t, r, first, until, source + at, place):
                    continue
                if skipped == 0:
                    reason = decode(source + at, length, chunk_bytes, n, place, scratch + most)
                else:
                    held, held_rows = entry, until - chunk * chunk_rows
                    reason = decode(source + at, length, chunk_bytes, held_rows * row_bytes, scratch, scratch + most)
                    memcpy(place, scratch + skipped * row_bytes, n)
            if reason:
                progress[TARGET], progress[RUN], progress[CHUNK], progress[REASON] = t, r, chunk, reason
                return False
        _finish(targets, runs, t, r, count, target)
    return True


@compiled
def _decode_pictures(targets: Any, runs: Any, sources: Any, begin: int, end: int, t: int, progress: Any) -> bool:
    """Decode the rows of runs of a column whose chunks are single pictures; return whether all could be.

    As one takes as long as a thousand copies of it, none is decoded twice that lies close at hand: that was decoded for the same
    run of another part of the batch, such as `obs` for `next_obs`, or among the last ones.
    """
    row_bytes, limit_below = targets[t, ROW_BYTES], targets[t, CHUNKS] * ENTRY_BYTES
    decoded, n = np.zeros((_PICTURES, 2), np.int64), 0  # entries of the last pictures, and where they were decoded to
    other = _same_column(targets, t)
    for r in range(begin, end):
        cut, count, target = _place(targets, runs, t, r)
        index = sources[r, targets[t, COLUMN], 0] + sources[r, targets[t, COLUMN], 1] - limit_below
        for row in range(count):
            place = target + row * row_bytes
            entry = index + (runs[r, OFFSET] + cut + row) * ENTRY_BYTES
            there = _where(targets, runs, other, r, cut + row) if other >= 0 else 0
            for k in range(_PICTURES):
                if decoded[k, 0] == entry:
                    there = decoded[k, 1]
            if there:
                memcpy(place, there, row_bytes)
                continue
            ring = targets[t, TAIL] + runs[r, STREAM] * targets[t, TAIL_ROWS] * row_bytes
            tail = ring + (runs[r, POSITION] + cut + row) % targets[t, TAIL_ROWS] * row_bytes
            reason = _decode_picture(targets, t, sources[r, targets[t, COLUMN], 0], index, entry, tail, place)
            if reason:
                chunk = runs[r, OFFSET] + cut + row
                progress[TARGET], progress[RUN], progress[CHUNK], progress[REASON] = t, r, chunk, reason
                return False
            decoded[n % _PICTURES, 0], decoded[n % _PICTURES, 1] = entry, place
            n += 1
        if count > 0:
            _finish(targets, runs, t, r, count, target)
    return True


@compiled
def _decode_picture(targets: Any, t: int, source: int, index: int, entry: int, tail: int, place: int) -> int:
    """Decode the picture of an entry of a shard's index, or copy it from the tail; return 0 or what is wrong."""
    at, size = load_i64(entry), load_i64(entry + 8)
    if at == _EMPTY or size == _EMPTY:
        memcpy(place, tail, targets[t, ROW_BYTES])
        at, size = load_i64(entry), load_i64(entry + 8)  # if it still is not in the shard, what was copied is what was meant
        if at == _EMPTY or size == _EMPTY:
            return 0
    if not (0 <= at <= index - source and 0 <= size <= index - source - at):
        return BAD_ENTRY
    target = targets[t]
    return decode_picture(source + at, size, target[WIDTH], target[HEIGHT], place, target[GET_INFO], target[DECODE_INTO])


@compiled
def _same_column(targets: Any, t: int) -> int:
    """Return an earlier target of the same column, -1 if there is none: it was filled by the same thread, from the same runs."""
    for other in range(t):
        if targets[other, COLUMN] == targets[t, COLUMN]:
            return other
    return -1


@compiled
def _where(targets: Any, runs: Any, t: int, r: int, row: int) -> int:
    """Return where a row of a run is in another target, 0 if it is not."""
    cut, count, target = _place(targets, runs, t, r)
    return target + (row - cut) * targets[t, ROW_BYTES] if cut <= row < cut + count else 0


@compiled
def reads_rows(targets: Any, t: int, length: int, rows: int) -> bool:
    """Tell whether of a chunk of `length` bytes, which has `rows` rows that are wanted, these alone are read.

    So it is where compression gained nothing: no other chunk is as long.
    """
    whole = HEADER + targets[t, CHUNK_ROWS] * targets[t, ROW_BYTES] + CHECKSUM
    return bool(targets[t, CHECKSUMS] >= 0 and length == whole and rows < targets[t, CHUNK_ROWS])


@compiled
def _copy_stored(targets: Any, runs: Any, sources: Any, t: int, r: int, first: int, until: int, chunk: int, place: int) -> bool:
    """Copy rows `first` to `until` of a run's slot from a chunk that is stored as it is.

    Returns whether all match their checksums. Where not, the chunk's own tells whether it is they that are damaged.
    """
    row_bytes, position = targets[t, ROW_BYTES], runs[r, POSITION] - runs[r, OFFSET]
    memcpy(place, chunk + HEADER + first % targets[t, CHUNK_ROWS] * row_bytes, (until - first) * row_bytes)
    for row in range(first, until):
        crc = row_seed(targets[t, SALT], runs[r, STREAM], position + row, OBS)
        crc = crc32c_extend(crc, place + (row - first) * row_bytes, row_bytes)
        if row_bytes % 8:
            crc = pad(crc, row_bytes)
        if crc != load_u32(sources[r, targets[t, CHECKSUMS], 0] + row * 8):
            return False
    return True


@compiled
def _place(targets: Any, runs: Any, t: int, r: int) -> tuple[int, int, int]:
    """Return how many of a run's first rows a target does not want, how many of the others it does, and where these go."""
    skip, rows = targets[t, SKIP], targets[t, ROWS]
    cut = max(0, skip - runs[r, AT])
    count = min(runs[r, COUNT], skip + rows - runs[r, AT]) - cut
    return cut, count, targets[t, OUT] + (runs[r, SAMPLE] * rows + runs[r, AT] + cut - skip) * targets[t, ROW_BYTES]


@compiled
def _finish(targets: Any, runs: Any, t: int, r: int, count: int, target: int) -> None:
    """Make the rows of a run what a batch has: booleans 0 or 1, and rows before the episode's start made up."""
    row_bytes = targets[t, ROW_BYTES]
    if targets[t, FLAG]:
        for k in range(target, target + count * row_bytes):
            store_u8(k, load_u8(k) != 0)
    pad = runs[r, PAD] - targets[t, SKIP]
    for k in range(pad):
        if targets[t, ZEROS]:
            memset(target - (pad - k) * row_bytes, 0, row_bytes)
        else:
            memcpy(target - (pad - k) * row_bytes, target, row_bytes)


@compiled
def _look_ahead(targets: Any, runs: Any, sources: Any, t: int, r: int) -> None:
    """Have a run's chunks come into the caches while the one before is decoded; the entry of the next, too."""
    column, first = targets[t, COLUMN], runs[r, OFFSET] // targets[t, CHUNK_ROWS]
    index = targets[t, CHUNKS] * ENTRY_BYTES
    source, limit = sources[r, column, 0], sources[r, column, 1] - index
    if r + 1 < runs.shape[0]:
        after = runs[r + 1, OFFSET] // targets[t, CHUNK_ROWS]
        prefetch(sources[r + 1, column, 0] + sources[r + 1, column, 1] - index + after * ENTRY_BYTES)
    at = load_i64(source + limit + first * ENTRY_BYTES)
    if 0 <= at <= limit:
        for line in range(0, _AHEAD, _LINE):
            prefetch(source + at + line)
