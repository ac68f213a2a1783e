"""What a plan reads, taken out of the store's files as it is stored: to be sent elsewhere, and gathered there.

Of a packed column these are the chunks, each once, as runs come sorted; of a flat one the rows. Rows that are in the tail only
are made a chunk here. On the other side the same kernel gathers, with sources that say where all of this lies then:

    packed    chunk, chunk, ..., some empty entries, an entry for each chunk
    flat      rows of the first run, rows of the second, ...
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import encode, memcpy
from diskbuffer.native.memory import load_i64, store_i64
from diskbuffer.reading.gather import kernel as k
from diskbuffer.reading.gather.kernel import ENTRY_BYTES
from diskbuffer.reading.gather.plan import AT, COUNT, OF_STORE, OFFSET, PAD, POSITION, RUN_FIELDS, SAMPLE, SLOT, STREAM, Plan
from diskbuffer.store.format.codec import LIVE, bound

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_KEPT = (OFFSET, COUNT, SAMPLE, AT, PAD)  # of a run; all else tells where it was
_OFFSETS = 8  # rows that a chunk has at most: where a run begins is told by its place in so many
_EMPTY = -1
_LIVE = ctypes.create_string_buffer(LIVE.compressor.encode())


class Parts(NamedTuple):
    """What a plan reads.

    Attributes
    ----------
    runs : (runs, 5) int32
    firsts : (columns, runs) int32
        Where each run begins: the number of its first entry, or of its first byte.
    blobs : list of (bytes,) uint8
        Of each column.
    ends : list of int
        Where each column's chunks end; all of it, of a flat one.
    """

    runs: npt.NDArray[np.int32]
    firsts: npt.NDArray[np.int32]
    blobs: list[Bytes]
    ends: list[int]

    @property
    def nbytes(self) -> int:
        """How many bytes are sent."""
        return self.runs.nbytes + self.firsts.nbytes + sum(blob.nbytes for blob in self.blobs)


def take_parts(plan: Plan, targets: Int64, most: int) -> Parts | None:
    """Return what a plan reads of one store; None where that is more than `most` bytes, or cannot be sent.

    Parameters
    ----------
    plan : Plan
    targets : (1, columns, TARGET_FIELDS) int64
        Each column once.
    most : int
        Bytes.
    """
    if len(targets) > 1 or len(set(targets[0, :, k.COLUMN].tolist())) < targets.shape[1]:
        return None
    runs = plan.runs[:, _KEPT].astype(np.int32)
    runs[:, 0] %= _OFFSETS
    firsts = np.empty((targets.shape[1], len(runs)), np.int32)
    blobs, ends, left = [], [], most - runs.nbytes - firsts.nbytes
    for t in range(targets.shape[1]):
        target = targets[0, t]
        if target[k.CHUNK_ROWS]:
            chunk_bytes = int(target[k.CHUNK_ROWS] * target[k.ROW_BYTES])
            entries = np.empty((_most_chunks(plan.runs, int(target[k.CHUNK_ROWS])), 2), np.int64)
            stored, of_tail, n = _list_chunks(target, plan.runs, plan.sources, entries, firsts[t])
            before = _empty_entries(target)
            if n < 0 or stored + (before + n) * ENTRY_BYTES > left:
                return None
            room = (stored + of_tail * bound(chunk_bytes) + 7) // 8 * 8
            blob = np.zeros(room + (before + n) * ENTRY_BYTES, np.uint8)
            scratch = np.empty(2 * bound(chunk_bytes), np.uint8)
            live = ctypes.addressof(_LIVE), LIVE.level, 1
            end = _copy_chunks(target, plan.runs, plan.sources, entries[:n], blob, room, before, *live, scratch)
            blob = blob[: end + (before + n) * ENTRY_BYTES]
            if end < 0 or blob.nbytes > left:
                return None
        else:
            size = _list_rows(target, plan.runs, firsts[t])
            if size > left:
                return None
            blob = np.empty(size, np.uint8)
            _copy_rows(target, plan.runs, plan.sources, firsts[t], blob)
            end = size
        left -= blob.nbytes
        blobs.append(blob)
        ends.append(end)
    return Parts(runs, firsts, blobs, ends)


def plan_of(parts: Parts, targets: Int64, columns: int) -> Plan:
    """Return a plan that gathers parts, where the store's schema has so many columns; it holds them."""
    n = len(parts.runs)
    runs, sources = np.zeros((n, RUN_FIELDS), np.int64), np.zeros((n, columns, 2), np.int64)
    runs[:, _KEPT] = parts.runs
    for t, (blob, end) in enumerate(zip(parts.blobs, parts.ends, strict=True)):
        target, at = targets[0, t], blob.ctypes.data
        column, firsts = int(target[k.COLUMN]), parts.firsts[t].astype(np.int64)
        cut = np.maximum(target[k.SKIP] - runs[:, AT], 0)
        if target[k.CHUNK_ROWS]:
            wants = np.minimum(runs[:, COUNT], target[k.SKIP] + target[k.ROWS] - runs[:, AT]) > cut
            chunk = np.where(wants, (runs[:, OFFSET] + cut) // target[k.CHUNK_ROWS], 0)
            limit = end + (_empty_entries(target) + firsts - chunk) * ENTRY_BYTES
            sources[:, column, 0], sources[:, column, 1] = at, limit + target[k.CHUNKS] * ENTRY_BYTES
        else:
            sources[:, column, 0] = at + firsts - (runs[:, OFFSET] + cut) * target[k.ROW_BYTES]
            sources[:, column, 1] = blob.nbytes
    return Plan(runs, sources, None, [parts])


def _empty_entries(target: Any) -> int:
    """Return how many entries lie before the first one: no run's place in its chunks may point before the entries."""
    return int((_OFFSETS + target[k.SKIP]) // target[k.CHUNK_ROWS]) + 2


def _most_chunks(runs: Int64, chunk_rows: int) -> int:
    return int((runs[:, COUNT] // chunk_rows + 2).sum())


@compiled
def _wanted(target: Any, runs: Any, r: int) -> tuple[int, int]:
    """Return the first row of a run's slot that a target wants, and how many."""
    cut = max(0, target[k.SKIP] - runs[r, AT])
    return runs[r, OFFSET] + cut, min(runs[r, COUNT], target[k.SKIP] + target[k.ROWS] - runs[r, AT]) - cut


@compiled
def _list_chunks(target: Any, runs: Any, sources: Any, entries: Any, firsts: Any) -> tuple[int, int, int]:
    """List the chunks that runs want, as (run, chunk), each once.

    Returns the bytes of those that are in shards, how many are in the tail only, and how many there are; -1 where one is damaged.
    """
    n, size, of_tail, slot, store, begin, until = 0, 0, 0, np.int64(-1), np.int64(-1), np.int64(0), np.int64(0)
    column, chunk_rows = target[k.COLUMN], target[k.CHUNK_ROWS]
    for r in range(runs.shape[0]):
        row, count = _wanted(target, runs, r)
        firsts[r] = 0
        if count <= 0:
            continue
        first, last = row // chunk_rows, (row + count - 1) // chunk_rows
        if runs[r, SLOT] != slot or runs[r, OF_STORE] != store or first > until or first < begin:
            slot, store, begin, until = runs[r, SLOT], runs[r, OF_STORE], first, first
        firsts[r] = n - (until - first)
        limit = sources[r, column, 1] - target[k.CHUNKS] * ENTRY_BYTES
        for chunk in range(until, last + 1):
            entry = sources[r, column, 0] + limit + chunk * ENTRY_BYTES
            at, length = load_i64(entry), load_i64(entry + 8)
            if at == _EMPTY or length == _EMPTY:
                of_tail, length = of_tail + 1, 0
            elif not (0 <= at <= limit and 0 <= length <= limit - at):
                return 0, 0, -1  # whoever gathers it says what is wrong
            entries[n, 0], entries[n, 1] = r, chunk
            n, size = n + 1, size + length
        until = max(until, last + 1)
    return size, of_tail, n


@compiled
def _copy_chunks(
    target: Any,
    runs: Any,
    sources: Any,
    entries: Any,
    blob: Any,
    room: int,
    before: int,
    cname: int,
    level: int,
    item: int,
    scratch: Any,
) -> int:
    """Copy chunks, and their entries; return where the chunks end, a multiple of 8, or -1 where they cannot be copied."""
    base, end, half = blob.ctypes.data, np.int64(0), scratch.ctypes.data + scratch.size // 2
    places = np.empty((entries.shape[0], 2), np.int64)
    for n in range(entries.shape[0]):
        r, chunk = entries[n, 0], entries[n, 1]
        source = sources[r, target[k.COLUMN], 0]
        entry = source + sources[r, target[k.COLUMN], 1] - target[k.CHUNKS] * ENTRY_BYTES + chunk * ENTRY_BYTES
        at, length = load_i64(entry), load_i64(entry + 8)
        if at == _EMPTY or length == _EMPTY:
            if target[k.WIDTH]:
                return -1  # these are encoded by others
            _copy_tail(target, runs, r, chunk, scratch)
            # As in the kernel: if the chunk is in its shard by now, that is what is meant.
            at, length = load_i64(entry), load_i64(entry + 8)
        if at == _EMPTY or length == _EMPTY:
            chunk_bytes = target[k.CHUNK_ROWS] * target[k.ROW_BYTES]
            length = encode(scratch.ctypes.data, chunk_bytes, half, cname, level, item)
            at = half - source
        if length <= 0 or length > room - end:
            return -1
        memcpy(base + end, source + at, length)
        places[n, 0], places[n, 1] = end, length
        end += length
    end = (end + 7) // 8 * 8
    for n in range(entries.shape[0]):
        store_i64(base + end + (before + n) * ENTRY_BYTES, places[n, 0])
        store_i64(base + end + (before + n) * ENTRY_BYTES + 8, places[n, 1])
    return int(end)


@compiled
def _copy_tail(target: Any, runs: Any, r: int, chunk: int, scratch: Any) -> None:
    """Copy the rows of a chunk that is in the tail yet, as far as there are any."""
    row_bytes, tail_rows = target[k.ROW_BYTES], target[k.TAIL_ROWS]
    ring = target[k.TAIL] + runs[r, STREAM] * tail_rows * row_bytes
    position = runs[r, POSITION] - runs[r, OFFSET] + chunk * target[k.CHUNK_ROWS]
    for row in range(target[k.CHUNK_ROWS]):
        memcpy(scratch.ctypes.data + row * row_bytes, ring + (position + row) % tail_rows * row_bytes, row_bytes)


@compiled
def _list_rows(target: Any, runs: Any, firsts: Any) -> int:
    size = np.int64(0)
    for r in range(runs.shape[0]):
        firsts[r] = size
        size += max(_wanted(target, runs, r)[1], 0) * target[k.ROW_BYTES]
    return int(size)


@compiled
def _copy_rows(target: Any, runs: Any, sources: Any, firsts: Any, blob: Any) -> None:
    for r in range(runs.shape[0]):
        row, count = _wanted(target, runs, r)
        if count > 0:
            source = sources[r, target[k.COLUMN], 0] + row * target[k.ROW_BYTES]
            memcpy(blob.ctypes.data + firsts[r], source, count * target[k.ROW_BYTES])
