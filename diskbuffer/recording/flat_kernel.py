"""Arrays of steps of one stream into rows of flat columns, in two compiled calls: what each step is, and the writing.

What comes to be is what `kernel.record` makes of the same steps, one by one; only the order within a segment is another. The
values of all new rows are written first, then their checksums, and then the segment's length, with one aligned store: before
that no row of them exists.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diskbuffer.index.fields import ENDED, HEAD
from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import crc32c_extend, memcpy, memset, row_seed
from diskbuffer.native.memory import load_any_u32, load_any_u64, load_u8, store_any_u32, store_any_u64, store_u8, store_u32
from diskbuffer.recording.equality import all_zero, are_bools, same_values
from diskbuffer.recording.kernel import (
    CHECK,
    CUT_OFF,
    FLOAT,
    IS_LAST,
    NEXT,
    NEXT_STRIDE,
    OBS,
    ROLE,
    ROW_BYTES,
    STARTED,
    STEP,
    STRIDE,
    VALUE,
    WENT_ON,
    cut_off,
    row_of,
    set_length,
    write_checksum,
)
from diskbuffer.store.format import checksums

# Fields of a step that is recorded.
KIND = 0  # WENT_ON, STARTED or CUT_OFF
POSITION = 1  # of its row
STEP_NUMBER = 2  # which of the arrays it is
EVENT_FIELDS = 3

_TOGETHER = 64  # rows whose checksums are computed together
_FEW = 4  # rows of which that does not pay
_NARROW = 256  # bytes of a row, at most


@compiled
def bools_are_clean(places: Any, bools: Any, n: int) -> bool:
    """Return whether all truth values of `n` steps are bytes of 0 or 1. `places` and `bools` are of `FlatSteps`."""
    for k in range(bools.shape[0]):
        column, field, size = bools[k]
        address, apart = places[column, field], places[column, field + 1]
        for i in range(n):
            if not are_bools(address + i * apart, size):
                return False
    return True


@compiled
def decide(
    table: Any,
    sources: Any,
    flags: Any,
    bases: Any,
    s: int,
    segment_rows: int,
    next_step: bool,
    cut: bool,
    told: Any,
    events: Any,
) -> int:
    """Tell what each step is, and where its row goes; return how many are recorded, as resets are not.

    `sources` and `flags` are as of `kernel.record`, with strides from step to step. `cut` tells that the next step starts
    an episode. `told` has a 1 for each step that the caller says starts one; it has none where nobody says anything.
    """
    newest, kept, previous = table[s, HEAD], 0, -1
    for i in range(events.shape[0]):
        here = _is_same(table, sources, flags, bases, s, segment_rows, cut, told, i, i - 1)
        running = _is_running(table, sources, flags, s, i - 1)
        if next_step and here and not running and not _ends(sources, flags, i):
            reward, size = sources[flags[2], VALUE] + i * sources[flags[2], STRIDE], sources[flags[2], ROW_BYTES]
            if all_zero(reward, size, sources[flags[2], FLOAT]):
                continue
        if previous != i - 1:  # the one before was a reset
            here = _is_same(table, sources, flags, bases, s, segment_rows, cut, told, i, previous)
            running = _is_running(table, sources, flags, s, previous)
        if here and running:
            events[kept, KIND] = WENT_ON
        else:
            events[kept, KIND] = CUT_OFF if running and newest >= 0 else STARTED
            newest += 1
        events[kept, POSITION], events[kept, STEP_NUMBER] = newest, i
        newest, previous, kept = newest + 1, i, kept + 1
    return kept


@compiled
def _ends(sources: Any, flags: Any, i: int) -> bool:
    """Tell whether a step ends its episode."""
    terminated = load_u8(sources[flags[0], VALUE] + i * sources[flags[0], STRIDE])
    return bool(terminated | load_u8(sources[flags[1], VALUE] + i * sources[flags[1], STRIDE]))


@compiled
def _is_running(table: Any, sources: Any, flags: Any, s: int, previous: int) -> bool:
    """Tell whether an episode runs after a step, -1 for what the stream has already."""
    return bool(table[s, ENDED] == 0) if previous < 0 else not _ends(sources, flags, previous)


@compiled
def _is_same(
    table: Any, sources: Any, flags: Any, bases: Any, s: int, segment_rows: int, cut: bool, told: Any, i: int, previous: int
) -> bool:
    """Tell whether a step starts at what the one before led to, -1 for the stream's newest row; or as the caller said."""
    head = table[s, HEAD]
    if previous < 0 and (head < 0 or cut):
        return False
    if told.shape[0]:
        if told[i]:
            return False
        if _is_running(table, sources, flags, s, previous):
            return True
    for c in range(sources.shape[0]):
        if sources[c, ROLE] == OBS:
            before = sources[c, NEXT] + previous * sources[c, NEXT_STRIDE]
            if previous < 0:
                before = row_of(sources, bases, c, s, head, segment_rows, 1)
            value = sources[c, VALUE] + i * sources[c, STRIDE]
            if before != value and not same_values(before, value, sources[c, ROW_BYTES], sources[c, FLOAT]):
                return False
    return True


@compiled
def write(
    table: Any,
    sources: Any,
    flags: Any,
    bases: Any,
    lengths: Any,
    s: int,
    segment_rows: int,
    limit: int,
    salt: int,
    events: Any,
    first: int,
) -> int:
    """Write steps from `first` on that fit into the rows before `limit`, and move the stream's head; return the next step.

    `events` are those that `decide` found. Segment after segment counts, each before anything of the next does.
    """
    while first < events.shape[0] and events[first, POSITION] + 1 < limit:
        if events[first, KIND] == CUT_OFF:
            cut_off(sources, bases, s, events[first, POSITION] - 1, segment_rows, 1, salt)
        position = events[first, POSITION]
        last, end = first, min((position // segment_rows + 1) * segment_rows, limit)
        while last + 1 < events.shape[0] and events[last + 1, POSITION] + 1 < end:  # none, if the step's two rows lie apart
            last += 1
        for c in range(sources.shape[0]):
            _put(sources, flags, bases, c, s, segment_rows, events, first, last)
        _write_checksums(sources, flags, bases, s, segment_rows, salt, events, first, last)
        head = events[last, POSITION] + 1
        if head % segment_rows == 0:
            set_length(lengths, s, head - 1, segment_rows)
        set_length(lengths, s, head, segment_rows)
        table[s, HEAD], table[s, ENDED] = head, _ends(sources, flags, events[last, STEP_NUMBER])
        first = last + 1
    return first


@compiled
def _run(events: Any, first: int, last: int) -> int:
    """Return the last of the steps from `first` on that go on one from the other: their rows, and their values, are in a row."""
    while first < last and events[first + 1, POSITION] == events[first, POSITION] + 1:
        first += 1
    return first


@compiled
def _put(sources: Any, flags: Any, bases: Any, c: int, s: int, segment_rows: int, events: Any, first: int, last: int) -> None:
    """Write one column's values of steps, and of the rows after them, but for checksums."""
    role, size = sources[c, ROLE], sources[c, ROW_BYTES]
    if role == CHECK:
        return
    while first <= last:
        final = _run(events, first, last)
        n, position, step = final - first + 1, events[first, POSITION], events[first, STEP_NUMBER]
        here = row_of(sources, bases, c, s, position, segment_rows, 1)
        after = row_of(sources, bases, c, s, position + 1, segment_rows, 1)
        if role == OBS:
            if events[first, KIND] >= STARTED:
                memcpy(here, sources[c, VALUE] + step * sources[c, STRIDE], size)
            apart = sources[c, NEXT_STRIDE]
            _copy(after, sources[c, NEXT] + step * apart, n, size, apart)
        elif role == STEP:
            apart = sources[c, STRIDE]
            _copy(here, sources[c, VALUE] + step * apart, n, size, apart)
            memset(after + (n - 1) * size, 0, size)
        elif role == IS_LAST:
            memset(here, 0, n)
            store_u8(after + n - 1, final < last or _ends(sources, flags, events[final, STEP_NUMBER]))
        first = final + 1


@compiled
def _copy(target: int, source: int, n: int, size: int, apart: int) -> None:
    """Copy `n` values of `size` bytes, which lie `apart` bytes apart, side by side."""
    if apart == size:
        memcpy(target, source, n * size)
        return
    for k in range(n):
        memcpy(target + k * size, source + k * apart, size)


@compiled
def _write_checksums(
    sources: Any, flags: Any, bases: Any, s: int, segment_rows: int, salt: int, events: Any, first: int, last: int
) -> None:
    """Write the checksums of the rows that steps make, and of what was done at the newest row before."""
    while first <= last:
        final = _run(events, first, last)
        n, position = final - first + 1, events[first, POSITION]
        if events[first, KIND] >= STARTED:
            write_checksum(sources, bases, s, position, checksums.OBS, segment_rows, 1, salt, 0)
        _write_word(sources, bases, s, position, n, checksums.STEP, segment_rows, salt)
        _write_word(sources, bases, s, position + 1, n, checksums.OBS, segment_rows, salt)
        over = final < last or _ends(sources, flags, events[final, STEP_NUMBER])
        write_checksum(sources, bases, s, position + n, checksums.STEP, segment_rows, 1, salt, 0 if over else checksums.NOT_YET)
        first = final + 1


@compiled
def _write_word(sources: Any, bases: Any, s: int, position: int, n: int, word: int, segment_rows: int, salt: int) -> None:
    """Write one word of the checksums of consecutive rows of a segment, all of which are final."""
    total, place = 0, 0
    for c in range(sources.shape[0]):
        if sources[c, ROLE] == CHECK:
            place = row_of(sources, bases, c, s, position, segment_rows, 1) + 4 * word
        elif (sources[c, ROLE] == OBS) == (word == checksums.OBS):
            total += sources[c, ROW_BYTES]
    if n <= _FEW or total > _NARROW:
        for row in range(position, position + n):
            write_checksum(sources, bases, s, row, word, segment_rows, 1, salt, 0)
        return
    # Put side by side, with zeros after them, for one call of the library's for each row.
    width = -(-total // 8) * 8
    together = np.zeros(width * _TOGETHER, np.uint8)
    begin = together.ctypes.data
    for k in range(0, n, _TOGETHER):
        rows, at = min(_TOGETHER, n - k), begin
        for c in range(sources.shape[0]):
            if sources[c, ROLE] != CHECK and (sources[c, ROLE] == OBS) == (word == checksums.OBS):
                source = row_of(sources, bases, c, s, position + k, segment_rows, 1)
                _spread(source, at, rows, sources[c, ROW_BYTES], width)
                at += sources[c, ROW_BYTES]
        for r in range(rows):
            crc = crc32c_extend(row_seed(salt, s, position + k + r, word), begin + r * width, width)
            store_u32(place + 8 * (k + r), crc)
    together[0] = 0  # it is used by its address, which numba does not see: it would free it before


@compiled
def _spread(source: int, target: int, n: int, size: int, apart: int) -> None:
    """Copy `n` values of `size` bytes, so that they lie `apart` bytes apart."""
    if size == 1:
        for k in range(n):
            store_u8(target + k * apart, load_u8(source + k))
    elif size == 4:
        for k in range(n):
            store_any_u32(target + k * apart, load_any_u32(source + 4 * k))
    elif size == 8:
        for k in range(n):
            store_any_u64(target + k * apart, load_any_u64(source + 8 * k))
    else:
        for k in range(n):
            memcpy(target + k * apart, source + k * size, size)
