"""A store as a source of episodes."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.endings import RUNNING
from diskbuffer.errors import CorruptionError, EvictedError, InputError
from diskbuffer.formats.data import Contents, EpisodeData
from diskbuffer.formats.rows import MAPPED
from diskbuffer.inspect.episodes import EpisodeTable
from diskbuffer.inspect.gathered import open_view
from diskbuffer.inspect.where import parse
from diskbuffer.options import Options
from diskbuffer.paths import local_path
from diskbuffer.schema import CHECKSUM, KEPT, TAG, Column, is_obs
from diskbuffer.store.format.layout import Layout

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
        self._view = open_view(local_path(path), Options(frame_stack=frame_stack).checked().frame_stack)
        table = self._view.episodes()
        if self._view.damage is not None:
            raise CorruptionError(self._view.damage)
        self._store = self._view.store
        table = table if condition is None else table.select(condition.select(table))
        table = table if choose is None else choose(table)
        self._table = table.select(np.lexsort((table.stream, table.start // self.layout.streams)))
        self._columns = self._chosen(columns)
        self._read = 0  # bytes, since maps were let go
        self._derived: dict[str, str] = {}  # digests, as of the last fingerprint
        self.losses: Mapping[str, str] = {}

    def _chosen(self, columns: Collection[str] | None) -> dict[str, Column]:
        known = {name: column for name, column in self._view.schema.columns.items() if name not in (*KEPT, TAG)}
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
        table, layout = self._table, self.layout
        return Contents(
            self._columns,
            len(table),
            int(table.length.sum()),
            environment=layout.environment,
            metadata=layout.metadata,
            derived=layout.derived & self._columns.keys(),
            n_envs=layout.n_envs,
            frame_stack=self._view.frame_stack,
            padding=layout.padding,
            tags=bool((table.tag != "").any()),
        )

    @property
    def layout(self) -> Layout:
        """The store's layout."""
        return self._store.layout

    @property
    def table(self) -> EpisodeTable:
        """The episodes, in the order in which they are read."""
        return self._table

    def fingerprint(self) -> str:
        """Return what is the same as long as the same is read: of the episodes, their rows' checksums, and derived columns."""
        table, layout = self._table, self.layout
        numbers = np.stack([table.stream, table.start, table.length], axis=1).tolist()
        columns = {path: str(column) for path, column in self._columns.items()}
        about = [layout.environment, layout.metadata, layout.n_envs, self._view.frame_stack, layout.padding, layout.tags]
        told = [columns, about, numbers, table.ending.tolist(), table.tag.tolist(), self._digest(CHECKSUM, final=True)]
        self._derived = self._digests()
        return hashlib.sha256(json.dumps([*told, self._derived]).encode()).hexdigest()

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
            digest.update(self._view.read(path, table.start[episode] + offsets * self.layout.streams).tobytes())
            self.close()
        return digest.hexdigest()

    def warn_of_changes(self) -> None:
        """Warn where a derived column has other values than when its `fingerprint` was taken: it was read meanwhile."""
        with contextlib.suppress(EvictedError):  # of a training's store, in which these values change all the time
            now = self._digests()
            changed = [name for name, before in self._derived.items() if now[name] != before]
            if changed:
                warnings.warn(
                    f"{self._view.path}: {', '.join(changed)} was written while it was read, so some of its values are older "
                    "than others. If they should not be, do this again once nothing writes to the store",
                    UserWarning,
                    stacklevel=2,
                )

    def episodes(self, first: int = 0) -> Iterator[EpisodeData]:
        """Yield the episodes."""
        table = self._table
        for row in range(first, len(table)):
            length, stream = int(table.length[row]), int(table.stream[row])
            position = int(table.start[row]) // self.layout.streams
            columns = {name: _Rows(self, name, column, stream, position, length) for name, column in self._columns.items()}
            yield EpisodeData(
                columns,
                length,
                str(table.tag[row]),
                stream,
                lead=self._lead(stream, position, whole=bool(table.whole[row])),
                running=str(table.ending[row]) == RUNNING,
            )

    def _lead(self, stream: int, position: int, *, whole: bool) -> dict[str, npt.NDArray[Any]]:
        """Return the frames ahead of an episode's first row, where its first stack has such."""
        index, frames = self._view.index, self._view.frame_stack - 1
        if frames == 0 or (whole and not index.has_lead(stream, position)):
            return {}
        first = max(position - frames, index.first_frame(stream, position))
        found = {}
        for path in filter(is_obs, self._columns):
            rows = self.read(path, stream, np.arange(first, position + 1))
            made_up = rows[:1] if self.layout.padding == "first" else np.zeros_like(rows[:1])
            found[path] = np.concatenate([*[made_up] * (frames - (position - first)), rows[:-1]])
        return found

    def read(self, path: str, stream: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Read rows of a stream's column, (n, ...).

        Memory maps are let go from time to time: their pages would count as this process's memory, however large the store is.
        """
        rows = self._view.read(path, positions * self.layout.streams + stream)
        if self._view.store is not self._store:
            raise CorruptionError(f"{self._view.path} was replaced by another store since, or went back to a mark; begin anew")
        self._read += rows.nbytes
        if self._read > MAPPED:
            self._view.let_go()
            self._read = 0
        return rows

    def part(self, which: Any) -> StoreSource:
        """Return a source of some of the episodes, by a mask or numbers of rows of the table; this one closes both."""
        part = copy.copy(self)
        part._table = self._table.select(which)
        return part

    def close(self) -> None:
        """Let the store go."""
        self._view.let_go()


class _Rows:
    """A column of an episode of a store, decoded when it is sliced."""

    def __init__(self, source: StoreSource, path: str, column: Column, stream: int, position: int, steps: int) -> None:
        self._source, self._path, self._stream, self._position = source, path, stream, position
        self.shape = (steps + is_obs(path), *column.shape)
        self.dtype = column.np_dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        wanted = np.arange(*rows.indices(self.shape[0]), dtype=np.int64)
        return self._source.read(self._path, self._stream, self._position + wanted)
