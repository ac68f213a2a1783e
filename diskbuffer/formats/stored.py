"""A store as a source of episodes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import CorruptionError, EvictedError, InputError
from diskbuffer.formats.rows import MAPPED
from diskbuffer.plugin import (
    KEPT,
    RUNNING,
    TAG,
    Contents,
    EpisodeData,
    EpisodeTable,
    Reader,
    StoreInfo,
    is_observation,
    local_path,
)

_ALWAYS = ("terminated", "truncated")  # which a store has in any case
_ROWS = 65536  # of a fingerprint, that are read at a time


class StoreSource:
    """Read the episodes of a store, in the order of their first steps: those that are there now.

    Parameters
    ----------
    path : path-like
        A writer may go on writing to it. An episode that it evicts before its turn is an EvictedError.
    where : str, optional
        Which episodes, as ``diskbuffer episodes --where`` takes it.
    columns : collection of str, optional
        These alone, and the flags; "obs" is all columns whose paths begin with "obs/", too. All by default, but for those that
        the buffer writes for itself.
    choose : callable, optional
        Is given the table of those episodes and what the store is, and returns the table of those that are wanted. An episode of
        which it makes the start a later one begins there.
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
        choose: Callable[[EpisodeTable, StoreInfo], EpisodeTable] | None = None,
        frame_stack: int | None = None,
    ) -> None:
        self._reader = Reader(local_path(path), frame_stack)
        table = self._reader.episodes(where)
        self.info, self._opened = self._reader.info, self._reader.version[0]
        table = table if choose is None else choose(table, self.info)
        self._table = table.select(np.lexsort((table.stream, table.start // self.info.streams)))
        self._columns = self._chosen(columns)
        self._read = 0  # bytes, since maps were let go
        self._derived: dict[str, str] = {}  # digests, as of the last fingerprint
        self.losses: Mapping[str, str] = {}

    def _chosen(self, columns: Collection[str] | None) -> dict[str, Column]:
        known = {name: column for name, column in self.info.columns.items() if name not in (*KEPT, TAG)}
        if columns is None:
            return known
        if isinstance(columns, str):
            raise InputError(f"columns must be a list of names, such as [{columns!r}], found a string")
        chosen = {*_ALWAYS}
        for name in columns:
            paths = [path for path in known if path == name or path.startswith(f"{name}/")]
            if not paths:
                raise InputError(f"there is no column {name!r}; there are {', '.join(known)}")
            chosen.update(paths)
        return {name: column for name, column in known.items() if name in chosen}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that were kept with the store."""
        return self._reader.arrays()

    @property
    def contents(self) -> Contents:
        """What the store holds."""
        table, info = self._table, self.info
        return Contents(
            self._columns,
            len(table),
            int(table.length.sum()),
            environment=info.environment,
            metadata=info.metadata,
            derived=info.derived & self._columns.keys(),
            n_envs=info.n_envs,
            frame_stack=info.frame_stack,
            padding=info.padding,
            tags=bool((table.tag != "").any()),
            values=tuple(name for name, value in table.values.items() if value.given.any()),
        )

    @property
    def table(self) -> EpisodeTable:
        """The episodes, in the order in which they are read."""
        return self._table

    def fingerprint(self) -> str:
        """Return what is the same as long as the same is read: of the episodes, their rows' checksums, and derived columns."""
        table, info = self._table, self._reader.info
        numbers = np.stack([table.stream, table.start, table.length], axis=1).tolist()
        columns = {path: str(column) for path, column in self._columns.items()}
        about = [info.environment, info.metadata, info.n_envs, info.frame_stack, info.padding, info.tags]
        values = {name: [each.given.tolist(), each.listed()] for name, each in table.values.items() if each.given.any()}
        of_episodes = [table.ending.tolist(), table.tag.tolist(), values]
        facts = [columns, about, numbers, *of_episodes, self._digest("row_checksum", final=True)]
        self._derived = self._digests()
        return hashlib.sha256(json.dumps([*facts, self._derived]).encode()).hexdigest()

    def _digests(self) -> dict[str, str]:
        """Return a digest of the values of each derived column, which change, as those that were recorded do not."""
        return {name: self._digest(name) for name in sorted(self.contents.derived)}

    def _digest(self, path: str, *, final: bool = False) -> str:
        """Return a digest of a column's values at all steps; with `final`, at the rows after episodes' last steps, too."""
        table, digest = self._table, hashlib.sha256()
        rows = table.length + final
        ends = np.cumsum(rows)
        for first in range(0, int(rows.sum()), _ROWS):
            numbers = np.arange(first, min(first + _ROWS, int(ends[-1])))
            episode = np.searchsorted(ends, numbers, side="right")
            offsets = numbers - (ends - rows)[episode]
            digest.update(self._reader.read(path, table.start[episode] + offsets * self.info.streams).tobytes())
            self.close()
        return digest.hexdigest()

    def warn_of_changes(self) -> None:
        """Warn where a derived column has other values than when its `fingerprint` was taken: it was read meanwhile."""
        with contextlib.suppress(EvictedError):  # of a training's store, in which these values change all the time
            now = self._digests()
            changed = [name for name, before in self._derived.items() if now[name] != before]
            if changed:
                warnings.warn(
                    f"{self._reader.path}: {', '.join(changed)} was written while it was read, so some of its values are older "
                    "than others. If they should not be, do this again once nothing writes to the store",
                    UserWarning,
                    stacklevel=2,
                )

    def episodes(self, first: int = 0) -> Iterator[EpisodeData]:
        """Yield the episodes."""
        table, streams = self._table, self.info.streams
        for row in range(first, len(table)):
            length, stream = int(table.length[row]), int(table.stream[row])
            steps = int(table.start[row]) + np.arange(length + 1) * streams
            columns = {name: _Rows(self, name, column, steps) for name, column in self._columns.items()}
            yield EpisodeData(
                columns,
                length,
                str(table.tag[row]),
                stream,
                lead=self._lead(int(table.start[row])),
                running=str(table.ending[row]) == RUNNING,
                values=table.values_of(row),
            )

    def _lead(self, start: int) -> dict[str, npt.NDArray[Any]]:
        """Return the frames ahead of an episode's first row, where its first stack has such."""
        stack, frames = self._reader.stack(start), self.info.frame_stack
        if len(stack) == 1:
            return {}
        prefix = {}
        for path in filter(is_observation, self._columns):
            rows = self.read(path, stack)
            made_up = rows[:1] if self.info.padding == "first" else np.zeros_like(rows[:1])
            prefix[path] = np.concatenate([*[made_up] * (frames - len(stack)), rows[:-1]])
        return prefix

    def read(self, path: str, steps: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Read rows of a column by the ids of their steps, (n, ...).

        Memory maps are released from time to time: their pages would count as this process's memory, however large the store is.
        """
        rows = self._reader.read(path, steps)
        if self._reader.version[0] != self._opened:
            raise CorruptionError(f"{self._reader.path} was replaced by another store since, or went back to a mark; begin anew")
        self._read += rows.nbytes
        if self._read > MAPPED:
            self.close()
            self._read = 0
        return rows

    def close(self) -> None:
        """Release what is mapped of the store."""
        self._reader.close()


class _Rows:
    """A column of an episode of a store, decoded when it is sliced."""

    def __init__(self, source: StoreSource, path: str, column: Column, steps: npt.NDArray[np.int64]) -> None:
        self._source, self._path = source, path
        self._steps = steps if is_observation(path) else steps[:-1]  # an observation has one row more
        self.shape = (len(self._steps), *column.shape)
        self.dtype = column.np_dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        return self._source.read(self._path, self._steps[rows])
