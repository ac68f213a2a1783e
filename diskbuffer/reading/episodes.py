"""The episodes that a buffer holds, as columns: to look at, to filter, and to sample from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.index.fields import ENDED, FLOOR, HEAD, LOW
from diskbuffer.index.streams import Streams
from diskbuffer.schema import TAG, Column
from diskbuffer.store.store import Store
from diskbuffer.wording import counted

Int64 = npt.NDArray[np.int64]
RUNNING, TERMINATED, TRUNCATED, CUT_OFF = "running", "terminated", "truncated", "cut off"
TAG_COLUMN = Column((), "uint16")  # of tags: numbers of names, from 1 on


class Episode(NamedTuple):
    """One episode: its stream, the step it starts with, how many steps are there, how it ended, and its tag."""

    stream: int
    start: int
    length: int
    ending: str
    tag: str


@dataclass(frozen=True)
class Episodes:
    """Episodes of which a step can be sampled, stream after stream, as columns of equal length.

    Index it as an array: ``episodes[3]`` is one, ``episodes[episodes.length > 100]`` are some, which samplers take as
    ``episodes=``.

    Attributes
    ----------
    stream : (n,) int64
    start : (n,) int64
        The first step that can be sampled, as in a batch's ``steps``. Eviction may have taken earlier ones.
    length : (n,) int64
        Steps that can be sampled.
    ending : (n,) str
        "terminated", "truncated" (both, then "terminated"), "cut off", or "running".
    tag : (n,) str
        As `ReplayBuffer.tag` gave it, else "".
    """

    stream: Int64
    start: Int64
    length: Int64
    ending: npt.NDArray[np.str_]
    tag: npt.NDArray[np.str_]
    _sum_rewards: Callable[[Episodes], npt.NDArray[np.float64]] = field(repr=False, compare=False)

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """Sums of the rewards that are there, (n, ...) float64, NaN where an episode was evicted since. Reads all of them."""
        return self._sum_rewards(self)

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[Episode]:
        return (self[n] for n in range(len(self)))

    @overload
    def __getitem__(self, which: int | np.integer[Any]) -> Episode: ...

    @overload
    def __getitem__(self, which: slice | npt.NDArray[Any] | list[Any]) -> Episodes: ...

    def __getitem__(self, which: Any) -> Episode | Episodes:
        columns = (self.stream, self.start, self.length, self.ending, self.tag)
        try:
            n = operator.index(which)
        except TypeError:
            try:
                stream, start, length, ending, tag = (column[which] for column in columns)
                return Episodes(stream, start, length, ending, tag, self._sum_rewards)
            except (IndexError, TypeError) as error:
                raise InputError(f"episodes are selected by a number, a slice or a mask: {error}") from error
        return Episode(*(column[n].item() for column in columns))


def pick_episode(episodes: Episodes, number: Any) -> Episode:
    """Return the episode of a number, negative ones from the end; an InputError where there is none."""
    try:
        at = operator.index(number)
    except TypeError:
        raise InputError(f"expected an episode's number, or one of buffer.episodes, found {number!r}") from None
    if not -len(episodes) <= at < len(episodes):
        raise InputError(f"there is no episode {at}: the buffer has {counted(len(episodes), 'episode')}, numbered from 0 on")
    return episodes[at]


def list_episodes(store: Store, index: Streams, sum_rewards: Callable[[Episodes], npt.NDArray[np.float64]]) -> Episodes:
    """Read the episodes of an index; the store's lock must be held. O(episodes)."""
    streams = store.layout.streams
    names = np.array(["", *store.layout.tags])
    columns: list[list[Any]] = [[], [], [], [], []]
    for stream in range(streams):
        head = int(index.table[stream, HEAD])
        starts = np.maximum(index.starts(stream), index.table[stream, FLOOR])
        ends = np.append(starts[1:] - 1, head) if len(starts) else starts
        some = ends > starts
        starts, ends = starts[some], ends[some]
        tagged = TAG in store.layout.derived and store.layout.schema[TAG] == TAG_COLUMN
        store.maps.ensure(index.slots(stream).tolist(), ("terminated", "truncated", *((TAG,) if tagged else ())))  # all at once
        ending = np.full(len(ends), CUT_OFF, f"U{len(TERMINATED)}")
        ending[_at(store, index, stream, ends - 1, "truncated")] = TRUNCATED
        ending[_at(store, index, stream, ends - 1, "terminated")] = TERMINATED
        if len(ends) and ends[-1] == head and not index.table[stream, ENDED]:
            ending[-1] = RUNNING
        tags = np.zeros(len(starts), np.int64)
        if tagged:
            tags = _at(store, index, stream, starts, TAG).astype(np.int64)
            tags[tags >= len(names)] = 0  # a writer elsewhere has named it since
        found = (np.full(len(ends), stream), starts * streams + stream, ends - starts, ending, names[tags])
        for column, values in zip(columns, found, strict=True):
            column.append(values)
    stream_, start, length, ending_, tag = (np.concatenate(column) for column in columns)
    return Episodes(stream_, start, length, ending_, tag, sum_rewards)


def sum_rewards(store: Store, index: Streams, episodes: Episodes) -> npt.NDArray[np.float64]:
    """Sum up the rewards of episodes; the store's lock must be held."""
    path = next(path for path in store.layout.schema.step if path.split("/")[0] == "reward")
    rows, streams = index.segment_rows, store.layout.streams
    sums = np.zeros((len(episodes), *store.layout.schema[path].shape))
    firsts = episodes.start // streams
    there = (firsts >= index.table[episodes.stream, FLOOR]) & (firsts < index.table[episodes.stream, HEAD])
    sums[~there] = np.nan
    for stream in range(streams):
        mine = np.flatnonzero((episodes.stream == stream) & there)
        mine = mine[np.argsort(firsts[mine], kind="stable")]
        begins, ends = firsts[mine], firsts[mine] + episodes.length[mine]
        low = int(index.table[stream, LOW])
        if len(mine):
            store.maps.ensure(index.slots(stream)[(begins[0] - low) // rows : (ends[-1] - 1 - low) // rows + 1].tolist(), (path,))
        for ordinal in range(int(begins[0]) // rows, int(ends[-1] - 1) // rows + 1) if len(mine) else ():
            first = ordinal * rows
            here = slice(int(np.searchsorted(ends, first, side="right")), int(np.searchsorted(begins, first + rows)))
            if here.start >= here.stop:
                continue
            with np.errstate(invalid="ignore"):  # rows after the newest, which are not summed, may be anything
                values = store.values(path, int(index.slots(stream)[ordinal - low // rows])).astype(np.float64)
            total = np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0)])
            low_, high = np.maximum(begins[here], first) - first, np.minimum(ends[here], first + rows) - first
            sums[mine[here]] += total[high] - total[low_]
    return sums


def _at(store: Store, index: Streams, stream: int, positions: Int64, name: str) -> npt.NDArray[Any]:
    """Read a flat column at positions of a stream, in ascending order."""
    rows, first = index.segment_rows, int(index.table[stream, LOW]) // index.segment_rows
    found = np.zeros(len(positions), store.layout.schema[name].np_dtype)
    segments = positions // rows
    for segment in range(segments[0], segments[-1] + 1) if len(positions) else ():
        here = slice(*np.searchsorted(segments, (segment, segment + 1)).tolist())
        if here.start == here.stop:
            continue
        values = store.values(name, int(index.slots(stream)[segment - first]))
        found[here] = values[positions[here] % rows]
    return found
