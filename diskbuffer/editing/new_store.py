"""The store that an edit makes: what it is like, and how episodes become it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskbuffer import Column, ReplayBuffer
from diskbuffer.columns.tags import numbers_of
from diskbuffer.errors import InputError
from diskbuffer.formats.data import EpisodeData
from diskbuffer.formats.filling import fill
from diskbuffer.formats.stored import StoreSource
from diskbuffer.formats.unfinished import Unfinished
from diskbuffer.index.fields import LOW
from diskbuffer.options import Options
from diskbuffer.plugin import TAG, Schema, StoreInfo, is_observation, local_path, progress_bar
from diskbuffer.reading.episode_columns import TAG_COLUMN
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.store.format.sizes import chunk_rows_of, segment_rows_of


@dataclass(frozen=True, kw_only=True)
class NewStore:
    """What a store is to be, as `ReplayBuffer` takes it.

    Attributes
    ----------
    columns, derived : mapping of str to Column
        Recorded ones, and those to be written later.
    segment_rows, chunk_rows : int or None
        None has them chosen.
    tags : tuple of str
        In the order of their numbers.
    tagged : bool
        Whether there is a column of tags.
    evict : bool
        Whether what is beyond the capacity goes at once. If not, it does when more is added.
    """

    columns: Mapping[str, Column]
    derived: Mapping[str, Column]
    capacity: int | None
    capacity_each: bool
    n_envs: int
    frame_stack: int
    padding: str
    autoreset: str
    segment_rows: int | None
    chunk_rows: int | None
    environment: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    tags: tuple[str, ...]
    tagged: bool
    evict: bool = False

    @classmethod
    def like(cls, source: StoreSource) -> NewStore:
        """Return a store like the one that a source reads, with the columns that it reads."""
        info, contents = source.info, source.contents
        return cls(
            columns={name: column for name, column in contents.columns.items() if name not in contents.derived},
            derived={name: column for name, column in contents.columns.items() if name in contents.derived},
            capacity=info.capacity,
            capacity_each=info.capacity_each,
            n_envs=info.n_envs,
            frame_stack=contents.frame_stack,
            padding=info.padding,
            autoreset=info.autoreset,
            segment_rows=info.segment_rows,
            chunk_rows=_asked_chunk_rows(info),
            environment=info.environment,
            metadata=info.metadata,
            tags=info.tags,
            tagged=TAG in info.derived,
        )

    def changed(self, **changes: Any) -> NewStore:
        """Return it with other attributes."""
        return dataclasses.replace(self, **changes)

    def _options(self) -> dict[str, Any]:
        """Return the options of `ReplayBuffer`, but for the capacity."""
        rows = self.segment_rows
        if rows is None:
            rows = segment_rows_of(self.capacity, self.n_envs, Schema.of(self.columns).columns)
        names = ("columns", "n_envs", "frame_stack", "padding", "autoreset", "chunk_rows", "capacity_each")
        given = {name: getattr(self, name) for name in (*names, "environment", "metadata")}
        return given | {"segment_rows": rows}

    def check(self) -> None:
        """Raise an InputError, or a SchemaError, where there can be no such store."""
        if not any(map(is_observation, self.columns)):
            raise InputError(f"a store needs observations, and would have {', '.join(self.columns)} alone; name a column of them")
        Options(**self._options(), capacity=self.capacity).checked().layout()

    def describe(self) -> dict[str, Any]:
        """Describe it in JSON, so that an interrupted run can tell whether it is to make the same."""
        columns = {path: str(column) for path, column in {**self.columns, **self.derived}.items()}
        return {**vars(self), "columns": columns, "derived": sorted(self.derived)}

    def make(self, place: Path, episodes: Iterable[EpisodeData], told: Callable[[int], None]) -> None:
        """Make it of episodes, or finish what a run that was killed has made of the same ones.

        There is no capacity until all of them are there: none is evicted for one that an edit adds after it.
        """
        ReplayBuffer(place, **self._options()).close()  # which also opens the one that was begun
        with ReplayBuffer(place, mode="r+", autoreset="disabled") as buffer:
            numbers_of(buffer._derived, self.tags)
            if self.tagged:
                buffer._derived.ensure(TAG, TAG_COLUMN)
            fill(buffer, episodes, told, self.derived)
            if self.evict:
                buffer.resize(self.capacity)
            elif buffer.capacity != self.capacity:
                with buffer._store.lock, Uninterrupted():
                    buffer._store.resize(self.capacity, buffer._reader.index.table[:, LOW])

    def write(
        self, path: Path, what: str, sources: Sequence[StoreSource], episodes: Iterable[EpisodeData], progress: bool
    ) -> Path:
        """Make it beside a path, and move it there; return the path. `what` is done, to the sources that the episodes are of."""
        self.check()
        task = {"edit": what, "of": [source.fingerprint() for source in sources], "store": self.describe()}
        steps = sum(int(source.table.length.sum()) for source in sources)
        with Unfinished(path, task) as unfinished:
            with progress_bar(steps, 0, progress, "steps") as shown:
                self.make(unfinished.place, episodes, shown.update)
            for source in sources:
                source.warn_of_changes()
            unfinished.finish()
            return unfinished.target


def place_beside(new: Any, *stores: Any) -> Path:
    """Return the path of a new store; an InputError where it lies inside of one that it is made of."""
    path = local_path(new)
    for store in stores:
        inside = local_path(store).resolve()
        if path.resolve() == inside or inside in path.resolve().parents:
            raise InputError(f"{path} is inside of the store {inside}; give a path outside of it")
    return path


def some_columns(columns: Collection[str] | None) -> list[str] | None:
    """Return the columns to read, where only some are wanted: with rewards, which every store has."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise InputError(f"columns must be a list of names, such as [{columns!r}], found a string")
    return [*columns, "reward"]


def _asked_chunk_rows(info: StoreInfo) -> int | None:
    """Return with what `chunk_rows` a store was created; None where they were chosen."""
    recorded = Schema({path: column for path, column in info.columns.items() if path not in info.derived})
    if dict(info.chunk_rows) == chunk_rows_of(recorded):
        return None
    return next((rows for path, rows in info.chunk_rows.items() if not info.columns[path].is_lossy), None)
