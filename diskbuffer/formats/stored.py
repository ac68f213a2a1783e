"""A store as a source of episodes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.buffer import ReplayBuffer
from diskbuffer.episodes import Episode
from diskbuffer.errors import CorruptionError, InputError
from diskbuffer.formats.data import Contents, EpisodeData
from diskbuffer.inspect.episodes import EpisodeTable
from diskbuffer.inspect.view import StoreView
from diskbuffer.inspect.where import parse
from diskbuffer.schema import KEPT, TAG, Column, is_obs


class StoreSource:
    """Read the episodes of a store, in the order of their first steps: those that are there now.

    Parameters
    ----------
    path : path-like
        A writer may go on writing to it. An episode that it evicts before its turn is an InputError.
    where : str, optional
        Which episodes, as ``diskbuffer episodes --where`` takes it.
    columns : collection of str, optional
        These alone, and the flags. All by default, but for those that the buffer writes for itself.

    Raises
    ------
    CorruptionError
        The store is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], where: str | None = None, columns: Collection[str] | None = None) -> None:
        view = StoreView(path)
        if view.damage is not None:
            raise CorruptionError(view.damage)
        self._table = _in_order(view.episodes(), where, view.layout.streams)
        self._buffer = ReplayBuffer(path, mode="r")
        known = {name: column for name, column in self._buffer.columns.items() if name not in (*KEPT, TAG)}
        for name in columns or ():
            if name not in known:
                raise InputError(f"there is no column {name!r}; there are {', '.join(known)}")
        flags = ("terminated", "truncated")
        self._columns = {name: known[name] for name in known if columns is None or name in (*columns, *flags)}
        self.losses: Mapping[str, str] = {}

    @property
    def contents(self) -> Contents:
        """What the store holds."""
        buffer, table = self._buffer, self._table
        layout = buffer._store.layout
        return Contents(
            self._columns,
            len(table),
            int(table.length.sum()),
            environment=buffer.environment,
            metadata=buffer.metadata,
            derived=buffer.derived & self._columns.keys(),
            n_envs=buffer.n_envs,
            protected=layout.protected and bool((table.stream == buffer.n_envs).any()),
            frame_stack=layout.frame_stack,
            padding=layout.padding,
            tags=bool((table.tag != "").any()),
        )

    @property
    def table(self) -> EpisodeTable:
        """The episodes, in the order in which they are read."""
        return self._table

    @property
    def identity(self) -> list[Any]:
        """What is the same as long as the same episodes are read from the same store; as JSON."""
        table = self._table
        numbers = np.stack([table.stream, table.start, table.length], axis=1)
        return [self._buffer._store.layout.salt, numbers.tolist(), sorted(self._columns)]

    def episodes(self, first: int = 0) -> Iterator[EpisodeData]:
        """Yield the episodes."""
        read = self._buffer.episodes._source.episode
        table = self._table
        for row in range(first, len(table)):
            length, stream = int(table.length[row]), int(table.stream[row])
            episode = Episode(stream, int(table.start[row]), length, str(table.ending[row]), str(table.tag[row]))
            columns = {name: _Rows(read, name, column, episode) for name, column in self._columns.items()}
            protected = stream == self._buffer.n_envs
            yield EpisodeData(columns, length, episode.tag, 0 if protected else stream, protected)

    def close(self) -> None:
        """Close the store."""
        self._buffer.close()


class _Rows:
    """A column of an episode of a store, decoded when it is sliced."""

    def __init__(self, read: Any, path: str, column: Column, episode: Episode) -> None:
        self._read, self._path, self._episode = read, path, episode
        self.shape = (episode.length + is_obs(path), *column.shape)
        self.dtype = column.np_dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        wanted = np.arange(*rows.indices(self.shape[0]), dtype=np.int64)
        if not len(wanted):
            return np.zeros((0, *self.shape[1:]), self.dtype)
        found: npt.NDArray[Any] = self._read(self._path, self._episode, wanted)
        return found


def _in_order(table: EpisodeTable, where: str | None, streams: int) -> EpisodeTable:
    some = table if where is None else table.select(parse(where).select(table))
    return some.select(np.lexsort((some.stream, some.start // streams)))
