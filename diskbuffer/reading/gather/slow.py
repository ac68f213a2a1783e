"""The gather where c-blosc cannot be called: the same, in Python, with numcodecs. Tens of times slower."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from diskbuffer.reading.gather import kernel as k
from diskbuffer.reading.gather.plan import AT, COUNT, OFFSET, PAD, POSITION, SAMPLE, STREAM
from diskbuffer.store.format.codec import BAD_ENTRY, decode_slowly

Int64 = npt.NDArray[np.int64]


def gather(targets: Int64, runs: Int64, sources: Int64, tail_rows: int, progress: Int64) -> None:
    """Do what `kernel.gather` does, for all runs."""
    for t, target in enumerate(targets):
        decoded: dict[int, bytes] = {}
        row_bytes, skip = int(target[k.ROW_BYTES]), int(target[k.SKIP])
        for r, run in enumerate(runs):
            cut = max(0, skip - int(run[AT]))
            offset = int(run[OFFSET]) + cut
            count = min(int(run[COUNT]), skip + int(target[k.ROWS]) - int(run[AT])) - cut
            if count <= 0:
                continue
            sample = int(target[k.OUT] + run[SAMPLE] * target[k.ROWS] * row_bytes)
            place = sample + (int(run[AT]) + cut - skip) * row_bytes
            source, size = (int(n) for n in sources[target[k.COLUMN], r])
            if target[k.CHUNK_ROWS] == 0:
                ctypes.memmove(place, source + offset * row_bytes, count * row_bytes)
            else:
                for row in range(offset, offset + count):
                    ring = int(target[k.TAIL] + run[STREAM] * tail_rows * row_bytes)
                    tail = ring + (int(run[POSITION]) + cut + row - offset) % tail_rows * row_bytes
                    reason = _put_row(target, source, size, row, tail, decoded, place + (row - offset) * row_bytes)
                    if reason:
                        progress[k.REASON :] = reason, t, r, row // int(target[k.CHUNK_ROWS])
                        return
            for pad in range(int(run[PAD]) - skip):
                if target[k.ZEROS]:
                    ctypes.memset(sample + pad * row_bytes, 0, row_bytes)
                else:
                    ctypes.memmove(sample + pad * row_bytes, place, row_bytes)


def _put_row(target: Int64, source: int, size: int, row: int, tail: int, decoded: dict[int, bytes], place: int) -> int:
    row_bytes, chunk_rows = int(target[k.ROW_BYTES]), int(target[k.CHUNK_ROWS])
    limit = size - int(target[k.CHUNKS]) * 16
    entry = source + limit + row // chunk_rows * 16
    if entry not in decoded:
        at, length = _entry(entry)
        if -1 in (at, length):
            ctypes.memmove(place, tail, row_bytes)
            at, length = _entry(entry)
            if -1 in (at, length):
                return 0
        if not 0 <= at <= at + length <= limit:
            return BAD_ENTRY
        reason, decoded[entry] = decode_slowly(ctypes.string_at(source + at, length), chunk_rows * row_bytes)
        if reason:
            return reason
    ctypes.memmove(place, decoded[entry][row % chunk_rows * row_bytes :][:row_bytes], row_bytes)
    return 0


def _entry(address: int) -> tuple[int, int]:
    at, length = np.frombuffer(ctypes.string_at(address, 16), np.int64)
    return int(at), int(length)
