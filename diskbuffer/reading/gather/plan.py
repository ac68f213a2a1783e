"""The plan of a batch: which runs of rows, in which slots, go to which place of it.

A sample is a window of consecutive positions around a step, cut off at the start of the episode, or of its lead-in, and at its
end. Where a window crosses
from one segment to the next it becomes two runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.draws import Draw
from diskbuffer.errors import EvictedError
from diskbuffer.index.fields import HEAD, LEADS, LOW, OWN, SLOTS, STORE
from diskbuffer.index.index import Index
from diskbuffer.index.lookup import lead_in
from diskbuffer.native.compiling import compiled
from diskbuffer.native.memory import load_i64
from diskbuffer.reading.readable import Mapped

Int64 = npt.NDArray[np.int64]

# Fields of a run.
SLOT, OFFSET, COUNT = 0, 1, 2  # rows OFFSET to OFFSET + COUNT of a slot ...
SAMPLE, AT = 3, 4  # ... are those from AT on in the window of a sample
PAD = 5  # how many rows before AT have to be made up, as the episode starts there: 0 but for a window's first run
STREAM, POSITION = 6, 7  # where the rows are in the tail, as long as they are there
OF_STORE = 8  # which of several stores they are in
RUN_FIELDS = 9


@dataclass(slots=True)
class Plan:
    """Runs, sorted by where they lie, and the memory that each column is mapped to there.

    Attributes
    ----------
    runs : (runs, RUN_FIELDS) int64
    sources : (runs, columns, 2) int64
        Address and size of the segment's file.
    epoch : object
        Keeps that memory mapped as long as the plan lives.
    held : list
        What else is kept: memory of its own that some of the sources are in.
    """

    runs: Int64
    sources: Int64
    epoch: Any
    held: list[object] = field(default_factory=list)


def make_plan(index: Index, maps: Mapped, drawn: Draw, before: int, rows: int, first_stream: int = 0) -> Plan:
    """Plan windows of `rows` rows, of which the drawn one is number `before`. The store's lock must be held.

    Rows before an episode's start are made up, rows after its end left as they are in the batch. `first_stream` is the number
    by which the draw knows this store's first stream; steps of others are another plan's.
    """
    most = len(drawn.positions) * (rows // index.segment_rows + 2)
    runs, sources = np.empty((most, RUN_FIELDS), np.int64), np.empty((most, len(maps.sources), 2), np.int64)
    n, complete = _find(index.table, maps.sources, *drawn[:4], before, rows, index.segment_rows, first_stream, runs, sources)
    if n < 0:
        raise EvictedError("a step that was drawn is not there any more; refresh() sees which are")
    runs, sources = runs[:n], sources[:n]
    if not complete:
        maps.ensure(np.unique(runs[:, SLOT]).tolist())
        _find_sources(maps.sources, runs, sources)
    return Plan(runs, sources, maps.epoch)


@compiled
def _find(
    table: Any,
    mapped: Any,
    streams: Any,
    positions: Any,
    starts: Any,
    ends: Any,
    before: int,
    rows: int,
    segment_rows: int,
    first_stream: int,
    runs: Any,
    sources: Any,
) -> tuple[int, bool]:
    """Find the runs, sorted, and their sources; return how many there are, -1 if a step is gone, and whether all are mapped."""
    found, keys, n = np.empty(runs.shape, np.int64), np.empty(runs.shape[0], np.int64), 0
    for i in range(positions.shape[0]):
        stream = streams[i] - first_stream
        if stream < 0 or stream >= table.shape[0]:
            continue
        if positions[i] < table[stream, LOW]:
            return -1, False
        wanted = positions[i] - before
        start = starts[i]
        if wanted < start and table[stream, LEADS]:
            start = lead_in(table, stream, start)
        position = max(wanted, start, table[stream, LOW])
        end = min(wanted + rows, ends[i] + 1, table[stream, HEAD] + 1)
        pad = position - wanted
        while position < end:
            segment = position // segment_rows
            until = min(end, (segment + 1) * segment_rows)
            slot = load_i64(table[stream, SLOTS] + 8 * (segment - table[stream, LOW] // segment_rows))
            found[n, SLOT], found[n, OFFSET], found[n, COUNT] = slot, position - segment * segment_rows, until - position
            found[n, SAMPLE], found[n, AT], found[n, PAD] = i, position - wanted, pad
            found[n, STREAM], found[n, POSITION], found[n, OF_STORE] = table[stream, OWN], position, table[stream, STORE]
            keys[n] = (slot * segment_rows + found[n, OFFSET]) * runs.shape[0] + n  # the row in the store, and the run
            n, position, pad = n + 1, until, 0
    keys[:n].sort()
    for r in range(n):
        runs[r] = found[keys[r] % runs.shape[0]]
    return n, _find_sources(mapped, runs[:n], sources[:n])


@compiled
def _find_sources(mapped: Any, runs: Any, sources: Any) -> bool:
    """Look up where the files of runs are mapped; return whether all of them are."""
    complete = True
    for r in range(runs.shape[0]):
        slot = runs[r, SLOT]
        for c in range(mapped.shape[0]):
            sources[r, c, 0], sources[r, c, 1] = mapped[c, slot, 0], mapped[c, slot, 1]
            complete &= mapped[c, slot, 0] != 0
    return complete
