"""Which parts of shards a batch needs and that are not here yet, where the store's files are elsewhere.

A shard that comes in blocks is mapped as if all of it were here. Behind it, from the next multiple of 8 on, is a byte for each
block that tells whether it is. Its index is here in any case; files of flat columns come as a whole when they are mapped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.compiling import compiled
from diskbuffer.native.memory import load_i64, load_u8
from diskbuffer.reading.gather.kernel import CHUNK_ROWS, CHUNKS, COLUMN, ENTRY_BYTES, ROW_BYTES, reads_rows
from diskbuffer.reading.gather.plan import COUNT, OFFSET, SLOT
from diskbuffer.store.format.codec import HEADER

_NUMBERS = 1 << 32  # of blocks in a file, more than there are


def missing_blocks(
    targets: npt.NDArray[np.int64],
    runs: npt.NDArray[np.int64],
    sources: npt.NDArray[np.int64],
    block: int,
    used: npt.NDArray[np.uint8],
    whole: bool,
) -> list[tuple[int, int, npt.NDArray[np.int64]]]:
    """Return what is missing: by column and slot, the numbers of blocks of `block` bytes, each once, in order.

    The slots that the batch reads are marked in `used`. With `whole`, of chunks of which only some rows would be read, all are.
    """
    none = np.empty(0, np.int64)
    n = _find(targets, runs, sources, block, used, whole, none)
    if not n:
        return []
    found = np.empty(n, np.int64)
    found = np.unique(found[: _find(targets, runs, sources, block, used, whole, found)])
    files = found // _NUMBERS
    begins = np.flatnonzero(np.append(True, np.diff(files) != 0)).tolist()
    parts = np.split(found % _NUMBERS, begins[1:])
    return [(int(files[at]) // len(used), int(files[at]) % len(used), part) for at, part in zip(begins, parts, strict=True)]


@compiled
def _find(targets: Any, runs: Any, sources: Any, block: int, used: Any, whole: bool, found: Any) -> int:
    """Put column, slot and block of what is missing into `found`, as far as there is room; return how many there are."""
    n = 0
    for r in range(runs.shape[0]):
        used[runs[r, SLOT]] = 1
    for t in range(targets.shape[0]):
        chunk_rows, column = targets[t, CHUNK_ROWS], targets[t, COLUMN]
        for r in range(runs.shape[0] if chunk_rows else 0):
            source, size, offset, count = sources[r, column, 0], sources[r, column, 1], runs[r, OFFSET], runs[r, COUNT]
            limit = size - targets[t, CHUNKS] * ENTRY_BYTES
            present = source + (size + 7) // 8 * 8
            file = column * used.shape[0] + runs[r, SLOT]
            for chunk in range(offset // chunk_rows, (offset + count - 1) // chunk_rows + 1):
                entry = source + limit + chunk * ENTRY_BYTES
                at, length = load_i64(entry), load_i64(entry + 8)
                if not (0 <= at <= limit and 0 < length <= limit - at):
                    continue
                first, until = max(offset, chunk * chunk_rows), min(offset + count, (chunk + 1) * chunk_rows)
                if not whole and reads_rows(targets, t, length, until - first):
                    at += HEADER + (first - chunk * chunk_rows) * targets[t, ROW_BYTES]
                    length = (until - first) * targets[t, ROW_BYTES]
                for number in range(at // block, (at + length - 1) // block + 1):
                    if load_u8(present + number) == 0:
                        if n < found.shape[0]:
                            found[n] = file * _NUMBERS + number
                        n += 1
    return n
