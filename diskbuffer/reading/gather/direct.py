"""Single steps of flat columns, copied row by row without a plan, which would take longer than to copy what is small."""

from __future__ import annotations

from typing import Any

import numpy as np

from diskbuffer.index.lookup import LOW, SLOTS
from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import memcpy
from diskbuffer.native.memory import (
    load_any_u32,
    load_any_u64,
    load_i64,
    load_u8,
    prefetch,
    store_any_u32,
    store_any_u64,
    store_u8,
)
from diskbuffer.reading.gather.kernel import COLUMN, FLAG, OUT, ROW_BYTES, ROWS


@compiled
def copy_steps(table: Any, mapped: Any, targets: Any, streams: Any, positions: Any, segment_rows: int) -> bool:
    """Copy the rows of steps, and of targets with two rows those after them, too; return whether all of them are mapped.

    `table` is an index's, `mapped` what `Maps.sources` are, `targets` as of `kernel.gather`, of flat columns alone. Nothing is
    checked: the steps must be there.
    """
    n = positions.shape[0]
    slots, offsets = np.empty(n + 1, np.int64), np.empty(n, np.int64)
    for i in range(n):
        segment = positions[i] // segment_rows
        slots[i] = load_i64(table[streams[i], SLOTS] + 8 * (segment - table[streams[i], LOW] // segment_rows))
        offsets[i] = positions[i] - segment * segment_rows
        for t in range(targets.shape[0]):
            prefetch(mapped[targets[t, COLUMN], slots[i], 0] + offsets[i] * targets[t, ROW_BYTES])
    for t in range(targets.shape[0]):
        column, size, rows, out = targets[t, COLUMN], targets[t, ROW_BYTES], targets[t, ROWS], targets[t, OUT]
        for i in range(n):
            base, target = mapped[column, slots[i], 0], out + i * rows * size
            if base == 0:
                return False
            if rows == 2 and offsets[i] + 1 == segment_rows:
                after = table[streams[i], SLOTS] + 8 * (positions[i] // segment_rows + 1 - table[streams[i], LOW] // segment_rows)
                other = mapped[column, load_i64(after), 0]
                if other == 0:
                    return False
                memcpy(target, base + offsets[i] * size, size)
                memcpy(target + size, other, size)
            else:
                _copy(target, base + offsets[i] * size, rows * size)
        if targets[t, FLAG]:
            for k in range(out, out + n * rows * size):
                store_u8(k, load_u8(k) != 0)
    return True


@compiled
def _copy(target: int, source: int, size: int) -> None:
    """Copy what is mostly one number, or a few: without calling the library for 8 to 32 bytes, or less."""
    if size == 1:
        store_u8(target, load_u8(source))
    elif size == 4:
        store_any_u32(target, load_any_u32(source))
    elif size % 8 == 0 and size <= 64:
        for k in range(0, size, 8):
            store_any_u64(target + k, load_any_u64(source + k))
    else:
        memcpy(target, source, size)
