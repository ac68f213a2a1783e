"""One step of every environment into rows, in one compiled call: where an episode goes on, starts, or is cut off.

An episode goes on if ``obs`` has the values of the ``next_obs`` of the step before, or the caller says so. If the last one has
ended, or ``obs`` is another, ``obs`` starts an episode; one that had not ended is then cut off where it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diskbuffer.index.fields import ENDED, FIELDS, HEAD
from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import crc32c_extend, length_word, memcpy, memset, pad, row_seed
from diskbuffer.native.memory import (
    int8_array,
    int64_array,
    load_any_u32,
    load_any_u64,
    load_u8,
    store_any_u32,
    store_any_u64,
    store_i64,
    store_u8,
    store_u32,
)
from diskbuffer.recording.equality import all_zero, has_nan, same_values
from diskbuffer.store.format import checksums

# Fields of a source: what one column is written from.
VALUE, STRIDE = 0, 1  # address of the value of stream 0, and bytes to that of the next
NEXT, NEXT_STRIDE = 2, 3  # the same of the observation after the step
ROW_BYTES = 4
ROLE = 5
TAIL = 6  # address of the tail, 0 for a flat column
FLOAT = 7  # bytes of a floating-point number, 0 where values are others
NO_NAN = 8  # the same, 0 where NaN is allowed, too
SOURCE_FIELDS = 9

OBS, STEP, IS_LAST, CHECK = 0, 1, 2, 3  # roles

# What a step was; fields of an event are this and the position of the step's row.
RESET, WENT_ON, STARTED, CUT_OFF = 0, 1, 2, 3  # the last: it started an episode, and cut one off

# How a step is told to begin.
COMPARE, START, GO_ON = 0, 1, 2


# Fields of a job, which tells `record` all: an array costs a tenth of a microsecond to hand over, an address in one nothing.
ENVS, STREAMS, COLUMNS, SEGMENT_ROWS, TAIL_ROWS, SALT, NEXT_STEP, STEP_BYTES = range(8)
TABLE, SOURCES, FLAGS, BASES, LENGTHS, LIMITS, EVENTS, SCRATCH, GIVEN, GO_ON_ALL = range(8, 18)  # addresses of arrays
JOB_FIELDS = 18


def step_bytes(sources: Any) -> int:
    """Return the bytes of what is done at a row, put side by side, with zeros up to whole words; `SCRATCH` has room for two."""
    done = (sources[:, ROLE] == STEP) | (sources[:, ROLE] == IS_LAST)
    return -int(-sources[done, ROW_BYTES].sum() // 8) * 8


@compiled
def record(job: int, told: int) -> int:
    """Do `_record` with the arrays of a job, by its address, and `told` by its own."""
    return record_job(int64_array(job, (JOB_FIELDS,)), told)


@compiled
def record_job(job: Any, told: int) -> int:
    """Do `_record` with the arrays of a job."""
    envs, columns, streams = job[ENVS], job[COLUMNS], job[STREAMS]
    return _record(
        int64_array(job[TABLE], (envs, FIELDS)),
        int64_array(job[SOURCES], (columns, SOURCE_FIELDS)),
        int64_array(job[FLAGS], (3,)),
        int64_array(job[BASES], (columns, streams, 2)),
        int64_array(job[LENGTHS], (streams, 2, 2)),
        int64_array(job[LIMITS], (streams,)),
        job[SEGMENT_ROWS],
        job[TAIL_ROWS],
        job[SALT],
        job[NEXT_STEP] != 0,
        int8_array(told, (envs,)),
        int64_array(job[EVENTS], (streams, 2)),
        job[SCRATCH],
        job[STEP_BYTES],
    )


@compiled
def _record(
    table: Any,
    sources: Any,
    flags: Any,
    bases: Any,
    lengths: Any,
    limits: Any,
    segment_rows: int,
    tail_rows: int,
    salt: int,
    next_step: bool,
    told: Any,
    events: Any,
    scratch: int,
    step_bytes: int,
) -> int:
    """Write a step in every stream, and move the streams' heads.

    `flags` holds the places of terminated, truncated and reward among the sources; `told` has, for each stream, `COMPARE`,
    `START` or `GO_ON`, which is only possible where the last step did not end an episode. Returns four times the number of
    steps; two more if an episode started, and one more if `limits` leave no room for another step in some stream. Where a
    column may not have NaN and was given it, nothing is written, and -1 less the column's place is returned.
    """
    columns, recorded, started_any, crowded = sources.shape[0], 0, 0, 0
    undone = scratch + step_bytes  # what is at a row at which nothing was done: zeros, and whether it is an episode's last
    for c in range(columns):
        if sources[c, NO_NAN] and _has_nan(sources, c, table.shape[0]):
            return -1 - c
    for s in range(table.shape[0]):
        head = table[s, HEAD]
        ended = load_u8(sources[flags[0], VALUE] + s) | load_u8(sources[flags[1], VALUE] + s)
        same = head >= 0 and told[s] != START
        half, offset, ring = place_of(head, segment_rows, tail_rows)
        for c in range(columns if told[s] != GO_ON else 0):
            if same and sources[c, ROLE] == OBS:
                at = row_at(sources, bases, c, s, half, offset, ring, tail_rows)
                same = same_values(at, sources[c, VALUE] + s * sources[c, STRIDE], sources[c, ROW_BYTES], sources[c, FLOAT])
        position, cut = head, False
        if head < 0:
            position = 0
        elif table[s, ENDED]:
            reward, size = sources[flags[2], VALUE] + s * sources[flags[2], STRIDE], sources[flags[2], ROW_BYTES]
            if next_step and same and not ended and all_zero(reward, size, sources[flags[2], FLOAT]):
                events[s, 0] = RESET
                continue
            position = head + 1
        elif not same:
            cut_off(sources, bases, s, head, segment_rows, tail_rows, salt)
            position, cut = head + 1, True
        started = position != head
        if started:
            started_any = 2
            half, offset, ring = _next_place(half, offset, ring, segment_rows, tail_rows)
        next_half, next_offset, next_ring = _next_place(half, offset, ring, segment_rows, tail_rows)
        words, next_words, at = 0, 0, 0
        for c in range(columns):
            role, size = sources[c, ROLE], sources[c, ROW_BYTES]
            here = row_at(sources, bases, c, s, half, offset, ring, tail_rows)
            after = row_at(sources, bases, c, s, next_half, next_offset, next_ring, tail_rows)
            if role == OBS:
                if started:
                    copy_value(here, sources[c, VALUE] + s * sources[c, STRIDE], size)
                copy_value(after, sources[c, NEXT] + s * sources[c, NEXT_STRIDE], size)
            elif role == STEP:
                copy_value(here, sources[c, VALUE] + s * sources[c, STRIDE], size)
                copy_value(scratch + at, here, size)  # what is stored: another thread may change what was given
                copy_value(after, undone + at, size)  # the tail is used again, and a failed `extend` may have left something
                at += size
            elif role == IS_LAST:
                store_u8(here, 0)
                store_u8(after, ended)
                store_u8(scratch + at, 0)
                store_u8(undone + at, ended)
                at += 1
            else:
                words, next_words = here + 4 * checksums.STEP, after + 4 * checksums.STEP
        if started:
            write_checksum(sources, bases, s, position, checksums.OBS, segment_rows, tail_rows, salt, 0)
        to_come = 0 if ended else checksums.NOT_YET
        store_u32(words, crc32c_extend(row_seed(salt, s, position, checksums.STEP), scratch, step_bytes))
        crc = crc32c_extend(row_seed(salt, s, position + 1, checksums.STEP), undone, step_bytes)
        store_u32(next_words, crc ^ to_come)
        write_checksum(sources, bases, s, position + 1, checksums.OBS, segment_rows, tail_rows, salt, 0)
        if next_offset == 0:
            set_length(lengths, s, position, segment_rows)
        set_length(lengths, s, position + 1, segment_rows)
        table[s, HEAD], table[s, ENDED] = position + 1, ended
        events[s, 0], events[s, 1] = (CUT_OFF if cut else STARTED) if started else WENT_ON, position
        recorded += 1
        if position + 3 >= limits[s]:
            crowded = 1
    return 4 * recorded + started_any + crowded


@compiled
def is_newest(job: Any, c: int, s: int, head: int) -> bool:
    """Tell whether a column's value of a stream, before the step, is that of the stream's newest row."""
    columns = job[COLUMNS]
    sources = int64_array(job[SOURCES], (columns, SOURCE_FIELDS))
    bases = int64_array(job[BASES], (columns, job[STREAMS], 2))
    at = row_of(sources, bases, c, s, head, job[SEGMENT_ROWS], job[TAIL_ROWS])
    return bool(same_values(at, sources[c, VALUE] + s * sources[c, STRIDE], sources[c, ROW_BYTES], sources[c, FLOAT]))


@compiled
def copy_value(target: int, source: int, size: int) -> None:
    """Copy a value: mostly a number, for which a call takes longer than the copy."""
    if size == 8:
        store_any_u64(target, load_any_u64(source))
    elif size == 4:
        store_any_u32(target, load_any_u32(source))
    elif size == 1:
        store_u8(target, load_u8(source))
    else:
        memcpy(target, source, size)


@compiled
def narrow(numbers: Any, found: Any) -> bool:
    """Round numbers, (n,) float64, to float32; return whether all fit. NaN does."""
    for i in range(numbers.shape[0]):
        found[i] = np.float32(numbers[i])
        if np.isinf(found[i]) and not np.isinf(numbers[i]):
            return False
    return True


@compiled
def _has_nan(sources: Any, c: int, streams: int) -> bool:
    size, width = sources[c, ROW_BYTES], sources[c, NO_NAN]
    for s in range(streams):
        if has_nan(sources[c, VALUE] + s * sources[c, STRIDE], size, width):
            return True
        if sources[c, ROLE] == OBS and has_nan(sources[c, NEXT] + s * sources[c, NEXT_STRIDE], size, width):
            return True
    return False


@compiled
def write_checksum(
    sources: Any, bases: Any, s: int, position: int, word: int, segment_rows: int, tail_rows: int, salt: int, to_come: int
) -> None:
    """Write a word of a row's checksum, as `checksums.row_checksums` does for many."""
    crc, size, place = row_seed(salt, s, position, word), 0, 0
    half, offset, ring = place_of(position, segment_rows, tail_rows)
    for c in range(sources.shape[0]):
        row = row_at(sources, bases, c, s, half, offset, ring, tail_rows)
        if sources[c, ROLE] == CHECK:
            place = row
        elif (sources[c, ROLE] == OBS) == (word == checksums.OBS):
            crc = crc32c_extend(crc, row, sources[c, ROW_BYTES])
            size += sources[c, ROW_BYTES]
    store_u32(place + 4 * word, (pad(crc, size) if size % 8 else crc) ^ to_come)


@compiled
def cut_off(sources: Any, bases: Any, s: int, head: int, segment_rows: int, tail_rows: int, salt: int) -> None:
    """Make the newest row the last of its episode."""
    for c in range(sources.shape[0]):
        row = row_of(sources, bases, c, s, head, segment_rows, tail_rows)
        if sources[c, ROLE] == STEP:
            memset(row, 0, sources[c, ROW_BYTES])  # a kill may have left something of a step that never was
        elif sources[c, ROLE] == IS_LAST:
            store_u8(row, 1)
    write_checksum(sources, bases, s, head, checksums.STEP, segment_rows, tail_rows, salt, 0)


@compiled
def row_of(sources: Any, bases: Any, c: int, s: int, position: int, segment_rows: int, tail_rows: int) -> int:
    """Return the address of a row, in an open segment or in the tail."""
    half, offset, ring = place_of(position, segment_rows, tail_rows)
    return row_at(sources, bases, c, s, half, offset, ring, tail_rows)


@compiled
def place_of(position: int, segment_rows: int, tail_rows: int) -> tuple[int, int, int]:
    """Return which of two open segments a row is in, where in it, and where in the tail: divisions, so once for all columns."""
    return position // segment_rows % 2, position % segment_rows, position % tail_rows


@compiled
def _next_place(half: int, offset: int, ring: int, segment_rows: int, tail_rows: int) -> tuple[int, int, int]:
    """Return the place after one, as `place_of` does."""
    ring = ring + 1 if ring + 1 < tail_rows else 0
    return (half, offset + 1, ring) if offset + 1 < segment_rows else (1 - half, 0, ring)


@compiled
def row_at(sources: Any, bases: Any, c: int, s: int, half: int, offset: int, ring: int, tail_rows: int) -> int:
    """Return the address of the row at a place."""
    size = sources[c, ROW_BYTES]
    if sources[c, TAIL]:
        return sources[c, TAIL] + (s * tail_rows + ring) * size
    return bases[c, s, half] + offset * size


@compiled
def set_length(lengths: Any, s: int, position: int, segment_rows: int) -> None:
    """Have the rows of a segment up to a position count, with one aligned store."""
    address, seed = lengths[s, position // segment_rows % 2]
    store_i64(address, length_word(seed, position % segment_rows + 1))
