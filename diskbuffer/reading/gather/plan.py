"""The plan of a batch: which runs of rows go to which place of it.

A sample is a window of consecutive positions around a step, cut off at the start of the episode, or of its stack prefix, and at
its end. Where a window crosses from one segment to the next it becomes two runs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import EvictedError
from diskbuffer.index.index import Index
from diskbuffer.native.jobs import Job
from diskbuffer.reading.readable import Mapped
from diskbuffer.samplers.draws import Draw

Int64 = npt.NDArray[np.int64]


def plan(
    job: Job, index: Index, maps: Mapped, targets: Int64, drawn: Draw, before: int, rows: int, first_stream: int = 0
) -> None:
    """Add windows of `rows` rows to a job, of which the drawn one is number `before`. The store's lock must be held.

    Rows before an episode's start are made up, rows after its end left as they are in the batch. `first_stream` is the number
    by which the draw knows this store's first stream; steps of others are another plan's. What is mapped stays as long as the
    job.
    """
    complete = job.plan(index.table, maps.sources, targets, *drawn[:4], before, rows, index.segment_rows, first_stream)
    if complete is None:
        raise EvictedError("a step that was drawn is not there any more; refresh() sees which are")
    if not complete:
        maps.ensure(np.unique(job.files()).tolist())
        job.find_sources(maps.sources)
    job.keep(maps.epoch)
