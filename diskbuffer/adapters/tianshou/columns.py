"""Which columns of a store hold which keys of Tianshou's batches, and the way between the two."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tianshou.data import Batch

from diskbuffer import Column
from diskbuffer.adapters import column_names
from diskbuffer.adapters.place_column import OURS, SLOT
from diskbuffer.errors import InputError
from diskbuffer.plugin import KEPT, escape_key, is_observation, unescape_key

Array = npt.NDArray[Any]

TOP = {"obs": "obs", "act": "action", "rew": "reward", "obs_next": "next_obs"}  # arguments of `add` by key
FLAGS = ("terminated", "truncated")
NEEDED = (*TOP, *FLAGS)
EXTRA = ("info", "policy")  # keys that are always there, and may be empty
_KEYS = {"obs": "obs", "action": "act", "info": "info", "policy": "policy"}  # of columns, or of what is nested below them
_TAKEN = ("action", *EXTRA)


def columns_of(step: Mapping[str, Any], axes: int) -> dict[str, Column]:
    """Return what a store is made with, for such a step, which has so many axes before those of a single one."""
    values = {TOP.get(key, key): step[key] for key in ("obs", "act", "rew", *EXTRA) if key in step}
    arrays = {path: array for name, value in values.items() for path, array in _leaves(name, value)}
    columns = {path: Column(array.shape[axes:], array.dtype.name, allow_nan=True) for path, array in arrays.items()}
    reward = Column(columns["reward"].shape, "float64", allow_nan=True)
    return columns | {"reward": reward, SLOT: Column((), "int64")}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(value, Batch | dict):
        for key, inner in value.items():
            yield from _leaves(f"{path}/{escape_key(str(key))}", inner)
        return
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.dtype.kind in "biufc":
        yield path, array
    elif path.split("/")[0] in EXTRA:
        warnings.warn(f"{path} is not stored: it has {array.dtype}, and Zarr holds numbers", stacklevel=7)
    else:
        raise InputError(
            f"{path}: expected numbers, found {array.dtype}; Zarr holds no objects. Leave it out, or give a number in its place: "
            "env.agents.index(agent_id) for the name of an agent"
        )


def arguments(step: Mapping[str, Any], extra: Mapping[str, Column], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return a step as arguments of `add`; zeros where one of the `extra` columns is missing, which have so many steps."""
    values = {name: _plain(step[key]) for key, name in TOP.items()} | {flag: step[flag] for flag in FLAGS}
    if getattr(values["reward"], "dtype", None) == np.float32:  # the core takes 20 us to convert it, this 1
        values["reward"] = values["reward"].astype(np.float64)
    for path, column in extra.items():
        try:
            values[path] = functools.reduce(lambda values, name: values[unescape_key(name)], path.split("/"), step)
        except KeyError:
            values[path] = np.zeros((*shape, *column.shape), column.np_dtype)
    return values


def _plain(value: Any) -> Any:
    """Return dicts for Batches; for arrays, without asking Tianshou's class, which takes microseconds."""
    if value.__class__ is np.ndarray or not isinstance(value, Batch | dict):
        return value
    return {key: _plain(inner) for key, inner in value.items()}


@functools.lru_cache(maxsize=256)
def to_read(columns: tuple[str, ...], keys: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[tuple[tuple[str, ...], ...], ...]]:
    """Return which columns to read for some keys, or for all but rewards and flags, and where each array is and belongs.

    The first is where it is in a batch of the store's, the second in one of Tianshou's.
    """
    paths, moves = [], list[tuple[tuple[str, ...], ...]]()
    for path in columns:
        first, *below = map(unescape_key, path.split("/"))
        if path in (*OURS, *KEPT, "reward"):
            continue
        key = _KEYS.get(first) or column_names.key_of(path, *_TAKEN)
        for name, to in ((first, key), *([("next_obs", "obs_next")] if is_observation(path) else [])):
            if not keys or to in keys:
                paths.append(path)
                moves.append(((name, *below), (to, *below)))
    return tuple(dict.fromkeys(paths)), tuple(moves)


def moved(batch: Any, moves: tuple[tuple[tuple[str, ...], ...], ...]) -> dict[str, Any]:
    """Return the arrays of a batch of the store's, by Tianshou's keys."""
    arrays: dict[str, Any] = {}
    for source, target in moves:
        values, into = batch, arrays
        for part in source:
            values = values[part]
        for part in target[:-1]:
            into = into.setdefault(part, {})
        into[target[-1]] = values
    return {key: Batch(values) if values.__class__ is dict else values for key, values in arrays.items()}


def written_as(key: str) -> str:
    """Return the name of the column of a key that is written later."""
    return column_names.column_of(key, *_TAKEN)
