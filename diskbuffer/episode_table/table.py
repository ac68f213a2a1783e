"""The episodes of a store as a table: columns of one length, to filter, sort and show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.episode_table.conditions import parse
from diskbuffer.errors import InputError
from diskbuffer.index.named_values import Named, Value
from diskbuffer.index.streams import Streams
from diskbuffer.reading.episode_columns import list_episodes, row_of, sum_rewards, when_they_ended
from diskbuffer.schema.endings import RUNNING, TERMINATED, TRUNCATED
from diskbuffer.store.store import Store

Int64 = npt.NDArray[np.int64]
_NAMES = {"returns": "return"}  # of columns that Python has another use for


@dataclass(frozen=True)
class EpisodeTable:
    """Episodes of which a step can be sampled, stream after stream, as `ReplayBuffer.episodes` has them.

    Attributes
    ----------
    episode : (n,) int64
        Their ids: each that of the step it began with, evicted or not, as ``buffer.episodes.id`` has them. They never change.
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
    ended : (n,) int64
        How many steps of all environments had been added when it ended, or by now where it runs, about; see
        `diskbuffer.reading.episode_columns.when_they_ended`. This is the order of time.
    values : mapping of str to Named
        What they were given by `Episodes.set_values`, by name; each is a column, too.
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
    ended: Int64
    values: Mapping[str, Named] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.episode)

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns: "return", where the attribute is `returns`."""
        return (*(_NAMES.get(name, name) for name in _OWN), *self.values)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column by its name; an InputError where there is none of it. What was not given is False, NaN or ""."""
        if name in self.values:
            return self.values[name].shown
        if name not in self.names():
            raise InputError(f"episodes have no {name!r}; they have {', '.join(self.names())}")
        values: npt.NDArray[Any] = getattr(self, next((own for own, shown in _NAMES.items() if shown == name), name))
        return values

    def select(self, which: Any) -> EpisodeTable:
        """Return some of the episodes, which keep their ids.

        Parameters
        ----------
        which : str, mask, numbers of rows, or slice
            A condition is text: "return > 10 and ending == 'terminated'"; see `diskbuffer.episode_table.conditions`.

        Raises
        ------
        InputError
            It is no condition that can be understood.
        """
        rows = self.where(which) if isinstance(which, str) else which
        values = {name: value.some(rows) for name, value in self.values.items()}
        return replace(self, **{name: getattr(self, name)[rows] for name in _OWN}, values=values)

    def where(self, condition: str) -> npt.NDArray[np.bool_]:
        """Return for which episodes a condition holds, (n,): what `select` takes as text."""
        return parse(condition, {name: value.kind for name, value in self.values.items()}).select(self)

    def given(self, name: str) -> Named:
        """Return the values of a name, exact, and which episodes were given one."""
        return self.values[name]

    def argsort(self, by: str = "ended", *, reverse: bool = False) -> Int64:
        """Return the rows in the order of a column, (n,); NaN last, equal ones by their ids, reversed as well.

        By "ended", the default, the episodes that ended first come first.
        """
        values = self.column(by)
        if values.dtype.kind in "UT":
            values = np.unique(values, return_inverse=True)[1]
        keys = values.astype(np.float64) if values.dtype.kind == "f" else values.astype(np.int64)
        order: Int64 = np.lexsort((-self.episode, -keys) if reverse else (self.episode, keys))
        return order

    def sort(self, by: str = "ended", *, reverse: bool = False) -> EpisodeTable:
        """Return the episodes in the order of a column; see `argsort`."""
        return self.select(self.argsort(by, reverse=reverse))

    def newest(self) -> int:
        """Return the row of the newest episode that is over; of the newest of all where none is."""
        rows = self.argsort()
        over = rows[self.ending[rows] != RUNNING]
        return int(over[-1] if len(over) else rows[-1])

    def finished(self) -> npt.NDArray[np.bool_]:
        """Return which episodes tell how good and how long one is, (n,): whole ones that terminated or were truncated.

        One that is cut off mostly is what a kill left; where all are, as nobody gave flags, those count that are over.
        """
        ended = np.isin(self.ending, (TERMINATED, TRUNCATED))
        return self.whole & (ended if ended.any() else self.ending != RUNNING)

    def find(self, episode: int) -> int:
        """Return the row of an episode by its id; an InputError where there is none."""
        return row_of(self.episode, episode)

    def values_of(self, row: int) -> dict[str, Value]:
        """Return the values of one episode by name."""
        return {name: value.one(row) for name, value in self.values.items() if value.given[row]}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the episodes as dicts of what JSON holds, but for numbers that are NaN or infinite; None was not given."""
        names = self.names()
        lists = [self.column(name).tolist() for name in names]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
        for name, value in self.values.items():
            for at in np.flatnonzero(~value.given).tolist():
                rows[at][name] = None
        return rows


_OWN = tuple(each.name for each in fields(EpisodeTable) if each.name != "values")


def build(store: Store, index: Streams, refresh: Callable[[], object]) -> EpisodeTable:
    """Read the episodes of an index, as `list_episodes` does, and all rewards; some 10 ns a step."""
    episodes = list_episodes(store, index, refresh)
    steps = np.cumsum(episodes.length)
    age = steps[np.searchsorted(episodes.stream, episodes.stream, side="right") - 1] - steps  # they come stream after stream
    sums = sum_rewards(store, index, episodes)
    returns = sums.sum(axis=tuple(range(1, sums.ndim)))
    ended, whole = when_they_ended(store, index, episodes), episodes.start == episodes.id
    known = episodes.id, episodes.stream, episodes.start, episodes.length, returns, episodes.ending, episodes.tag
    return EpisodeTable(*known, age, whole, ended, store.values_of_episodes(episodes.id))
