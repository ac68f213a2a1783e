"""What there is to see of an episode: some of its frames, and its rewards, actions and other columns as curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import CorruptionError, InputError
from diskbuffer.inspect.pictures import picture_columns
from diskbuffer.plugin import BUILT_IN, RUNNING, TAG, EpisodeTable, Reader, counted, is_observation

Array = npt.NDArray[Any]
MOST_NUMBERS = 32  # a step, of a column that is drawn as curves
_MOST_BYTES = 1024**3  # of frames that are held at once


@dataclass(frozen=True)
class Footage:
    """An episode.

    Attributes
    ----------
    row : dict
        As `EpisodeTable.to_rows` has it.
    streams : int
        Of the store: the row of a position has the name ``position * streams + row["stream"]``.
    """

    reader: Reader
    row: dict[str, Any]
    streams: int

    @property
    def first(self) -> int:
        """The position of its first row."""
        return int(self.row["start"]) // self.streams

    @property
    def rows(self) -> int:
        """How many observations it has: one more than steps."""
        return int(self.row["length"]) + 1

    def frames(self, column: str, at: Iterable[int]) -> tuple[Array, list[int]]:
        """Read observations by their place in the episode; those that are damaged are zeros, and are told, too.

        An InputError where they would take more than a gigabyte.
        """
        places = np.fromiter(at, np.int64)
        size = self.reader.info.columns[column].row_bytes
        if len(places) * size > _MOST_BYTES:
            raise InputError(
                f"{counted(len(places), 'frame')} of {size:,} bytes take too much memory; choose some, as --steps 100:400 does"
            )
        names = (self.first + places) * self.streams + int(self.row["stream"])
        return _read(self.reader, column, names)

    def series(self, part: range | None = None, most: int = MOST_NUMBERS) -> tuple[dict[str, Array], bool]:
        """Return its columns that are curves, at some of its steps, and whether some of them are damaged.

        Each (steps, ...): "return", the sum of rewards from the first of these on; and the `curve_columns` of `most` numbers.
        """
        length = int(self.row["length"])
        places = np.arange(length)[slice(None) if part is None else slice(part.start, part.stop)]
        found, damaged = dict[str, Array](), False
        steps = (self.first + places) * self.streams + int(self.row["stream"])
        for name in curve_columns(self.reader.info.columns, most):
            try:
                values = self.reader.read(name, steps)
            except CorruptionError:
                damaged = True
                continue
            if name.split("/")[0] == "reward":
                total = values.astype(np.float64).reshape(len(values), -1).sum(axis=1)
                found["return"] = np.cumsum(total) + found.get("return", 0)
            found[name] = values
        return found, damaged


def curve_columns(columns: Mapping[str, Column], most: int = MOST_NUMBERS) -> list[str]:
    """Return the columns whose values are drawn as curves: rewards first, then actions, others, and observations.

    Those of `most` real numbers a step, but for pictures, flags, tags, and what a store keeps for itself.
    """
    order = {"reward": 0, "action": 1, "obs": 3}
    left_out = {*BUILT_IN, TAG, *filter(is_observation, picture_columns(columns))}
    found = [
        path
        for path, column in columns.items()
        if path not in left_out and math.prod(column.shape) <= most and column.np_dtype.kind in "buif"
    ]
    return sorted(found, key=lambda path: order.get(path.split("/")[0], 2))


def _read(reader: Reader, column: str, names: npt.NDArray[np.int64]) -> tuple[Array, list[int]]:
    try:
        return reader.read(column, names), []
    except CorruptionError:
        if len(names) == 1:
            of = reader.info.columns[column]
            return np.zeros((1, *of.shape), of.np_dtype), [0]
    half = len(names) // 2
    (front, first), (back, second) = _read(reader, column, names[:half]), _read(reader, column, names[half:])
    return np.concatenate([front, back]), [*first, *(half + at for at in second)]


def footage(reader: Reader, episode: int | None) -> Footage | None:
    """Return an episode by its id; -1 is the newest, -2 the one before. Without one, the newest that is over, else the newest.

    None where a store has no episode yet; an InputError where there is no such one.
    """
    table = reader.episodes()
    if not len(table):
        return None
    if episode is None:
        at = table.newest()
    elif episode >= 0:
        at = table.find(episode)
    elif -episode <= len(table):
        at = int(table.argsort()[episode])
    else:
        raise InputError(f"there is no episode {episode}: the store has {counted(len(table), 'episode')}")
    return Footage(reader, table.select([at]).to_rows()[0], reader.info.streams)


def returns_over_time(table: EpisodeTable) -> tuple[dict[str, Array], npt.NDArray[np.float64]]:
    """Return what episodes that are over brought, and how long they were; and when each ended, in steps added by then."""
    over = table.select(table.ending != RUNNING).sort()
    return {"return of episodes": over.returns, "length of episodes": over.length}, over.ended.astype(np.float64)
