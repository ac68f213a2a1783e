"""Which episodes a store holds, and the sums of their rewards: read from two flags of each, and from the rewards."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.endings import CUT_OFF, RUNNING, TERMINATED, TRUNCATED
from diskbuffer.errors import InputError
from diskbuffer.index.fields import FLOOR, HEAD
from diskbuffer.index.index import Index
from diskbuffer.integers import integer
from diskbuffer.reading.readable import Readable, file_values
from diskbuffer.schema import TAG, Column
from diskbuffer.wording import counted

Int64 = npt.NDArray[np.int64]
TAG_COLUMN = Column((), "uint16")  # of tags: numbers of names, from 1 on
_AT_ONCE = 2**18  # rows of which rewards are summed up


class EpisodeFields(NamedTuple):
    """What is known of one episode; see `EpisodeColumns`."""

    stream: int
    start: int
    length: int
    ending: str
    tag: str
    id: int


@dataclass(frozen=True)
class EpisodeColumns:
    """Episodes, stream after stream, as columns of equal length, (n,).

    `start` is the id of the first step that can be sampled, `length` the number of those steps, `ending` one of the four above,
    `id` the id of the step that the episode began with, evicted or not.
    """

    stream: Int64
    start: Int64
    length: Int64
    ending: npt.NDArray[np.str_]
    tag: npt.NDArray[np.str_]
    id: Int64

    def __len__(self) -> int:
        return len(self.stream)

    def one(self, number: int) -> EpisodeFields:
        """Return one of them, by its row."""
        return EpisodeFields(*(column[number].item() for column in self._columns))

    def some(self, which: Any) -> EpisodeColumns:
        """Return some of them, by a slice, a mask or numbers."""
        return EpisodeColumns(*(column[which] for column in self._columns))

    @property
    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return tuple(getattr(self, column.name) for column in fields(EpisodeColumns))


def row_of(ids: Int64, episode: Any) -> int:
    """Return the row of an episode by its id; an InputError where there is none."""
    rows = np.flatnonzero(ids == integer("an episode's id", episode, 0))
    if not len(rows):
        examples = f", such as {', '.join(map(str, ids[:3].tolist()))}" if len(ids) else ""
        raise InputError(
            f"there is no episode {episode}, or not any more. An episode's id is the id of the step that it began with; "
            f"{counted(len(ids), 'episode')} can be found{examples}"
        )
    return int(rows[0])


def list_episodes(store: Readable, index: Index) -> EpisodeColumns:
    """Read the episodes of an index; the store's lock must be held. O(episodes)."""
    streams, (stream, starts, began, ends) = store.layout.streams, index.sampled_episodes()
    tagged = TAG in store.layout.derived and store.layout.schema[TAG] == TAG_COLUMN
    lasts, firsts = index.rows_of(stream, ends - 1), index.rows_of(stream, starts)
    segments = np.unique(np.concatenate([lasts, firsts]) // index.segment_rows)
    store.map_segments(segments, ("terminated", "truncated", *((TAG,) if tagged else ())))  # all at once
    ending = np.full(len(ends), CUT_OFF, f"U{len(TERMINATED)}")
    ending[_values(store, lasts, "truncated")] = TRUNCATED
    ending[_values(store, lasts, "terminated")] = TERMINATED
    ending[index.is_running(stream, ends)] = RUNNING
    names, tags = np.array(["", *store.layout.tags]), np.zeros(len(starts), np.int64)
    if tagged:
        tags = _values(store, firsts, TAG).astype(np.int64)
        tags[tags >= len(names)] = 0  # a writer elsewhere has named it since
    return EpisodeColumns(stream, starts * streams + stream, ends - starts, ending, names[tags], began * streams + stream)


def when_they_ended(store: Readable, index: Index, episodes: EpisodeColumns) -> Int64:
    """Return how many steps of all environments had been added when each listed episode ended, or by now, about; (n,) int64.

    The order in which episodes ended, over all environments: their own positions cannot be compared where one is faster than
    another. A store notes that number once a segment of a stream becomes evictable. Between two such notes it is interpolated;
    before the first and after the last, and in the stores of several writers, environments count as equally fast. The store's
    lock must be held.
    """
    envs = store.layout.environments
    ends = episodes.start // store.layout.streams + episodes.length
    found: Int64 = ends * envs
    segments = _Segments.of(index, episodes)
    noted = store.completed(segments.numbers) * (envs if store.layout.capacity_each else 1)
    known = np.flatnonzero(noted)
    if not len(known):
        return found
    at, noted, streams = segments.ends[known] + index.context, noted[known], segments.streams[known]
    most = int(max(at.max(), ends.max())) + 1  # in one line, stream after stream, as positions of each are below this
    first, until = (np.searchsorted(streams, episodes.stream, side) for side in ("left", "right"))
    some = first < until
    first, until, end = first[some], until[some] - 1, ends[some]
    left = np.searchsorted(streams * most + at, episodes.stream[some] * most + end, side="right") - 1
    left = np.clip(left, first, until)
    right = np.minimum(left + 1, until)
    within = np.clip(end, at[first], at[until])
    slope = (noted[right] - noted[left]) / np.maximum(at[right] - at[left], 1)
    between = np.rint(slope * (within - at[left]) + noted[left]).astype(np.int64)
    found[some] = between + (end - within) * envs
    return found


def sum_rewards(store: Readable, index: Index, episodes: EpisodeColumns) -> npt.NDArray[np.float64]:
    """Sum up the rewards of episodes; the store's lock must be held."""
    path = next(path for path in store.layout.schema.step if path.split("/")[0] == "reward")
    streams, lanes = store.layout.streams, store.layout.lanes
    sums = np.zeros((len(episodes), *store.layout.schema[path].shape))
    firsts = episodes.start // streams
    there = (firsts >= index.table[episodes.stream, FLOOR]) & (firsts < index.table[episodes.stream, HEAD])
    sums[~there] = np.nan
    mine = np.flatnonzero(there)
    mine = mine[np.lexsort((firsts[mine], episodes.stream[mine]))]
    if not len(mine):
        return sums
    segments, begins, ends = _Segments.of(index, episodes), firsts[mine], firsts[mine] + episodes.length[mine]
    oldest, newest = segments.find(episodes.stream[mine], begins), segments.find(episodes.stream[mine], ends - 1)
    counts = newest - oldest + 1
    of = np.repeat(np.arange(len(mine)), counts)  # episodes, once for each segment that they have rows in
    at = np.arange(len(of)) + np.repeat(oldest - np.cumsum(counts) + counts, counts)
    first, number = segments.firsts[at], segments.numbers[at]
    offset = number % lanes * index.segment_rows - first
    bounds = np.stack([np.maximum(begins[of], first), np.minimum(ends[of], segments.ends[at])], axis=1) + offset[:, None]
    of, number, bounds = (values[bounds[:, 0] < bounds[:, 1]] for values in (of, number, bounds))
    store.map_segments(number, (path,))
    at_once = max(1, _AT_ONCE // index.segment_rows)  # lanes
    parts = number // lanes * lanes + number % lanes // at_once * at_once
    order = np.argsort(parts, kind="stable")
    parts, of, bounds = parts[order], of[order], bounds[order]
    edges = np.flatnonzero(np.diff(parts, prepend=-1, append=-1)).tolist()
    for begin, until in pairwise(edges):
        file, lane = divmod(int(parts[begin]), lanes)
        with np.errstate(invalid="ignore", over="ignore"):  # what lies between episodes may be anything
            values = file_values(store, path, file)[lane : lane + at_once].astype(np.float64)
            values = np.concatenate([values.reshape(-1, *values.shape[2:]), np.zeros((1, *values.shape[2:]))])
            pieces = bounds[begin:until] - lane * index.segment_rows
            np.add.at(sums, mine[of[begin:until]], np.add.reduceat(values, pieces.ravel(), axis=0)[::2])
    return sums


class _Segments(NamedTuple):
    """The segments of the streams that episodes are of, stream after stream, oldest first, (n,) each.

    Rows before `ends` are in them, or have room there.
    """

    streams: Int64
    firsts: Int64
    numbers: Int64
    ends: Int64

    @staticmethod
    def of(index: Index, episodes: EpisodeColumns) -> _Segments:
        """Return those that an index has."""
        streams = np.unique(episodes.stream)
        streams, firsts, numbers = index.segments_from(streams, np.zeros_like(streams))
        ends = firsts + index.segment_rows
        ends[:-1] = np.where(np.diff(streams) == 0, np.minimum(ends[:-1], firsts[1:]), ends[:-1])
        return _Segments(streams, firsts, numbers, ends)

    def find(self, streams: Int64, positions: Int64) -> Int64:
        """Return in which of them rows are, (m,)."""
        most = int(max(self.firsts.max(), positions.max())) + 1
        return np.searchsorted(self.streams * most + self.firsts, streams * most + positions, side="right") - 1


def _values(store: Readable, rows: Int64, name: str) -> npt.NDArray[Any]:
    """Read a flat column at rows of the store, file by file."""
    found = np.zeros(len(rows), store.layout.schema[name].np_dtype)
    files, offsets = np.divmod(rows, store.layout.segment_rows * store.layout.lanes)
    order = np.argsort(files, kind="stable")
    for here in np.split(order, np.flatnonzero(np.diff(files[order])) + 1) if len(rows) else ():
        found[here] = file_values(store, name, int(files[here[0]])).reshape(-1)[offsets[here]]
    return found
