"""What a plan reads, taken out of the store's files as it is stored: to be sent elsewhere, and gathered there.

Of a packed column these are the chunks, each once, as runs come sorted; of a flat one the rows. Rows that are in the tail only
are made a chunk here. On the other side the same kernel gathers, with sources that say where all of this lies then:

    packed    chunk, chunk, ..., some empty entries, an entry for each chunk
    flat      rows of the first run, rows of the second, ...
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.native import gather
from diskbuffer.native.gather import AT, COUNT, PAD, ROW, RUN_FIELDS, SAMPLE
from diskbuffer.reading.gather.plan import Plan
from diskbuffer.store.format.codec import bound
from diskbuffer.store.format.layout import ENTRY_BYTES

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_KEPT = (ROW, COUNT, SAMPLE, AT, PAD)  # of a run; all else tells where it was
_OFFSETS = 8  # rows that a chunk has at most: where a run begins is told by its place in so many


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
    if len(targets) > 1 or len(set(targets[0, :, gather.COLUMN].tolist())) < targets.shape[1]:
        return None
    runs = plan.runs[:, _KEPT].astype(np.int32)
    runs[:, 0] %= _OFFSETS
    firsts = np.empty((targets.shape[1], len(runs)), np.int32)
    what, blobs, ends, left = (targets, plan.runs, plan.sources), [], [], most - runs.nbytes - firsts.nbytes
    for t, target in enumerate(targets[0]):
        if target[gather.CHUNK_ROWS]:
            chunk_bound = bound(int(target[gather.CHUNK_ROWS] * target[gather.ROW_BYTES]))
            chunks = np.empty((_most_chunks(plan.runs, int(target[gather.CHUNK_ROWS])), 2), np.int64)
            n, stored, of_tail = gather.list_chunks(*what, t, chunks, firsts[t])
            before = _empty_entries(target)
            if n < 0 or stored + (before + n) * ENTRY_BYTES > left:
                return None
            room = (stored + of_tail * chunk_bound + 7) // 8 * 8
            blob = np.zeros(room + (before + n) * ENTRY_BYTES, np.uint8)
            end = gather.copy_chunks(*what, t, chunks[:n], blob, room, before, np.empty(2 * chunk_bound, np.uint8))
            blob = blob[: end + (before + n) * ENTRY_BYTES]
            if end < 0 or blob.nbytes > left:
                return None
        else:
            end = gather.list_rows(*what, t, firsts[t])
            if not 0 <= end <= left:
                return None
            blob = np.empty(end, np.uint8)
            gather.copy_rows(*what, t, firsts[t], blob)
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
        column, firsts = int(target[gather.COLUMN]), parts.firsts[t].astype(np.int64)
        cut = np.maximum(target[gather.SKIP] - runs[:, AT], 0)
        if target[gather.CHUNK_ROWS]:
            wants = np.minimum(runs[:, COUNT], target[gather.SKIP] + target[gather.ROWS] - runs[:, AT]) > cut
            chunk = np.where(wants, (runs[:, ROW] + cut) // target[gather.CHUNK_ROWS], 0)
            limit = end + (_empty_entries(target) + firsts - chunk) * ENTRY_BYTES
            sources[:, column, 0], sources[:, column, 1] = at, limit + target[gather.CHUNKS] * ENTRY_BYTES
        else:
            sources[:, column, 0] = at + firsts - (runs[:, ROW] + cut) * target[gather.ROW_BYTES]
            sources[:, column, 1] = at + blob.nbytes - sources[:, column, 0]
    return Plan(runs, sources, None, [parts])


def _empty_entries(target: Any) -> int:
    """Return how many entries lie before the first one: no run's place in its chunks may point before the entries."""
    return int((_OFFSETS + target[gather.SKIP]) // target[gather.CHUNK_ROWS]) + 2


def _most_chunks(runs: Int64, chunk_rows: int) -> int:
    return int((runs[:, COUNT] // chunk_rows + 2).sum())
