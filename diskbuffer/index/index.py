"""Looking up where steps lie, among all that can be sampled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.index.streams import Streams
from diskbuffer.native import lookup

Int64 = npt.NDArray[np.int64]


class Index(Streams):
    """Know where every step lies: the streams, and looking steps and episodes up in them, natively."""

    def __len__(self) -> int:
        return lookup.count_steps(self.table)

    def locate(self, ordinals: Int64) -> Int64:
        """Find steps by their place among all that can be sampled now, stream after stream.

        Returns (4, n): streams, positions, and the positions of the first and the last row of their episodes; of one that runs,
        the newest is the last. O(log episodes) each.
        """
        located = np.empty((4, len(ordinals)), np.int64)
        lookup.locate(self.table, _int64s(ordinals), located)
        return located

    def recent(self, streams: Int64, ages: Int64) -> tuple[Int64, int]:
        """Find steps by how many steps of their stream came after them, as `locate` does.

        Returns what was found, and the place of the first that there is not; -1, if all are there.
        """
        located = np.empty((4, len(ages)), np.int64)
        return located, lookup.locate_recent(self.table, _int64s(streams), _int64s(ages), located)

    def locate_episodes(self, ordinals: Int64) -> Int64:
        """Find episodes by their place among all, stream after stream.

        Returns (4, n): streams, and the positions of the first row to sample, of the first row ever, and of the last row.
        """
        located = np.empty((4, len(ordinals)), np.int64)
        lookup.locate_episodes(self.table, _int64s(ordinals), located)
        return located

    def episodes_of(self, streams: Int64, positions: Int64) -> tuple[Int64, Int64]:
        """Find the first and the last row of the episodes of steps; -1 where a step cannot be sampled.

        It was evicted, is not there yet, or is no step.
        """
        starts, lasts = np.empty((2, len(positions)), np.int64)
        lookup.find_episodes(self.table, _int64s(streams), _int64s(positions), starts, lasts)
        return starts, lasts

    def rows_of(self, streams: Int64, positions: Int64) -> Int64:
        """Find the rows in the store, ``slot * segment_rows + offset``, of positions that are there."""
        rows = np.empty(len(positions), np.int64)
        lookup.find_rows(self.table, _int64s(streams), _int64s(positions), self.segment_rows, rows)
        return rows

    def episodes_along(self, streams: Int64, positions: Int64, length: int) -> tuple[Int64, Int64]:
        """Find the first and the last row of the episode of each of `length` rows from steps on, (n, length).

        The last row is -1 where the episode runs.
        """
        firsts, lasts = np.empty((2, len(positions), length), np.int64)
        lookup.episodes_along(self.table, _int64s(streams), _int64s(positions), firsts, lasts)
        return firsts, lasts


def _int64s(array: Int64) -> Int64:
    """Return an array in the form that native code takes; parts of others may not be contiguous."""
    return np.ascontiguousarray(array, np.int64)
