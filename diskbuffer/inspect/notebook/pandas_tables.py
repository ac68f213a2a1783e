"""Tables for pandas: of episodes, and of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.plugin import TAG, EpisodeColumns, EpisodeReader, is_observation, require

if TYPE_CHECKING:
    import pandas

_FEW = 32  # components of a column that is in a table without being asked for
_MOST = 2**12  # components of one that is asked for
_AT_ONCE = 2**12  # steps that are read in one call


def of_episodes(source: EpisodeReader, episodes: EpisodeColumns, returns: bool) -> pandas.DataFrame:
    """Return a row for each episode; see `Episodes.to_pandas`."""
    pd = _pandas()
    columns: dict[str, Any] = {"stream": episodes.stream, "start": episodes.start, "length": episodes.length}
    if returns:
        columns |= _components("returns", source.sum_rewards(episodes))
    columns |= {"ending": pd.Categorical(episodes.ending.astype(object)), "tag": episodes.tag.astype(object)}
    for name, value in source.values(episodes.id).items():
        columns[name] = value.shown
        if value.kind == "text" or not (value.given.all() or columns[name].dtype.kind == "f"):
            columns[name] = np.array(value.listed(), object)
            columns[name][~value.given] = None
    table: pandas.DataFrame = pd.DataFrame(columns, pd.Index(episodes.id, name="episode"))
    return table


def of_steps(source: EpisodeReader, episodes: EpisodeColumns, columns: Sequence[str] | None) -> pandas.DataFrame:
    """Return a row for each step; see `Episodes.to_pandas`."""
    pd = _pandas()
    known = {path: column for path, column in source.columns.items() if path != TAG}  # which is a number: episodes have its name
    sizes = {path: math.prod(_shape_of(source, path)) for path in known}
    paths = [path for path in known if sizes[path] <= _FEW] if columns is None else columns
    for path in paths:
        if path not in known:
            raise InputError(f"there is no column {path!r}; there are {', '.join(known)}")
        if sizes[path] > _MOST:
            raise InputError(
                f"column {path!r} has {sizes[path]:,} numbers a step, and a table takes {_MOST:,} at most; "
                "buffer.at(steps, columns=...) reads it"
            )
    numbers = np.repeat(np.arange(len(episodes)), episodes.length)
    within = np.arange(len(numbers)) - (np.cumsum(episodes.length) - episodes.length)[numbers]
    steps, evicted = episodes.start[numbers] + within * source.streams, source.elapsed(episodes.start)
    if (evicted < 0).any():
        raise InputError(f"episode {episodes.id[evicted < 0][0]} was evicted since, at least in part; take buffer.episodes anew")
    values: dict[str, Any] = {"episode": episodes.id[numbers], "stream": episodes.stream[numbers], "t": evicted[numbers] + within}
    for path in paths:
        parts = [source.steps(path, steps[n : n + _AT_ONCE]) for n in range(0, max(1, len(steps)), _AT_ONCE)]
        values |= _components(f"{path}_" if path in ("episode", "stream", "t") else path, np.concatenate(parts))
    table: pandas.DataFrame = pd.DataFrame(values, pd.Index(steps, name="step"))
    return table


def _shape_of(source: EpisodeReader, path: str) -> tuple[int, ...]:
    """Return the shape of a column's value of one step, as batches have it."""
    shape = source.columns[path].shape
    return (source.frame_stack, *shape) if is_observation(path) and source.frame_stack > 1 else shape


def _components(name: str, values: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return an array as columns of a table: one for each component."""
    if values.ndim == 1:
        return {name: values}
    places = np.ndindex(*values.shape[1:])
    return {f"{name}[{','.join(map(str, place))}]": values[(slice(None), *place)] for place in places}


def _pandas() -> Any:
    return require("pandas", "pandas", "notebook", "to make a table of it")
