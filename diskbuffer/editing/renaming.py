"""Another name for a column."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from diskbuffer import Column
from diskbuffer.editing.copying import rewrite
from diskbuffer.editing.new_store import NewStore, place_beside
from diskbuffer.editing.newest import within_capacity
from diskbuffer.errors import SchemaError
from diskbuffer.formats.stored import StoreSource
from diskbuffer.plugin import BUILT_IN, TAG, EpisodeData, is_observation


def rename_column(
    store: str | os.PathLike[str], new: str | os.PathLike[str], old: str, name: str, *, progress: bool = True
) -> Path:
    """Write a new store in which a column has another name. The store stays as it is.

    Parameters
    ----------
    store, new : path-like
        At `new` there must be nothing, or an empty directory.
    old, name : str
        Paths of the column: "obs/camera". A part of an observation stays one, as its rows are more than those of other columns;
        flags, rewards and tags have names that every store has.
    progress : bool
        Whether to show progress.

    Returns
    -------
    pathlib.Path
        The new store's path.

    Raises
    ------
    SchemaError
        There is no such column, it cannot be called that, or another is.
    InputError, CorruptionError, LockedError
        As for `copy`.
    """
    path = place_beside(new, store)
    with closing(StoreSource(store, choose=within_capacity)) as source:
        _check(source, old, name)

        def renamed(columns: Mapping[str, Column]) -> dict[str, Column]:
            return {name if path == old else path: column for path, column in columns.items()}

        def change(made: NewStore) -> NewStore:
            return made.changed(columns=renamed(made.columns), derived=renamed(made.derived))

        def through(episode: EpisodeData) -> EpisodeData:
            columns = {name if path == old else path: rows for path, rows in episode.columns.items()}
            lead = {name if path == old else path: rows for path, rows in episode.lead.items()}
            return replace(episode, columns=columns, lead=lead)

        return rewrite(source, path, "rename-column", change, progress, through)


def _check(source: StoreSource, old: str, name: str) -> None:
    columns, derived = source.contents.columns, source.contents.derived
    if old not in columns:
        raise SchemaError(f"there is no column {old!r}; there are {', '.join(columns)}")
    kept = {*BUILT_IN, TAG}
    if old in kept or name in kept or "reward" in (old.split("/")[0], name.split("/")[0]):
        raise SchemaError(f"flags, rewards and tags have names that every store has: {old!r} cannot be called {name!r}")
    if is_observation(old) != is_observation(name):
        raise SchemaError(f"observations are 'obs', or below 'obs/', and nothing else is: {old!r} cannot be called {name!r}")
    if name in columns:
        raise SchemaError(f"there is a column {name!r} already")
    if old in derived and "/" in name:
        raise SchemaError(f"a column that was written later cannot be nested, found {name!r}")
