"""Which episodes a store holds, and the sums of their rewards: read from two flags of each, and from the rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.integers import integer
from diskbuffer.arguments.wording import counted
from diskbuffer.errors import InputError
from diskbuffer.index.fields import ENDED, FLOOR, HEAD, LOW, STORE
from diskbuffer.index.streams import Streams
from diskbuffer.reading.readable import Readable
from diskbuffer.schema.endings import CUT_OFF, RUNNING, TERMINATED, TRUNCATED
from diskbuffer.schema.schema import CHECKSUM, TAG, Column
from diskbuffer.store.format.checksums import TIME

Int64 = npt.NDArray[np.int64]
TAG_COLUMN = Column((), "uint16")  # of tags: numbers of names, from 1 on


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

    def rows_of(self, steps: Int64, streams: int) -> Int64:
        """Return the rows of the episodes that steps lie in, by their ids, each once; an InputError where a step is in none."""
        apart = int(max(self.start.max(initial=0), steps.max(initial=0))) // streams + 1  # of two streams, in what is compared
        places = self.stream * apart + self.start // streams
        rows = np.searchsorted(places, steps % streams * apart + steps // streams, side="right") - 1
        inside = rows >= 0
        of = rows[inside]
        inside[inside] = (self.stream[of] == steps[inside] % streams) & (
            steps[inside] < self.start[of] + self.length[of] * streams
        )
        if not inside.all():
            raise InputError(f"step {steps[~inside][0]} is in no episode that is there: it was evicted, or was never added")
        return np.unique(rows)

    @property
    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return tuple(getattr(self, name) for name in EpisodeFields._fields)


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


def list_episodes(store: Readable, index: Streams, refresh: Callable[[], object]) -> EpisodeColumns:
    """Read the episodes of an index; the store's lock must be held. O(episodes).

    Where a writer elsewhere has named tags since, `refresh` is called to see them.
    """
    streams = store.layout.streams
    names = np.array(["", *store.layout.tags])
    columns: list[list[Any]] = [[] for _ in EpisodeFields._fields]
    for stream in np.flatnonzero(index.table[:, HEAD] >= 0).tolist():
        head = int(index.table[stream, HEAD])
        began = index.starts(stream)
        starts = np.maximum(began, index.table[stream, FLOOR])
        ends = np.append(starts[1:] - 1, head) if len(starts) else starts
        some = ends > starts
        began, starts, ends = began[some], starts[some], ends[some]
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
            if tags.max(initial=0) >= len(names):
                refresh()
                names = np.array(["", *store.layout.tags])
                tags[tags >= len(names)] = 0  # damaged
        ids, firsts = (positions * streams + stream for positions in (began, starts))
        fields = (np.full(len(ends), stream), firsts, ends - starts, ending, names[tags], ids)
        for column, values in zip(columns, fields, strict=True):
            column.append(values)
    if not columns[0]:
        none, nothing = np.empty(0, np.int64), np.empty(0, np.str_)
        return EpisodeColumns(none, none, none, nothing, nothing, none)
    return EpisodeColumns(*(np.concatenate(column) for column in columns))


def when_they_ended(store: Readable, index: Streams, episodes: EpisodeColumns) -> Int64:
    """Return how many steps of all environments had been added when each listed episode ended, or by now, about; (n,) int64.

    The order in which episodes ended, over all environments: their own positions cannot be compared where one is faster than
    another. With each step lies the round in which it was added; those of an episode count as evenly spread from its first round
    to its last. In the stores of several writers, which count rounds each for itself, environments count as equally fast. The
    store's lock must be held.
    """
    firsts = episodes.start // store.layout.streams
    if len(np.unique(index.table[episodes.stream, STORE])) != 1:
        return np.asarray((firsts + episodes.length) * store.layout.n_envs)
    begun, ended = np.empty((2, len(episodes)), np.int64)
    streams, at = np.unique(episodes.stream, return_index=True)
    for stream, some in zip(streams.tolist(), np.split(np.arange(len(episodes)), at[1:]), strict=True):
        store.maps.ensure(index.slots(stream).tolist(), (CHECKSUM,))
        steps = np.stack([firsts[some], firsts[some] + episodes.length[some] - 1], axis=1)
        rounds = _at(store, index, stream, steps.ravel(), CHECKSUM)[:, TIME].reshape(-1, 2)
        begun[some], ended[some] = rounds.T
    newest = ended[-1]
    begun, ended = ((times - newest).astype(np.int32).astype(np.int64) for times in (begun - 1, ended))  # they are counted anew
    rates = episodes.length / np.maximum(ended - begun, 1)
    changes = np.concatenate([begun, ended])
    order = np.argsort(changes, kind="stable")
    changes, rate = changes[order], np.cumsum(np.concatenate([rates, -rates])[order])
    added = np.concatenate([[0], np.cumsum(rate[:-1] * np.diff(changes))])
    before = index.added() - int(episodes.length.sum())
    return np.asarray(before + np.rint(np.interp(ended, changes, added)), np.int64)


def sum_rewards(store: Readable, index: Streams, episodes: EpisodeColumns) -> npt.NDArray[np.float64]:
    """Sum up the rewards of episodes; the store's lock must be held."""
    path = next(path for path in store.layout.schema.step if path.split("/")[0] == "reward")
    rows, streams = index.segment_rows, store.layout.streams
    sums = np.zeros((len(episodes), *store.layout.schema[path].shape))
    firsts = episodes.start // streams
    available = (firsts >= index.table[episodes.stream, FLOOR]) & (firsts < index.table[episodes.stream, HEAD])
    sums[~available] = np.nan
    for stream in np.unique(episodes.stream).tolist():
        mine = np.flatnonzero((episodes.stream == stream) & available)
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
            bounds = np.stack([np.maximum(begins[here], first), np.minimum(ends[here], first + rows)], axis=1) - first
            with np.errstate(invalid="ignore", over="ignore"):  # what lies between episodes may be anything
                values = store.values(path, index.slot(stream, first)).astype(np.float64)
                values = np.concatenate([values, np.zeros((1, *values.shape[1:]))])
                sums[mine[here]] += np.add.reduceat(values, bounds.ravel(), axis=0)[::2]
    return sums


def _at(store: Readable, index: Streams, stream: int, positions: Int64, name: str) -> npt.NDArray[Any]:
    """Read a flat column at positions of a stream, in ascending order."""
    if not len(positions):
        return np.zeros(0, store.layout.schema[name].np_dtype)
    return index.values_at(stream, positions, partial(store.values, name))
