"""One index of the streams of several stores, numbered through: what each knows of its own is looked up in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.index.fields import FIELDS, HEAD, PREFIX_PLACES, SLOTS, STARTS, STORE, STORE_STREAM
from diskbuffer.index.growing_array import GrowingArray
from diskbuffer.index.index import Index

Int64 = npt.NDArray[np.int64]
_NOTHING = GrowingArray()


class IndexPart(NamedTuple):
    """A store's index, None where it is gone; the number that its first stream has here, the store's, and those of its slots."""

    of: Index | None
    first_stream: int
    store: int
    slots: Int64


class MultiWriterIndex(Index):
    """Know where every step of several stores lies. It is not written to: another is made when one of theirs has changed.

    Parameters
    ----------
    streams : int
        As many as there is room for; those of no store are empty.
    segment_rows, context : int
        As in `Streams`, the same in all stores.
    parts : sequence of IndexPart
        Those that have changed.
    before : MultiWriterIndex, optional
        Which has what has not.
    """

    def __init__(
        self, streams: int, segment_rows: int, context: int, parts: Sequence[IndexPart], before: MultiWriterIndex | None = None
    ) -> None:
        self.segment_rows, self.context = segment_rows, context
        if before is None:
            self.table = np.zeros((streams, FIELDS), np.int64)
            self._starts, self._slots, self._prefixes = ([_NOTHING] * streams for _ in range(3))
            self.begins, self._steps_offset = np.zeros(streams, np.int64), np.zeros(streams, np.int64)
            self._of: dict[int, _Known] = {}
            self._clear(slice(None))
        else:
            self.table = before.table.copy()
            self._starts, self._slots, self._prefixes = before._starts.copy(), before._slots.copy(), before._prefixes.copy()
            self.begins, self._steps_offset = before.begins.copy(), before._steps_offset.copy()
            self._of = before._of.copy()
        for part in parts:
            self._take(part)
        if before is not None and all(_environments(before._of, part) == _environments(self._of, part) for part in parts):
            self.environments = before.environments
        else:
            environments = [self._of[store].environments for store in sorted(self._of)]
            self.environments = np.concatenate([np.empty(0, np.int64), *environments])
        self.losses = np.array([sum(known.losses for known in self._of.values())])

    def _clear(self, mine: slice) -> None:
        self.table[mine], self.table[mine, HEAD] = 0, -1
        self.table[mine, [STARTS, SLOTS, PREFIX_PLACES]] = _NOTHING.address
        for logs in (self._starts, self._slots, self._prefixes):
            logs[mine] = [_NOTHING] * len(logs[mine])
        self.begins[mine] = self._steps_offset[mine] = 0

    def _take(self, part: IndexPart) -> None:
        known = self._of.pop(part.store, None)
        if part.of is None:
            if known is not None:
                self._clear(slice(part.first_stream, part.first_stream + known.streams))
            return
        of, n = part.of, len(part.of.table)
        mine = slice(part.first_stream, part.first_stream + n)
        self._of[part.store] = _Known(n, int(of.losses[0]), part.first_stream + of.environments)
        self.table[mine], self.table[mine, STORE], self.table[mine, STORE_STREAM] = of.table, part.store, np.arange(n)
        # As they are now: the store's own index goes on, while this one may have to stay as it is.
        self._starts[mine], self._prefixes[mine] = ([log.as_it_is() for log in logs] for logs in (of._starts, of._prefixes))
        self.begins[mine], self._steps_offset[mine] = of.begins, of._steps_offset
        slots = [GrowingArray(part.slots[of.slots(stream)]) for stream in range(n)]
        self._slots[mine] = slots
        self.table[mine, SLOTS] = [each.address for each in slots]


class _Known(NamedTuple):
    """How many streams a store has, which of all are its environments', and how often it had dropped steps."""

    streams: int
    losses: int
    environments: Int64


def _environments(of: dict[int, _Known], part: IndexPart) -> int:
    return len(of[part.store].environments) if part.store in of else 0
