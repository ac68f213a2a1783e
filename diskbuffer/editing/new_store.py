"""The store that an edit makes: what it is like, and how episodes become it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diskbuffer import Column
from diskbuffer.errors import InputError
from diskbuffer.formats.blocks import Wanted, blocks
from diskbuffer.formats.filling import fill
from diskbuffer.formats.stored import StoreSource
from diskbuffer.formats.unfinished import Unfinished
from diskbuffer.plugin import Appender, EpisodeData, is_observation, progress_bar


@dataclass(frozen=True, kw_only=True)
class NewStore:
    """What a store is to be.

    Attributes
    ----------
    columns, derived : mapping of str to Column
        Recorded ones, and those to be written later.
    options : mapping
        All else that `Appender` takes.
    arrays : mapping of str to array
        That are kept in it.
    """

    columns: Mapping[str, Column]
    derived: Mapping[str, Column]
    options: Mapping[str, Any]
    arrays: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def like(cls, source: StoreSource) -> NewStore:
        """Return a store like the one that a source reads, with the columns that it reads."""
        contents, options = source.contents, source.info.options()
        del options["columns"]
        return cls(
            columns={name: column for name, column in contents.columns.items() if name not in contents.derived},
            derived={name: column for name, column in contents.columns.items() if name in contents.derived},
            options=options | {"tags": source.info.tags},
        )

    def changed(self, *, columns: Any = None, derived: Any = None, **options: Any) -> NewStore:
        """Return it with other columns or options."""
        return dataclasses.replace(
            self,
            columns=self.columns if columns is None else columns,
            derived=self.derived if derived is None else derived,
            options={**self.options, **options},
        )

    def check(self) -> None:
        """Raise an InputError where there can be no such store."""
        if not any(map(is_observation, self.columns)):
            raise InputError(f"a store needs observations, and would have {', '.join(self.columns)} alone; name a column of them")

    def describe(self) -> dict[str, Any]:
        """Describe it in JSON, so that an interrupted run can tell whether it is to make the same."""
        columns = {path: str(column) for path, column in {**self.columns, **self.derived}.items()}
        return {**self.options, "columns": columns, "derived": sorted(self.derived)}

    def make(self, place: Path, episodes: Iterable[EpisodeData], report: Callable[[int], None]) -> None:
        """Make it of episodes, or finish what a run that was killed has made of the same ones."""
        with Appender(place, columns=self.columns, derived=self.derived, arrays=self.arrays, **self.options) as appender:
            fill(appender, blocks(episodes, Wanted.by(appender)), report)

    def write(
        self,
        path: Path,
        what: Mapping[str, Any],
        sources: Sequence[StoreSource],
        episodes: Iterable[EpisodeData],
        *,
        restart: bool,
        progress: bool,
    ) -> Path:
        """Make it beside a path, and move it there; return the path.

        `what` describes the edit, in JSON, and `sources` are what the episodes are of: what a run that was killed has left is
        finished where both are the same.
        """
        self.check()
        task = {**what, "of": [source.fingerprint() for source in sources], "store": self.describe()}
        steps = sum(int(source.table.length.sum()) for source in sources)
        with Unfinished(path, task, restart=restart) as unfinished:
            with progress_bar(steps, 0, progress, "steps") as shown:
                self.make(unfinished.place, episodes, shown.update)
            for source in sources:
                source.warn_of_changes()
            unfinished.finish()
            return unfinished.target


def some_columns(columns: Collection[str] | None) -> list[str] | None:
    """Return the columns to read, where only some are wanted: with rewards, which every store has."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise InputError(f"columns must be a list of names, such as [{columns!r}], found a string")
    return [*columns, "reward"]
