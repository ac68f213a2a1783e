"""An episode as it is shown: some of its frames, and its rewards, actions and other columns as curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import CorruptionError, InputError
from diskbuffer.inspect.pictures import picture_columns
from diskbuffer.plugin import BUILT_IN, TAG, Reader, counted, is_observation

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
MOST_NUMBERS = 32  # a step, of a column that is drawn as curves
MOST_STEPS = 100_000  # that curves are drawn of: of a longer episode, every so many
_MOST_BYTES = 1024**3  # of frames that are held at once


@dataclass(frozen=True)
class EpisodeView:
    """An episode of a store, and its row of the table, as `EpisodeTable.to_rows` has it."""

    reader: Reader
    row: dict[str, Any]

    @property
    def length(self) -> int:
        """How many steps it has; it has one observation more."""
        return int(self.row["length"])

    def read(self, column: str, places: Int64) -> Array:
        """Read rows of a column by their place in the episode; a CorruptionError where they are damaged."""
        return self.reader.read(column, int(self.row["start"]) + places * self.reader.info.streams)

    def frames(self, column: str, places: Int64) -> tuple[Array, list[int]]:
        """Read observations by their place; those that are damaged are zeros, and which of them they are is returned, too.

        An InputError where they would take more than a gigabyte.
        """
        of = self.reader.info.columns[column]
        if len(places) * of.row_bytes > _MOST_BYTES:
            frames = f"{counted(len(places), 'frame')} of {of.row_bytes:,} bytes"
            raise InputError(f"{frames} take too much memory; choose some, as --steps 100:400 does")
        try:
            return self.read(column, places), []
        except CorruptionError:
            values, damaged = np.zeros((len(places), *of.shape), of.np_dtype), []
            for at in range(len(places)):
                try:
                    values[at] = self.read(column, places[at : at + 1])[0]
                except CorruptionError:
                    damaged.append(at)
            return values, damaged

    def curves(self, part: range | None = None, most: int = MOST_NUMBERS) -> tuple[Int64, dict[str, Array], bool]:
        """Return what is drawn as curves, of `part` of its steps: of which steps, by name, and whether some of it is damaged.

        Each is (steps, ...): the `curve_columns` of `most` numbers, and "return so far", the sum of rewards, where these are
        all steps from the first on.
        """
        part = range(self.length) if part is None else range(part.start, min(part.stop, self.length))
        places = some_of(part)
        series, damaged = dict[str, Array](), False
        for name in curve_columns(self.reader.info.columns, most):
            try:
                values = self.read(name, places)
            except CorruptionError:
                damaged = True
                continue
            if name.split("/")[0] == "reward" and len(places) == part.stop:
                total = values.astype(np.float64).reshape(len(values), -1).sum(axis=1)
                series["return so far"] = np.cumsum(total) + series.get("return so far", 0)
            series[name] = values
        return places, series, damaged


def some_of(places: range) -> Int64:
    """Return the places of an episode that curves are drawn of: all, or every so many of very many."""
    return np.array(places[:: max(1, -(-len(places) // MOST_STEPS))], np.int64)


def curve_columns(columns: Mapping[str, Column], most: int = MOST_NUMBERS) -> list[str]:
    """Return the columns whose values are drawn as curves: rewards first, then actions, others, and observations.

    Those of `most` real numbers a step, but for pictures, flags, tags, and what a store keeps for itself.
    """
    order = {"reward": 0, "action": 1, "obs": 3}
    left_out = {*BUILT_IN, TAG, *filter(is_observation, picture_columns(columns))}
    paths = [
        path
        for path, column in columns.items()
        if path not in left_out and math.prod(column.shape) <= most and column.np_dtype.kind in "buif"
    ]
    return sorted(paths, key=lambda path: order.get(path.split("/")[0], 2))


def find_episode(reader: Reader, episode: int | None) -> EpisodeView | None:
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
    return EpisodeView(reader, table.select([at]).to_rows()[0])
