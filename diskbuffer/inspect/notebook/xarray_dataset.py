"""A buffer as a data set of xarray, with named dimensions and episodes; it reads what is indexed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diskbuffer.errors import InputError
from diskbuffer.inspect.notebook.step_list import StepList, read_steps, shape_of
from diskbuffer.inspect.pictures import picture_kind
from diskbuffer.plugin import TAG, EpisodeColumns, EpisodeReader, is_observation, require

if TYPE_CHECKING:
    import xarray

_STEP, _FRAME = "step", "frame"
_COORDINATES = (_STEP, "episode", "stream", "t", "ending", "tag")


def of_steps(source: EpisodeReader, episodes: EpisodeColumns, dims: Mapping[str, Sequence[str]]) -> xarray.Dataset:
    """Return a data set of steps; see `Episodes.to_xarray`."""
    xr = require("xarray", "xarray", "notebook", "to make a data set of it")
    from xarray.core.indexing import LazilyIndexedArray

    from diskbuffer.inspect.notebook.lazy_array import LazyArray, Read

    steps = StepList.of(source, episodes)

    def lazy(shape: tuple[int, ...], dtype: np.dtype[Any], read: Read) -> Any:
        return LazilyIndexedArray(LazyArray((len(steps), *shape), dtype, read))

    numbered = {
        "episode": (np.dtype(np.int64), lambda places: episodes.id[steps.episode(places)]),
        "stream": (np.dtype(np.int64), lambda places: episodes.stream[steps.episode(places)]),
        "t": (np.dtype(np.int64), steps.elapsed),
        "ending": (episodes.ending.dtype, lambda places: episodes.ending[steps.episode(places)]),
        "tag": (episodes.tag.dtype, lambda places: episodes.tag[steps.episode(places)]),
    }
    coordinates: dict[str, Any] = {_STEP: steps.names(np.arange(len(steps)))}
    coordinates |= {name: (_STEP, lazy((), dtype, read)) for name, (dtype, read) in numbered.items()}
    named, variables = _named(source, dims), {}
    for path, column in source.columns.items():
        if path == TAG:
            continue  # numbers of what the coordinate has by name
        for following in (False, True) if is_observation(path) else (False,):
            read = functools.partial(read_steps, source, path, steps, following=following)
            name = f"next_{path}" if following else path
            name = f"{name}_" if name in (*_COORDINATES, _FRAME) else name
            array = lazy(shape_of(source, path), column.np_dtype, read)
            variables[name] = xr.Variable((_STEP, *named[path]), array, {"dtype_on_disk": column.np_dtype.name})
    attributes = {"path": source.origin["path"], "frame_stack": source.frame_stack}
    found: xarray.Dataset = xr.Dataset(variables, coordinates, attributes)
    return found


def _named(source: EpisodeReader, dims: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the names of each column's dimensions after the first."""
    for path in dims:
        if path not in source.columns:
            raise InputError(f"dims= names a column {path!r}; there are {', '.join(source.columns)}")
    sizes: dict[str, int] = {_FRAME: source.frame_stack}
    found: dict[str, tuple[str, ...]] = {}
    for path, column in sorted(source.columns.items(), key=lambda item: item[0] not in dims):  # those that are given come first
        names: list[str] = []
        for name, size in zip(_declared(path, column.shape, dims) or _usual(path, column), column.shape, strict=True):
            taken = name in (*names, *_COORDINATES, *source.columns) or sizes.get(name, size) != size
            if taken and path in dims:
                raise InputError(
                    f"dims= calls an axis of {path!r} {name!r}, which is something else already; give it another name"
                )
            names.append(f"{path}_{name}" if taken else name)
            sizes[names[-1]] = size
        stacked = is_observation(path) and source.frame_stack > 1
        found[path] = (_FRAME, *names) if stacked else tuple(names)
    return found


def _declared(path: str, shape: tuple[int, ...], dims: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    if path not in dims:
        return None
    names = tuple(dims[path])
    if isinstance(dims[path], str) or len(names) != len(shape) or not all(isinstance(name, str) for name in names):
        raise InputError(f"dims= must name {len(shape)} axes of {path!r}, whose shape is {shape}, found {dims[path]!r}")
    return names


def _usual(path: str, column: Any) -> tuple[str, ...]:
    """Return what the axes are called where nothing is given."""
    kind = picture_kind(column.shape, column.np_dtype)
    if kind is None:
        return tuple(f"{path}_{axis}" for axis in range(len(column.shape)))
    names = ["height", "width"]
    if kind.axis is not None:
        names.insert(kind.axis, "channel")
    return tuple(names)
