"""The episodes of a store as a table: columns of one length, to filter, sort and show."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.endings import RUNNING
from diskbuffer.errors import InputError
from diskbuffer.index.streams import Streams
from diskbuffer.reading.episode_columns import list_episodes, sum_rewards
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.store import Store

Int64 = npt.NDArray[np.int64]
_NAMES = {"returns": "return"}  # of columns that Python has another use for


@dataclass(frozen=True)
class EpisodeTable:
    """Episodes of which a step can be sampled, stream after stream, as `ReplayBuffer.episodes` has them.

    Attributes
    ----------
    episode : (n,) int64
        Their numbers: ``buffer.episodes[number]``, and ``buffer.episode(number)``.
    stream : (n,) int64
    start : (n,) int64
        The first step that can be sampled, as in a batch's ``steps``: ``position * streams + stream``.
    length : (n,) int64
        Steps that can be sampled.
    returns : (n,) float64
        Sums of their rewards; where a reward is several numbers, of all of these. The column "return" of rows.
    ending : (n,) str
        "terminated", "truncated", "cut off" or "running".
    tag : (n,) str
        "" for none.
    age : (n,) int64
        How many steps of its stream came after the episode's last.
    whole : (n,) bool
        Whether its first step is still there: eviction has not taken it.
    """

    episode: Int64
    stream: Int64
    start: Int64
    length: Int64
    returns: npt.NDArray[np.float64]
    ending: npt.NDArray[np.str_]
    tag: npt.NDArray[np.str_]
    age: Int64
    whole: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.episode)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the columns: "return", where the attribute is `returns`."""
        return tuple(_NAMES.get(column.name, column.name) for column in fields(cls))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column by its name; an InputError where there is none of it."""
        if name not in self.names():
            raise InputError(f"episodes have no {name!r}; they have {', '.join(self.names())}")
        found: npt.NDArray[Any] = getattr(self, next((own for own, shown in _NAMES.items() if shown == name), name))
        return found

    def select(self, which: Any) -> EpisodeTable:
        """Return some of the episodes, by a mask, numbers of rows or a slice; they keep their numbers."""
        return EpisodeTable(*(self.column(name)[which] for name in self.names()))

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the episodes as dicts of what JSON holds, but for returns that are NaN or infinite."""
        names = self.names()
        lists = [self.column(name).tolist() for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def build(store: Store, index: Streams) -> EpisodeTable:
    """Read the episodes of an index of a store, whose lock must be held. Reads all rewards; some 10 ns a step."""
    found = list_episodes(store, index)
    streams, n = store.layout.streams, len(found.start)
    after, whole = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    for stream in range(streams):
        mine = np.flatnonzero(found.stream == stream)
        lengths = found.length[mine]
        after[mine] = lengths.sum() - np.cumsum(lengths)
        starts, firsts = index.starts(stream), found.start[mine] // streams  # ascending, both
        whole[mine] = np.append(starts, -1)[np.searchsorted(starts, firsts)] == firsts
    sums = sum_rewards(store, index, found)
    returns = sums.reshape(len(sums), -1).sum(axis=1) if sums.ndim > 1 else sums
    return EpisodeTable(np.arange(n), found.stream, found.start, found.length, returns, found.ending, found.tag, after, whole)


def order(table: EpisodeTable, by: str, reverse: bool = False) -> Int64:
    """Return the rows of a table sorted by a column, (n,) int64; NaN last, equal ones in the order of their numbers."""
    values = table.column(by)
    if values.dtype.kind == "U":
        values = np.unique(values, return_inverse=True)[1]
    keys = values.astype(np.float64) if values.dtype.kind == "f" else values.astype(np.int64)
    found: Int64 = np.argsort(-keys if reverse else keys, kind="stable")
    return found


def newest(table: EpisodeTable) -> int:
    """Return the row of the newest episode that is over; of the newest of all where none is."""
    over = np.flatnonzero(table.ending != RUNNING)
    rows = over if len(over) else np.arange(len(table))
    return int(rows[np.lexsort((table.start[rows], -table.age[rows]))[-1]])


def when_they_ended(table: EpisodeTable, layout: Layout) -> Int64:
    """Return when each episode ended, or how far it has come: in steps of all environments together, about; (n,) int64."""
    found: Int64 = (table.start // layout.streams + table.length) * layout.n_envs
    return found
