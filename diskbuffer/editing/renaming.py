"""Other names for columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from diskbuffer.errors import SchemaError
from diskbuffer.plugin import BUILT_IN, TAG, Contents, EpisodeData, is_observation

T = TypeVar("T")


def renamed(columns: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    """Return what there is of each column, by the new names."""
    return {names.get(path, path): column for path, column in columns.items()}


def with_names(episode: EpisodeData, names: Mapping[str, str]) -> EpisodeData:
    """Return an episode whose columns have the new names."""
    return replace(episode, columns=renamed(episode.columns, names), lead=renamed(episode.lead, names))


def check_names(contents: Contents, names: Mapping[str, str]) -> None:
    """Raise a SchemaError where columns cannot be called that."""
    kept = {*BUILT_IN, TAG}
    for old, name in names.items():
        if old not in contents.columns:
            raise SchemaError(f"there is no column {old!r}; there are {', '.join(contents.columns)}")
        if old in kept or name in kept or "reward" in (old.split("/")[0], name.split("/")[0]):
            raise SchemaError(f"flags, rewards and tags have names that every store has: {old!r} cannot be called {name!r}")
        if is_observation(old) != is_observation(name):
            raise SchemaError(f"observations are 'obs', or below 'obs/', and nothing else is: {old!r} cannot be called {name!r}")
        if old in contents.derived and "/" in name:
            raise SchemaError(f"a column that was written later cannot be nested, found {name!r}")
    for name, count in Counter(names.get(path, path) for path in contents.columns).items():
        if count > 1:
            raise SchemaError(f"{count} columns would be called {name!r}")
