"""Which steps are young enough: of each stream the newest, by how many steps came after them, or by a column.

Asynchronous training asks for this: what an old policy did is of little use to a new one (Espeholt et al., 2018, "IMPALA:
scalable distributed deep-RL with importance weighted actor-learner architectures").

Of a column is kept, for each stream, after which steps it never was as small again: the last step that is too old is one of
these, whatever the limit. Where a column does not decrease, that is one step for each of its values. Rows are read once, when
they are new; older ones as far back as the limit reaches.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.integers import integer
from diskbuffer.errors import InputError
from diskbuffer.index.fields import FLOOR, HEAD, LOW
from diskbuffer.index.index import Index
from diskbuffer.samplers.columns import OpenColumn, Segments, met_here

Int64 = npt.NDArray[np.int64]


class InSteps:
    """The newest so many steps of each stream; `said` is for messages."""

    def __init__(self, steps: float) -> None:
        self._steps, self.said = integer("max_age, in steps where there is no age_column=,", steps), f"max_age={steps}"

    def attach(self, index: Index, column: OpenColumn) -> None:
        """Do nothing: no column is read."""

    def counts(self, index: Index) -> Int64:
        """Count the steps of each stream that are young enough: they are its newest."""
        return np.minimum(index.steps(), self._steps)


class ByColumn:
    """Of each stream, the steps after the last one whose value is below the newest value of all streams less `most`."""

    def __init__(self, name: str, most: Any) -> None:
        if not isinstance(name, str):
            raise InputError(f"age_column must be a column's name, found {name!r}")
        if isinstance(most, bool) or not isinstance(most, int | float | np.number) or not 0 <= most < math.inf:
            raise InputError(f"max_age must be a number from 0 on, in the unit of {name!r}, found {most!r}")
        self._name, self._most = name, most.item() if isinstance(most, np.number) else most
        self.said = f"max_age={most}, age_column={name!r}"
        self._column: Segments | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what another buffer, or process, can use."""
        return {"_name": self._name, "_most": self._most, "said": self.said, "_column": None}

    def attach(self, index: Index, column: OpenColumn) -> None:
        """Read this buffer's column from now on."""
        if self._column is not None and self._column.index is index:
            return
        self._column = column(self._name, None)
        self._lows: dict[int, _Lows] = {}  # of the streams that have rows
        self._seen = np.full((len(index.table), 2), -1, np.int64)
        self._counts = np.zeros(len(index.table), np.int64)
        self._limit: float | None = None

    def counts(self, index: Index) -> Int64:
        """Count them."""
        met_here(self._column, index, self.said)
        now = index.table[:, [HEAD, FLOOR]]
        changed = np.flatnonzero((now != self._seen).any(axis=1)).tolist()
        if changed:
            for stream in changed:
                self._catch_up(index, stream)
            limit = self._limit_now()
            for stream in changed if limit == self._limit else list(self._lows):
                lows = self._lows.get(stream)
                self._counts[stream] = 0 if lows is None or limit is None else lows.count_from(index, limit)
            self._seen, self._limit = now, limit
        return self._counts

    def _catch_up(self, index: Index, stream: int) -> None:
        if index.table[stream, HEAD] < 0:  # its writer's store is gone
            self._lows.pop(stream, None)
            return
        assert self._column is not None
        self._lows.setdefault(stream, _Lows(self._column, stream)).catch_up(index)

    def _limit_now(self) -> float | None:
        """Return the smallest value that is young enough; None where no step has one."""
        newest = max((lows.newest for lows in self._lows.values() if lows.newest is not None), default=None)
        if newest is None or newest == -math.inf:
            return None
        return newest - self._most


Limit = InSteps | ByColumn


def limit_of(max_age: float, age_column: str | None) -> Limit:
    """Return a limit in steps, or in a column's unit; an InputError where it is none."""
    return InSteps(max_age) if age_column is None else ByColumn(age_column, max_age)


class _Lows:
    """The steps of a stream after which a column never was as small again, with their values, which ascend."""

    def __init__(self, column: Segments, stream: int) -> None:
        self._column, self._stream = column, stream
        self._first = self._until = 0  # which rows were read
        self._positions: list[int] = []
        self._values: list[float] = []

    @property
    def newest(self) -> float | None:
        """The value of the newest step, if there is one."""
        return self._values[-1] if self._values else None

    def catch_up(self, index: Index) -> None:
        """Read the rows that are new."""
        head, floor = (int(n) for n in index.table[self._stream, [HEAD, FLOOR]])
        if not self._values or not floor <= self._positions[-1] < head:
            self._first = self._until = max(head, floor)
            self._positions, self._values = [], []
            while not self._values and self._first > floor:
                self._read_older(index)
        while self._until < head:
            until = min(head, (self._until // index.segment_rows + 1) * index.segment_rows)
            positions, values = self._read(index, self._until, until)
            if values:
                kept = bisect_left(self._values, values[0])
                self._positions[kept:], self._values[kept:] = positions, values
            self._until = until

    def count_from(self, index: Index, limit: float) -> int:
        """Count the steps after the last one whose value is below a limit."""
        begin = floor = int(index.table[self._stream, FLOOR])
        below = bisect_left(self._values, limit)
        while not below and self._first > floor:
            self._read_older(index)
            below = bisect_left(self._values, limit)
        if below:
            self._first = self._positions[below - 1]  # older ones are read again, if the limit falls
            del self._positions[: below - 1], self._values[: below - 1]
            begin = max(floor, self._first + 1)
        return index.added_to(self._stream) - index.steps_before(self._stream, begin) if self._values else 0

    def _read_older(self, index: Index) -> None:
        """Read the rows of a segment, or of what is left of it, before those that were read."""
        floor = int(index.table[self._stream, FLOOR])
        first = max(floor, (self._first - 1) // index.segment_rows * index.segment_rows)
        positions, values = self._read(index, first, self._first)
        kept = bisect_left(values, self._values[0]) if self._values else len(values)
        self._positions[:0], self._values[:0] = positions[:kept], values[:kept]
        self._first = first

    def _read(self, index: Index, first: int, until: int) -> tuple[list[int], list[float]]:
        """Return those of a segment's rows after which none of them, being a step, is as small, and their values."""
        segment, low = first // index.segment_rows, int(index.table[self._stream, LOW]) // index.segment_rows
        slot, offset = int(index.slots(self._stream)[segment - low]), first - segment * index.segment_rows
        values, positions = self._column.values(slot)[offset : offset + until - first], np.arange(first, until)
        starts = index.starts(self._stream)
        begun = starts[starts.searchsorted(first, "right") : starts.searchsorted(until, "right")]
        if len(begun):  # after an episode's last row, which is no step
            is_step = np.ones(until - first, np.bool_)
            is_step[begun - 1 - first] = False
            positions, values = positions[is_step], values[is_step]
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), -math.inf, values)
        if len(values) > 1:
            low_ones = np.append(values[:-1] < np.minimum.accumulate(values[:0:-1])[::-1], True)
            positions, values = positions[low_ones], values[low_ones]
        return positions.tolist(), values.tolist()
