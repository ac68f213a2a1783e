"""A store as a source of episodes."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.buffer import ReplayBuffer
from diskbuffer.endings import RUNNING
from diskbuffer.episodes import Episode
from diskbuffer.errors import InputError
from diskbuffer.formats.data import Contents, EpisodeData
from diskbuffer.inspect.episodes import EpisodeTable, build
from diskbuffer.inspect.where import parse
from diskbuffer.reading.reader import until_found
from diskbuffer.schema import KEPT, TAG, Column, is_obs
from diskbuffer.store.format.layout import Layout

_ALWAYS = ("terminated", "truncated")  # which a store has in any case


class StoreSource:
    """Read the episodes of a store, in the order of their first steps: those that are there now.

    Parameters
    ----------
    path : path-like
        A writer may go on writing to it. An episode that it evicts before its turn is an InputError.
    where : str, optional
        Which episodes, as ``diskbuffer episodes --where`` takes it.
    columns : collection of str, optional
        These alone, and the flags; "obs" is all columns whose paths begin with "obs/", too. All by default, but for those that
        the buffer writes for itself.
    choose : callable, optional
        Is given the table of those episodes, and returns the table of those that are wanted. An episode of which it makes the
        start a later one begins there.
    frame_stack : int, optional
        Frames in an observation, where these are not as many as the store says.

    Raises
    ------
    CorruptionError
        The store is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        where: str | None = None,
        columns: Collection[str] | None = None,
        *,
        choose: Callable[[EpisodeTable], EpisodeTable] | None = None,
        frame_stack: int | None = None,
    ) -> None:
        condition = None if where is None else parse(where)
        self._buffer = ReplayBuffer(path, mode="r", frame_stack=frame_stack)
        try:
            store, reader = self._buffer._store, self._buffer._reader
            with store.lock:
                table = until_found([reader], lambda: build(store, reader.index))
            table = table if condition is None else table.select(condition.select(table))
            table = table if choose is None else choose(table)
            self._table = table.select(np.lexsort((table.stream, table.start // store.layout.streams)))
            self._columns = self._chosen(columns)
        except BaseException:
            self._buffer.close()
            raise
        self.losses: Mapping[str, str] = {}

    def _chosen(self, columns: Collection[str] | None) -> dict[str, Column]:
        known = {name: column for name, column in self._buffer.columns.items() if name not in (*KEPT, TAG)}
        if columns is None:
            return known
        if isinstance(columns, str):
            raise InputError(f"columns must be a list of names, such as [{columns!r}], found a string")
        wanted = {*_ALWAYS}
        for name in columns:
            found = [path for path in known if path == name or path.startswith(f"{name}/")]
            if not found:
                raise InputError(f"there is no column {name!r}; there are {', '.join(known)}")
            wanted.update(found)
        return {name: column for name, column in known.items() if name in wanted}

    @property
    def contents(self) -> Contents:
        """What the store holds."""
        buffer, table, layout = self._buffer, self._table, self.layout
        return Contents(
            self._columns,
            len(table),
            int(table.length.sum()),
            environment=buffer.environment,
            metadata=buffer.metadata,
            derived=buffer.derived & self._columns.keys(),
            n_envs=buffer.n_envs,
            protected=layout.protected and bool((table.stream == buffer.n_envs).any()),
            frame_stack=buffer.frame_stack,
            padding=layout.padding,
            tags=bool((table.tag != "").any()),
        )

    @property
    def layout(self) -> Layout:
        """The store's layout."""
        return self._buffer._store.layout

    @property
    def table(self) -> EpisodeTable:
        """The episodes, in the order in which they are read."""
        return self._table

    @property
    def identity(self) -> list[Any]:
        """What is the same as long as the same episodes are read from the same store; as JSON."""
        table = self._table
        numbers = np.stack([table.stream, table.start, table.length], axis=1)
        texts = [table.ending.tolist(), table.tag.tolist()]
        return [self.layout.salt, numbers.tolist(), texts, sorted(self._columns), self._buffer.frame_stack]

    def episodes(self, first: int = 0) -> Iterator[EpisodeData]:
        """Yield the episodes."""
        read = self._buffer.episodes._source.episode
        table = self._table
        for row in range(first, len(table)):
            length, stream = int(table.length[row]), int(table.stream[row])
            episode = Episode(stream, int(table.start[row]), length, str(table.ending[row]), str(table.tag[row]))
            columns = {name: _Rows(read, name, column, episode) for name, column in self._columns.items()}
            protected = stream == self._buffer.n_envs
            yield EpisodeData(
                columns,
                length,
                episode.tag,
                0 if protected else stream,
                protected,
                lead=self._lead(episode, whole=bool(table.whole[row])),
                running=episode.ending == RUNNING,
            )

    def _lead(self, episode: Episode, *, whole: bool) -> dict[str, npt.NDArray[Any]]:
        """Return the frames ahead of an episode's first row, where its first stack has such."""
        reader, frames = self._buffer._reader, self._buffer.frame_stack - 1
        if frames == 0 or (whole and not reader.index.has_lead(episode.stream, episode.start // reader.streams)):
            return {}
        start, source = np.array([episode.start], np.int64), self._buffer.episodes._source
        return {path: source.steps(path, start)[0, :frames] for path in self._columns if is_obs(path)}

    def part(self, which: Any) -> StoreSource:
        """Return a source of some of the episodes, by a mask or numbers of rows of the table; this one closes both."""
        part = copy.copy(self)
        part._table = self._table.select(which)
        return part

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
