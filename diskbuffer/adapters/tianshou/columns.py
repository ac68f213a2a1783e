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
from diskbuffer.plugin import escape_key, unescape_key

Array = npt.NDArray[Any]

TOP = {"obs": "obs", "act": "action", "rew": "reward"}  # columns of a key, or above what is nested below it
MINE = ("info", "policy")  # keys that are always there, and may be empty
FLAGS = ("terminated", "truncated")
_OTHERS = "more"  # above the columns of other keys
_TAKEN = (*TOP.values(), *MINE, _OTHERS)


def flatten(batch: Mapping[str, Any]) -> dict[str, Array]:
    """Return the columns of steps, (n, ...), by path; those of ``obs_next`` are ``next_obs``. Flags are left out."""
    found: dict[str, Array] = {}
    for key, value in batch.items():
        if key in (*FLAGS, "done"):
            continue
        if key == "obs_next":
            path = "next_obs"
        else:
            path = TOP.get(key) or (key if key in MINE and has_keys(value) else f"{_OTHERS}/{escape_key(key)}")
        found.update(_leaves(path, value, needed=key not in MINE))
    return found


def _leaves(path: str, value: Any, *, needed: bool) -> Iterator[tuple[str, Array]]:
    if has_keys(value):
        for key, inner in value.items():
            yield from _leaves(f"{path}/{escape_key(str(key))}", inner, needed=needed)
        return
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.dtype.kind in "biufc" and array.ndim:
        yield path, array
    elif needed:
        raise InputError(f"{path}: expected numbers, found {array.dtype}; Zarr holds no objects")
    elif array.dtype.kind not in "biufc":
        warnings.warn(f"{path} is not stored: it has {array.dtype}, and Zarr holds numbers", stacklevel=6)


def has_keys(value: Any) -> bool:
    """Tell whether something is a Batch or a dict; for arrays, without asking Tianshou's class, which takes microseconds."""
    return value.__class__ is not np.ndarray and isinstance(value, Batch | dict)


def as_one(batch: Any) -> Any:
    """Return a step as a batch of one, as ``Batch.stack([batch])`` does in ten times the time."""
    found = Batch()
    for key, value in batch.items():
        if has_keys(value):
            found.__dict__[key] = as_one(value)
        else:
            found.__dict__[key] = value[None] if isinstance(value, np.ndarray | torch.Tensor) else np.asarray(value)[None]
    return found


def columns_of(found: Mapping[str, Array]) -> dict[str, Column]:
    """Return what a store is made with, for such steps."""
    columns = {path: Column(a.shape[1:], a.dtype.name, allow_nan=True) for path, a in found.items() if not _is_next(path)}
    reward = found["reward"]
    return columns | {"reward": Column(reward.shape[1:], "float64", allow_nan=True), SLOT: Column((), "int64")}


def _is_next(path: str) -> bool:
    return path.split("/")[0] == "next_obs"


def given(found: Mapping[str, Array], columns: Mapping[str, Column]) -> dict[str, Array]:
    """Return what a buffer is given of steps: in the dtypes of the store; zeros where an info is missing."""
    n, rows = len(found["reward"]), {}
    for path, column in columns.items():
        if path in OURS:
            continue
        for name in (path, "next_" + path) if path.split("/")[0] == "obs" else (path,):
            if name not in found and path.split("/")[0] not in (*MINE, _OTHERS):
                raise InputError(f"{name}: missing in this batch, and earlier ones had it")
            values = found.get(name)
            rows[name] = np.zeros((n, *column.shape), column.np_dtype) if values is None else _cast(name, values, column.np_dtype)
    return rows


def _cast(name: str, values: Array, dtype: Any) -> Array:
    """Return values in another dtype; an InputError where they would be other values, beyond rounding."""
    found = values.astype(dtype)
    if not np.can_cast(values.dtype, dtype, "same_kind") and not np.array_equal(found, values):
        raise InputError(f"{name}: the store has {dtype}, in which these {values.dtype} would be other values; give another path")
    return found


@functools.cache
def key_of(path: str) -> str:
    """Return the key of a batch that a column is of, or below."""
    first, *rest = path.split("/")
    if first == _OTHERS:
        return unescape_key(rest[0])
    return next((key for key, top in TOP.items() if top == first), first if rest else column_names.key_of(first, *_TAKEN))


def written_as(key: str) -> str:
    """Return the name of the column of a key that is written later."""
    return column_names.column_of(key, *_TAKEN)


@functools.cache
def nested(path: str) -> tuple[str, ...]:
    """Return where below its key a column is; () where it is the key's alone."""
    parts = path.split("/")
    return tuple(map(unescape_key, parts[2 if parts[0] == _OTHERS else 1 :]))


def put_together(values: Mapping[tuple[str, ...], Any]) -> Any:
    """Return one array, or a Batch of those that are nested."""
    if () in values:
        return values[()]
    tree: dict[str, Any] = {}
    for where, value in values.items():
        inner = tree
        for part in where[:-1]:
            inner = inner.setdefault(part, {})
        inner[where[-1]] = value
    return Batch(tree)
