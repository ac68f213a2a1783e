"""The plan of a batch: which runs of rows go to which place of it.

A sample is a window of consecutive positions around a step, cut off at the start of the episode, or of its stack prefix, and at
its end. Where a window crosses from one segment to the next it becomes two runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import EvictedError
from diskbuffer.index.index import Index
from diskbuffer.native import gather
from diskbuffer.reading.readable import Mapped
from diskbuffer.samplers.draws import Draw

Int64 = npt.NDArray[np.int64]


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
    """

    runs: Int64
    sources: Int64
    epoch: Any


def make_plan(index: Index, maps: Mapped, drawn: Draw, before: int, rows: int, first_stream: int = 0) -> Plan:
    """Plan windows of `rows` rows, of which the drawn one is number `before`. The store's lock must be held.

    Rows before an episode's start are made up, rows after its end left as they are in the batch. `first_stream` is the number
    by which the draw knows this store's first stream; steps of others are another plan's.
    """
    planned = gather.plan(index.table, maps.sources, *drawn[:4], before, rows, index.segment_rows, first_stream)
    if planned is None:
        raise EvictedError("a step that was drawn is not there any more; refresh() sees which are")
    runs, sources, complete = planned
    if not complete:
        maps.ensure(np.unique(runs[:, gather.FILE]).tolist())
        gather.find_sources(maps.sources, runs, sources)
    return Plan(runs, sources, maps.epoch)
