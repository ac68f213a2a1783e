"""What there is to see of an episode: some of its frames, and its rewards, actions and other columns as curves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, InputError
from diskbuffer.inspect.pictures import picture_columns
from diskbuffer.plugin import BUILT_IN, KEPT, RUNNING, TAG, EpisodeTable, Reader, counted, is_observation

Array = npt.NDArray[Any]
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

    def series(self) -> tuple[dict[str, Array], bool]:
        """Return its columns that are numbers at every step, and whether some of them are damaged.

        Each (length, ...): "return", the sum of rewards so far; and all that was recorded with the steps or written later, but
        for flags, tags and pictures.
        """
        info = self.reader.info
        pictures = {path for path in picture_columns(info.columns) if is_observation(path) or path in info.chunk_rows}
        names = [name for name in info.columns if name not in (*BUILT_IN, *KEPT, TAG) and name not in pictures]
        names.sort(key=lambda name: (is_observation(name), name.split("/")[0] != "reward", name.split("/")[0] != "action"))
        found, damaged = dict[str, Array](), False
        steps = (self.first + np.arange(int(self.row["length"]))) * self.streams + int(self.row["stream"])
        for name in names:
            try:
                values = self.reader.read(name, steps)
            except CorruptionError:
                damaged = True
                continue
            if values.dtype.kind == "c":
                values = np.abs(values)
            if name.split("/")[0] == "reward":
                total = values.astype(np.float64).reshape(len(values), -1).sum(axis=1)
                found["return"] = np.cumsum(total) + found.get("return", 0)
            found[name] = values
        return found, damaged


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
