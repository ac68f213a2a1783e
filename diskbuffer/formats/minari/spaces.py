"""Spaces as Minari serialises them: to columns, from columns, and small enough for a store's metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import SchemaError, SourceError
from diskbuffer.plugin import as_numbers, escape_key, unescape_key

Space = Mapping[str, Any]
_LEVELS = 32
_ARRAYS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")


@dataclass(frozen=True)
class Leaf:
    """A part of a space that is no Dict and no Tuple.

    Attributes
    ----------
    path : str
        Its column's path: "obs/camera"; of a Tuple's first part "obs/0".
    keys : tuple of str
        Keys of dicts, and numbers of tuples.
    in_tuple : tuple of bool
        Of each key, whether it is a tuple's number.
    space : mapping
        The part of the space.
    """

    path: str
    keys: tuple[str, ...]
    in_tuple: tuple[bool, ...]
    space: Space

    @property
    def kind(self) -> str:
        """What it is: "Box"."""
        return str(self.space["type"])

    @property
    def hdf5_keys(self) -> tuple[str, ...]:
        """The keys, as groups of Minari's HDF5 layout are called."""
        return tuple(f"_index_{key}" if is_number else key for key, is_number in zip(self.keys, self.in_tuple, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value."""
        return _shape_of(self.space)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a value."""
        return np.dtype("int8" if self.kind == "MultiBinary" else self.space.get("dtype", "int64"))

    @property
    def is_image(self) -> bool:
        """Whether Minari may have written it as JPEG."""
        if self.kind != "Box" or len(self.shape) not in (2, 3) or min(self.shape[:2]) < 32 or self.dtype != np.uint8:
            return False
        return bool(np.all(np.asarray(self.space["low"]) == 0) and np.all(np.asarray(self.space["high"]) == 255))


def parse(text: Any, what: str) -> Space:
    """Return a space from Minari's JSON; a SourceError where it is none."""
    try:
        space = json.loads(text) if isinstance(text, str) else text
        _check(space, _LEVELS)
        describe(space)  # which asks for all that is used later
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise SourceError(f"{what} is no space as Minari writes them: {error!r}") from error
    assert isinstance(space, Mapping)
    return space


def _check(space: Any, levels: int) -> None:
    if levels == 0:
        raise ValueError("it is nested too deeply")
    kind = space["type"]
    if kind in ("Dict", "Tuple"):
        inner = space["subspaces"]
        for part in inner.values() if kind == "Dict" else list(inner):
            _check(part, levels - 1)
    elif kind in _ARRAYS:
        Column(_shape_of(space), "int8" if kind == "MultiBinary" else space.get("dtype", "int64"))
        if kind == "Box":
            space["low"], space["high"], space["dtype"]
    elif not isinstance(kind, str):
        raise ValueError(f"its type is {kind!r}")


def _shape_of(space: Space) -> tuple[int, ...]:
    if space["type"] == "Box":
        return tuple(int(n) for n in space["shape"])
    if space["type"] == "MultiDiscrete":
        return np.shape(space["nvec"])
    if space["type"] == "MultiBinary":
        return tuple(int(n) for n in space["n"]) if isinstance(space["n"], Sequence) else (int(space["n"]),)
    return ()


def leaves(space: Space, root: str) -> list[Leaf]:
    """Return the parts of a space, those that cannot be columns (Text) among them."""
    return list(_leaves(space, root, (), ()))


def _leaves(space: Space, path: str, keys: tuple[str, ...], in_tuple: tuple[bool, ...]) -> Iterator[Leaf]:
    if space["type"] == "Dict":
        for key, inner in space["subspaces"].items():
            yield from _leaves(inner, f"{path}/{escape_key(str(key))}", (*keys, str(key)), (*in_tuple, False))
    elif space["type"] == "Tuple":
        for number, inner in enumerate(space["subspaces"]):
            yield from _leaves(inner, f"{path}/{number}", (*keys, str(number)), (*in_tuple, True))
    else:
        yield Leaf(path, keys, in_tuple, space)


def is_column(leaf: Leaf) -> bool:
    """Return whether a part of a space can be a column."""
    return leaf.kind in _ARRAYS


# Bounds, which are most of a large space


def compact(space: Space) -> dict[str, Any]:
    """Return a space with one number in place of bounds that are all the same."""
    return _with_bounds(space, lambda bound, _: _one(bound))


def expand(space: Space) -> dict[str, Any]:
    """Return a space as Minari writes it, with all of its bounds."""
    return _with_bounds(space, _all)


def _with_bounds(space: Space, changed: Callable[[Any, tuple[int, ...]], Any]) -> dict[str, Any]:
    if space["type"] == "Dict":
        return {**space, "subspaces": {key: _with_bounds(inner, changed) for key, inner in space["subspaces"].items()}}
    if space["type"] == "Tuple":
        return {**space, "subspaces": [_with_bounds(inner, changed) for inner in space["subspaces"]]}
    if space["type"] == "Box":
        return {**space, **{name: changed(space[name], _shape_of(space)) for name in ("low", "high")}}
    return dict(space)


def _one(bound: Any) -> Any:
    values = np.asarray(bound, dtype=object).ravel()
    same = values.size and all(type(value) is type(values[0]) and value == values[0] for value in values)
    return values[0] if same else bound


def _all(bound: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(bound, list) or not shape:
        return bound
    for n in reversed(shape):
        bound = [bound] * n
    return bound


# What a store says of its environment


def describe(space: Space) -> dict[str, Any]:
    """Return what a store says of a space, as `diskbuffer.schema.environment.describe` has it."""
    kind = space["type"]
    if kind == "Dict":
        return {"kind": kind, "spaces": {str(key): describe(inner) for key, inner in space["subspaces"].items()}}
    if kind == "Discrete":
        return {"kind": kind, "n": int(space["n"]), "start": int(space.get("start", 0))}
    if kind == "MultiDiscrete":
        return {"kind": kind, "nvec": as_numbers(space["nvec"]), "start": as_numbers(space.get("start", 0))}
    if kind == "MultiBinary":
        return {"kind": kind, "shape": list(_shape_of(space))}
    if kind == "Box":
        dtype = np.dtype(space["dtype"])
        low, high = (as_numbers(np.asarray(space[name], dtype)) for name in ("low", "high"))
        return {"kind": kind, "shape": list(_shape_of(space)), "dtype": dtype.name, "low": low, "high": high}
    return {"kind": str(kind)}


def from_description(described: Any, columns: Mapping[str, Column], path: str) -> dict[str, Any] | None:
    """Return the space that a store's description and its columns are of; None where they do not fit together."""
    try:
        return _from_description(described, columns, path)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SchemaError):
        return None


def _from_description(described: Any, columns: Mapping[str, Column], path: str) -> dict[str, Any]:
    kind = described["kind"]
    if kind == "Dict":
        inner = {key: _from_description(part, columns, f"{path}/{escape_key(key)}") for key, part in described["spaces"].items()}
        return {"type": "Dict", "subspaces": inner}
    column = columns[path]
    if kind == "Discrete" and not column.shape and column.np_dtype == np.int64:
        return {"type": kind, "dtype": "int64", "start": int(described["start"]), "n": int(described["n"])}
    if kind == "MultiDiscrete":
        nvec, start = (_bound(described[name], column) for name in ("nvec", "start"))
        return {"type": kind, "dtype": column.np_dtype.name, "nvec": nvec.tolist(), "start": start.tolist()}
    if kind == "MultiBinary" and column.np_dtype == np.int8:
        return {"type": kind, "n": column.shape[0] if len(column.shape) == 1 else list(column.shape)}
    if kind != "Box" or np.dtype(described["dtype"]) != column.np_dtype:
        raise ValueError(kind)
    return _box(column, _bound(described["low"], column, np.min), _bound(described["high"], column, np.max))


def _bound(bound: Any, column: Column, extreme: Any = None) -> npt.NDArray[Any]:
    """Return a bound of each component, from what was described: nested lists, one number, or (as `extreme`) the extremes."""
    if isinstance(bound, Mapping):
        if extreme is None:
            raise ValueError("it is not all there")
        bound = extreme([float(bound["from"]), float(bound["to"])])
    values = np.asarray(bound)
    values = (values.astype(float) if values.dtype.kind == "U" else values).astype(column.np_dtype)
    if values.ndim == len(column.shape) + 1:  # of a stack of frames, of which single ones are in the columns
        values = values[-1]
    return np.broadcast_to(values, column.shape)


def from_columns(columns: Mapping[str, Column], path: str) -> dict[str, Any]:
    """Return the widest space that columns can be of."""
    if path in columns:
        column = columns[path]
        dtype = column.np_dtype
        if dtype.kind == "f":
            low, high = -math.inf, math.inf
        elif dtype.kind == "b":
            low, high = 0, 1
        else:
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return _box(column, np.full(column.shape, low, dtype), np.full(column.shape, high, dtype))
    inner = dict.fromkeys(name[len(path) + 1 :].split("/")[0] for name in columns if name.startswith(f"{path}/"))
    return {"type": "Dict", "subspaces": {unescape_key(part): from_columns(columns, f"{path}/{part}") for part in inner}}


def _box(column: Column, low: npt.NDArray[Any], high: npt.NDArray[Any]) -> dict[str, Any]:
    name, shape = column.np_dtype.name, list(column.shape)
    return {"type": "Box", "dtype": name, "shape": shape, "low": low.tolist(), "high": high.tolist()}
