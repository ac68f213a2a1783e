"""Asking for the pages of a batch before the first is touched, so that the disk reads many at a time.

Without it, a batch that is not in memory waits for one page after the other. With it, it costs a system call for each stretch of
consecutive pages, whether they are in memory or not; so it is for stores that were seen to wait for the disk.
"""

from __future__ import annotations

import resource
from typing import Any

import numpy as np

from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import madvise
from diskbuffer.native.memory import load_i64
from diskbuffer.reading.gather.kernel import CHECKSUMS, CHUNK_ROWS, CHUNKS, COLUMN, ENTRY_BYTES, ROW_BYTES, reads_rows
from diskbuffer.reading.gather.plan import COUNT, OFFSET
from diskbuffer.store.format.codec import HEADER

_PAGE, _WILLNEED = resource.getpagesize(), 3


@compiled
def ask_ahead(targets: Any, runs: Any, sources: Any) -> None:
    """Ask for all pages of a batch: first those of flat columns and of indices, then those of chunks, which indices point to.

    What lies in consecutive pages is asked for at once, as runs come sorted: the disk is read in fewer, larger pieces.
    """
    asked = np.zeros(2, np.int64)
    for t in range(targets.shape[1]):
        column, row_bytes, chunk_rows = targets[0, t, COLUMN], targets[0, t, ROW_BYTES], targets[0, t, CHUNK_ROWS]
        for r in range(runs.shape[0]):
            source, offset, count = sources[r, column, 0], runs[r, OFFSET], runs[r, COUNT]
            if chunk_rows == 0:
                _ask(asked, source + offset * row_bytes, count * row_bytes)
            else:
                low, high = offset // chunk_rows, (offset + count - 1) // chunk_rows + 1
                index = source + sources[r, column, 1] - targets[0, t, CHUNKS] * ENTRY_BYTES
                _ask(asked, index + low * ENTRY_BYTES, (high - low) * ENTRY_BYTES)
    for t in range(targets.shape[1]):
        if targets[0, t, CHUNK_ROWS]:
            for r in range(runs.shape[0]):
                _ask_for_chunks(asked, targets[0], runs, sources, t, r)
    _send(asked)


@compiled
def _ask_for_chunks(asked: Any, targets: Any, runs: Any, sources: Any, t: int, r: int) -> None:
    """Ask for a run's chunks, or where they are stored as they are, for its rows and their checksums."""
    source, offset, count, chunk_rows = sources[r, targets[t, COLUMN], 0], runs[r, OFFSET], runs[r, COUNT], targets[t, CHUNK_ROWS]
    limit = sources[r, targets[t, COLUMN], 1] - targets[t, CHUNKS] * ENTRY_BYTES
    for chunk in range(offset // chunk_rows, (offset + count - 1) // chunk_rows + 1):
        entry = source + limit + chunk * ENTRY_BYTES
        at, length = load_i64(entry), load_i64(entry + 8)
        if not (0 <= at <= limit and 0 < length <= limit - at):
            continue
        first, until = max(offset, chunk * chunk_rows), min(offset + count, (chunk + 1) * chunk_rows)
        if reads_rows(targets, t, length, until - first):
            row_bytes = targets[t, ROW_BYTES]
            _ask(asked, sources[r, targets[t, CHECKSUMS], 0] + first * 8, (until - first) * 8)
            _ask(asked, source + at + HEADER + (first - chunk * chunk_rows) * row_bytes, (until - first) * row_bytes)
        else:
            _ask(asked, source + at, length)


@compiled
def _ask(asked: Any, at: int, size: int) -> None:
    """Add what is needed to the pages from `asked[0]` to `asked[1]`; where they lie apart, send for these, and begin anew."""
    begin, end = at // _PAGE * _PAGE, -(-(at + size) // _PAGE) * _PAGE
    if asked[0] <= begin <= asked[1]:
        asked[1] = max(asked[1], end)
    else:
        _send(asked)
        asked[0], asked[1] = begin, end


@compiled
def _send(asked: Any) -> None:
    if asked[1] > asked[0]:
        madvise(asked[0], asked[1] - asked[0], _WILLNEED)
    asked[0] = asked[1] = 0
