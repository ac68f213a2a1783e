"""One episode for the player: where it is, which columns are pictures, and the others as curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import CorruptionError, EvictedError
from diskbuffer.inspect.footage import curve_columns
from diskbuffer.inspect.page.plain_values import scalar, thinned, to_list
from diskbuffer.inspect.pictures.frames import picture_columns
from diskbuffer.plugin import EpisodeTable, Reader, is_observation

_POINTS = 4000  # of a curve, at most


def find_episode(table: EpisodeTable, streams: int, asked: dict[str, int]) -> int:
    """Return the row in the table of the episode that is asked for: with a step, of an id, or the newest that is over.

    With ``by``, the one that ended so many episodes later than that of the id, or earlier; the newest or oldest where there are
    not so many.

    Raises
    ------
    EvictedError
        The step is not there any more, or no step is.
    InputError
        There is no such episode.
    """
    if not len(table):
        raise EvictedError("there is no episode, as there are no steps yet")
    if (step := asked.get("step")) is not None:
        offset = step - table.start
        inside = (table.stream == step % streams) & (offset >= 0) & (offset <= table.length * streams)
        found = np.flatnonzero(inside)
        if not len(found):
            raise EvictedError(f"step {step} is not there any more: its episode was evicted. The newest episodes are there")
        return int(found[-1])
    if (episode := asked.get("id")) is None:
        return table.newest()
    row = table.find(episode)
    if not (by := asked.get("by", 0)):
        return row
    rows = table.argsort()
    return int(rows[np.clip(np.flatnonzero(rows == row)[0] + by, 0, len(rows) - 1)])


def describe_episode(reader: Reader, row: int) -> dict[str, Any]:
    """Return an episode's facts, the columns that are pictures, and those that are curves.

    Costs a read of all its steps in the flat columns: a millisecond for a thousand steps.
    """
    table, info = reader.episodes(), reader.info
    streams, start, length = info.streams, int(table.start[row]), int(table.length[row])
    pictures = [name for name in picture_columns(info.columns) if is_observation(name)]
    facts = {name: scalar(table.column(name)[row]) for name in table.names() if name != "whole"}
    curves = [
        _curve(reader, name, info.columns[name], start + np.arange(length + is_observation(name)) * streams)
        for name in curve_columns(info.columns)
    ]
    more = {"streams": streams, "frame_stack": info.frame_stack, "pictures": pictures}
    return facts | more | {"curves": curves}


def _curve(reader: Reader, name: str, column: Column, steps: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Read a column of an episode; a damaged one has words only."""
    rows = len(steps)
    try:
        values = reader.read(name, steps).reshape(rows, -1)
    except CorruptionError as error:
        return {"name": name, "x": [], "series": [[]], "thinned": False, "discrete": False, "words": str(error)}
    kept = thinned(values, _POINTS)
    shown = values if kept is None else values[kept]
    finite = shown[np.isfinite(shown)] if shown.dtype.kind == "f" else shown
    words = f"{rows} values, from {finite.min():g} to {finite.max():g}" if finite.size else f"{rows} values, none of them finite"
    return {
        "name": name,
        "x": np.arange(rows).tolist() if kept is None else kept.tolist(),
        "series": [to_list(one) for one in shown.T],
        "thinned": kept is not None,
        "discrete": column.np_dtype.kind in "biu" or name == "reward",
        "words": words,
    }
