"""The episodes that a buffer holds, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.index import ENDED, FLOOR, HEAD, LOW, Index
from diskbuffer.store.store import Store

RUNNING, TERMINATED, TRUNCATED, CUT_OFF = "running", "terminated", "truncated", "cut off"


class Episode(NamedTuple):
    """One episode: its stream, the step it starts with, how many steps are there, and how it ended."""

    stream: int
    start: int
    length: int
    ending: str


@dataclass(frozen=True)
class Episodes:
    """All episodes of which a step can be sampled, stream after stream, as columns of equal length.

    Attributes
    ----------
    stream : (n,) int64
    start : (n,) int64
        The first step that can be sampled, as in a batch's ``steps``. Eviction may have taken earlier ones.
    length : (n,) int64
        Steps that can be sampled.
    ending : (n,) str
        "terminated", "truncated" (both, then "terminated"), "cut off", or "running".
    """

    stream: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    ending: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, n: int) -> Episode:
        return Episode(int(self.stream[n]), int(self.start[n]), int(self.length[n]), str(self.ending[n]))


def list_episodes(store: Store, index: Index) -> Episodes:
    """Read the episodes of an index; the store's lock must be held. O(episodes)."""
    columns: list[list[npt.NDArray[np.generic]]] = [[], [], [], []]
    for stream in range(store.layout.streams):
        head = int(index.table[stream, HEAD])
        starts = np.maximum(index.starts(stream), index.table[stream, FLOOR])
        ends = np.append(starts[1:] - 1, head) if len(starts) else starts
        some = ends > starts
        starts, ends = starts[some], ends[some]
        flags = {name: _at(store, index, stream, ends - 1, name) for name in ("terminated", "truncated")}
        ending = np.full(len(ends), CUT_OFF, f"U{len(TERMINATED)}")
        ending[flags["truncated"]], ending[flags["terminated"]] = TRUNCATED, TERMINATED
        if len(ends) and ends[-1] == head and not index.table[stream, ENDED]:
            ending[-1] = RUNNING
        streams = store.layout.streams
        for column, values in zip(
            columns, (np.full(len(ends), stream), starts * streams + stream, ends - starts, ending), strict=True
        ):
            column.append(values)
    stream_, start, length, ending_ = (np.concatenate(column) for column in columns)
    return Episodes(stream_, start, length, ending_)


def _at(store: Store, index: Index, stream: int, positions: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.bool_]:
    """Read a flag at positions of a stream, in ascending order."""
    rows, first = index.segment_rows, int(index.table[stream, LOW]) // index.segment_rows
    found = np.zeros(len(positions), np.bool_)
    for segment in np.unique(positions // rows):
        here = positions // rows == segment
        slot = int(index.slots(stream)[segment - first])
        store.maps.ensure([slot])
        values = store.maps.get(name, slot).array(np.bool_, (rows,))
        found[here] = values[positions[here] % rows]
    return found
