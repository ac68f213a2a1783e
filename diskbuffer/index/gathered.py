"""One index of the streams of several stores, numbered through: what each knows of its own is looked up in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.index.fields import FIELDS, HEAD, LEAD_PLACES, OWN, SLOTS, STARTS, STORE
from diskbuffer.index.growing_array import GrowingArray
from diskbuffer.index.index import Index

Int64 = npt.NDArray[np.int64]
_NOTHING = GrowingArray()


class Part(NamedTuple):
    """A store's index, the number that its first stream has here, the store's, and those of its slots, (slots,)."""

    of: Index
    first_stream: int
    store: int
    slots: Int64


class GatheredIndex(Index):
    """Know where every step of several stores lies. It is not written to: another is made when one of theirs has changed.

    Parameters
    ----------
    streams : int
        As many as there is room for; those of no store are empty.
    segment_rows, context : int
        As in `Streams`, the same in all stores.
    parts : sequence of Part
    """

    def __init__(self, streams: int, segment_rows: int, context: int, parts: Sequence[Part]) -> None:
        self.segment_rows, self.context = segment_rows, context
        self.table = np.zeros((streams, FIELDS), np.int64)
        self.table[:, HEAD] = -1
        self.table[:, [STARTS, SLOTS, LEAD_PLACES]] = _NOTHING.address
        self._starts, self._slots, self._leads = ([_NOTHING] * streams for _ in range(3))
        self._begins, self._steps_offset = np.zeros(streams, np.int64), np.zeros(streams, np.int64)
        self.environments = np.concatenate([np.empty(0, np.int64), *(part.first_stream + part.of.environments for part in parts)])
        self.dropped = sum(part.of.dropped for part in parts)
        for part in parts:
            self._take(part)

    def _take(self, part: Part) -> None:
        of, n = part.of, len(part.of.table)
        mine = slice(part.first_stream, part.first_stream + n)
        self.table[mine], self.table[mine, STORE], self.table[mine, OWN] = of.table, part.store, np.arange(n)
        # As they are now: the store's own index goes on, while this one may have to stay as it is.
        self._starts[mine], self._leads[mine] = ([log.as_it_is() for log in logs] for logs in (of._starts, of._leads))
        self._begins[mine], self._steps_offset[mine] = of._begins, of._steps_offset
        slots = [GrowingArray(part.slots[of.slots(stream)]) for stream in range(n)]
        self._slots[mine] = slots
        self.table[mine, SLOTS] = [each.address for each in slots]
