"""Which columns of a store hold which entries of a tensordict, and the way between the two."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection, unravel_key

from diskbuffer import Column
from diskbuffer.adapters import column_names
from diskbuffer.adapters.frame_stacks import STORED_WHOLE, Frames, do_roll, look_stacked, padding
from diskbuffer.adapters.place_column import OURS
from diskbuffer.errors import InputError, SchemaError, StackError
from diskbuffer.plugin import Batch, escape_key, is_observation, unescape_key

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Key = tuple[str, ...]

NEXT = "next"
_INDEX = ("index",)
NOTHING = "obs"  # the observation of what has none
_REWARD = (NEXT, "reward")


def column_of(key: Key, *, paired: bool) -> str:
    """Return the path of the column for an entry; `paired` if there is one below "next", too, of which it is the observation."""
    if paired:
        return "/".join(["obs", *map(escape_key, key)])
    if key == _REWARD:
        return "reward"
    first, *rest = key
    return "/".join([column_names.column_of(first), *map(escape_key, rest)])


def key_of(path: str) -> tuple[Key, bool]:
    """Return the entry that a column holds, and whether it is one of a pair."""
    if path == "reward":
        return _REWARD, False
    first, *rest = path.split("/")
    below = tuple(map(unescape_key, rest))
    return (below, True) if first == "obs" else ((column_names.key_of(first), *below), False)


def as_entries(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows of columns, or of their masks, below "mask/", as entries of a tensordict, nested."""
    tree: dict[str, Any] = {}
    for path, values in rows.items():
        key, _ = key_of(path.removeprefix("mask/"))
        put(tree, ("mask", *key) if path.startswith("mask/") else key, torch.as_tensor(values))
    return tree


@dataclass(frozen=True)
class Entry:
    """One entry, and its column.

    Attributes
    ----------
    key : tuple of str
        Where a tensordict has it.
    paired : bool
        Whether ``("next", *key)`` is what follows it: stored once, unless an episode ends.
    frames : Frames
        What it is made of.
    """

    key: Key
    paired: bool
    frames: Frames

    @property
    def is_picture(self) -> bool:
        """Whether it could be a stack of frames."""
        return self.paired and len(self.frames.shape) >= 2

    @property
    def is_number(self) -> bool:
        """Whether it is a number, or a flag, of which a column is looked at as a whole."""
        return math.prod(self.frames.shape) == 1 and self.frames.dtype.kind in "biu"

    @cached_property
    def path(self) -> str:
        """The column's."""
        return column_of(self.key, paired=self.paired)

    @cached_property
    def _below(self) -> tuple[str, ...]:
        """Where its values are in a batch, below "obs" or "next_obs" where it is paired."""
        return tuple(map(unescape_key, self.path.split("/")[self.paired :]))

    def taken(self, batch: Batch, at: str, stack: int) -> torch.Tensor:
        """Return its values out of a batch; `at` is "obs" or "next_obs" where it is paired. `stack` is the store's."""
        values: Any = batch[at] if self.paired else batch
        for name in self._below:
            values = values[name]
        if not self.paired or stack == 1:
            return values  # type: ignore[no-any-return]
        return self.frames.join(values) if self.frames.stack > 1 else values[:, -1]


class _Expected(NamedTuple):
    """What there is of an entry of a step: its frames, as tensors of a dtype, and their place among the arguments of `extend`."""

    frames: Frames
    dtype: torch.dtype
    place: Key


@dataclass(frozen=True)
class Entries:
    """All entries of what a storage holds.

    Attributes
    ----------
    entries : tuple of Entry
    lanes : tuple of int
        The storage's other axes: environments side by side.
    stack : int
        Frames in the stacks among them, which are all observations with two axes or more; 1 if there are none.
    """

    entries: tuple[Entry, ...]
    lanes: tuple[int, ...]
    stack: int = 1

    @classmethod
    def of(cls, data: Any, ndim: int, stack: int) -> Entries:
        """Find them in steps, (n, ...); an InputError or a StackError where the pictures among them are no such stacks."""
        tensors = dict(leaves(data))
        entries = []
        for key, values in tensors.items():
            if key[:1] == (NEXT,) and key[1:] in tensors and _alike(tensors[key[1:]], values):
                continue
            paired = (NEXT, *key) in tensors and _alike(values, tensors[NEXT, *key])
            if key == _REWARD and values.shape == data.shape[:ndim] and values.dtype == torch.bool:
                raise InputError("a reward that is a flag cannot be stored: make it a number, as by .float(), or give it an axis")
            entries.append(Entry(key, paired, Frames(tuple(values.shape[ndim:]), _dtype(key, values))))
        shapes = {entry.key: entry.frames.shape for entry in entries if entry.is_picture}
        if stack > 1:
            entries = [_stacked(entry, tensors, stack) if entry.is_picture else entry for entry in entries]
            if not shapes or any(entry.frames != _frames_of(entry.frames.column, stack) for entry in entries if entry.is_picture):
                raise InputError(
                    f"frame_stack={stack} is of pictures, in stacks along their first axis, the same for all, and there are "
                    f"{shapes or 'none'}. Leave it out to store them whole"
                )
        for shape in {entry.frames.shape for entry in entries if look_stacked(entry.frames.shape, entry.frames.dtype)}:
            if stack == 1:
                warnings.warn(STORED_WHOLE.format(shape=shape), stacklevel=5)
        return cls(tuple(entries), tuple(next(iter(tensors.values())).shape[1:ndim]), stack)

    @classmethod
    def stored(cls, columns: Mapping[str, Column], lanes: tuple[int, ...], stack: int) -> Entries:
        """Find them in a store's columns."""
        entries = []
        for path, column in columns.items():
            if (
                path in OURS
                or path == NOTHING
                or column.on_request
                or (path == "reward" and not column.shape and column.np_dtype == np.bool_)
            ):
                continue
            key, paired = key_of(path)
            entries.append(Entry(key, paired, _frames_of(column, stack if paired else 1)))
        return cls(tuple(entries), lanes, stack)

    @classmethod
    def sampled(cls, batch: Mapping[str, torch.Tensor], stack: int) -> Entries:
        """Find them in a batch of steps, by the path of each value."""
        columns = {}
        for path, values in batch.items():
            frame = values.shape[1 + (stack > 1 and is_observation(path)) :]
            columns[path] = Column(tuple(frame), _dtype((path,), values).name)
        return cls.stored(columns, (), stack)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def columns(self) -> dict[str, Column]:
        """What the store is made with, beside what every store has."""
        columns = {entry.path: entry.frames.column for entry in self.entries}
        if not any(entry.paired for entry in self.entries):
            columns[NOTHING] = Column((), "bool")
        return {"reward": Column((), "bool")} | columns

    def padding(self, data: Any) -> str:
        """Return what an episode's first stack is filled up with, by steps of which the first begins one."""
        for entry in self.entries:
            if entry.frames.stack > 1:
                first = dict(leaves(data))[entry.key][:1].cpu().reshape(-1, *entry.frames.shape).numpy()
                return padding(entry.frames.split(first))
        return "first"

    @cached_property
    def _expected(self) -> dict[Key, _Expected]:
        """What there is of each entry of a step, those below "next", too."""
        expected: dict[Key, _Expected] = {}
        for entry in self.entries:
            like = torch.from_numpy(np.empty(0, entry.frames.dtype)).dtype
            name, *below = entry.path.split("/")
            for key, first in ((entry.key, name), ((NEXT, *entry.key), "next_" + name))[: 1 + entry.paired]:
                expected[key] = _Expected(entry.frames, like, (first, *map(unescape_key, below)))
        return expected

    def rows(self, data: Any, places: Int64) -> dict[str, Any]:
        """Return what `ReplayBuffer.extend` is given for the steps of places, (n,): tensors' own memory where it can be.

        An InputError where they have other entries than the first steps had.
        """
        tensors, expected = dict(leaves(data)), self._expected
        if _INDEX not in expected:
            tensors.pop(_INDEX, None)  # which TorchRL's writers add
        elif _INDEX not in tensors:
            shape = (len(places), *self.lanes, *expected[_INDEX].frames.shape)
            tensors[_INDEX] = torch.from_numpy(places).reshape(-1, *(1,) * (len(shape) - 1)).expand(shape)
        if tensors.keys() != expected.keys():
            missing, new = expected.keys() - tensors.keys(), sorted(tensors.keys() - expected.keys())
            raise InputError(
                f"a storage holds the same entries of every step; missing are {sorted(missing) or 'none'}, and new are "
                f"{new or 'none'}"
            )
        n_lanes = math.prod(self.lanes)
        axes = (len(places),) if n_lanes == 1 else (len(places), n_lanes)
        arrays = {key: self._array(key, tensors[key], axes, one) for key, one in expected.items()}
        nothing = np.zeros(axes, np.bool_)
        rows: dict[str, Any] = {"reward": nothing}
        for key, (frames, _, place) in expected.items():
            values = arrays[key]
            if frames.stack > 1:
                stacks = frames.split(values.reshape(-1, *frames.shape))
                values = stacks.reshape(*axes, *stacks.shape[1:])
            put(rows, place, values)
        rows |= _flags(arrays, axes)
        if "obs" not in rows:
            rows["obs"] = rows["next_obs"] = nothing
        return rows

    def _array(self, key: Key, values: torch.Tensor, axes: tuple[int, ...], expected: _Expected) -> Array:
        """Return the values of an entry, (*axes, ...)."""
        shape, dtype = expected.frames.shape, expected.dtype
        if values.shape == (*axes, *shape) and values.dtype == dtype:  # most are, again and again
            return values.numpy(force=True)
        feature = tuple(values.shape[values.ndim - len(shape) :])
        if values.dtype != dtype or feature != shape or values.numel() != math.prod(axes) * math.prod(shape):
            lanes = f", of {' x '.join(map(str, self.lanes))} environments as in the first step" if self.lanes else ""
            raise InputError(
                f"{key}: expected {dtype} of shape {(axes[0], *self.lanes, *shape)}{lanes}, found {tuple(values.shape)} of "
                f"{values.dtype}"
            )
        return values.numpy(force=True).reshape(*axes, *shape)

    def nested(self, values: Callable[[Entry, str], Any]) -> dict[str, Any]:
        """Put ``values(entry, "obs" or "next_obs")`` where a tensordict has them; dicts are what is nested."""
        tree: dict[str, Any] = {}
        for entry in self.entries:
            put(tree, entry.key, values(entry, "obs"))
            if entry.paired:
                put(tree, (NEXT, *entry.key), values(entry, "next_obs"))
        return tree


def _stacked(entry: Entry, tensors: Mapping[Key, torch.Tensor], stack: int) -> Entry:
    """Return an entry of stacks; a StackError where the first of them is not followed by what it is moved on by a frame."""
    shape = entry.frames.shape
    if shape[0] % stack:
        return entry
    frames = Frames(shape, entry.frames.dtype, stack)
    first, after = (frames.split(tensors[key][:1].cpu().reshape(-1, *shape).numpy()) for key in (entry.key, (NEXT, *entry.key)))
    if not do_roll(first, after):
        raise StackError(f"{entry.key}: of shape {shape}, these are not rolling stacks of {stack} frames; leave frame_stack= out")
    return replace(entry, frames=frames)


def _frames_of(column: Column, stack: int) -> Frames:
    """Return what a column of observations holds, in a store of such stacks."""
    shape = column.shape
    if stack == 1 or len(shape) < 2:
        return Frames(shape, column.np_dtype)
    channels, rest = (shape[0], shape[1:]) if len(shape) == 3 else (1, shape)
    return Frames((stack * channels, *rest), column.np_dtype, stack)


def as_tuple(key: Any) -> Key:
    """Return a key as tensordicts take it, "a" or ("a", ("b",)), as a flat tuple."""
    flat = unravel_key(key)
    return flat if isinstance(flat, tuple) else (flat,)


def leaves(data: TensorDictBase, above: Key = ()) -> Iterator[tuple[Key, torch.Tensor]]:
    """Yield the entries of a tensordict; an InputError where one is no tensor."""
    for name, value in data.items():
        key = (*above, name)
        if isinstance(value, torch.Tensor):
            yield key, value
        elif is_tensor_collection(value) and not is_non_tensor(value):
            yield from leaves(value, key)
        else:
            kind = type(value.data if is_non_tensor(value) else value).__name__
            raise InputError(
                f"expected tensors, found a {kind} at {key!r}; leave it out, as by steps.exclude(...), or make a tensor of it, "
                "such as a number for each of a few strings"
            )


def as_tensordict(data: Any) -> TensorDictBase:
    """Return a tensordict, or a list of them stacked; an InputError where it is something else."""
    if isinstance(data, list) and data and all(isinstance(step, TensorDictBase) for step in data):
        return torch.stack(data)
    if not isinstance(data, TensorDictBase):
        raise InputError(
            f"expected tensordicts, found {type(data).__name__}; make one, as by TensorDict({{'x': x}}, [n]), or "
            "steps.to_tensordict() of a tensorclass"
        )
    return data


def put(tree: dict[str, Any], key: Key, value: Any) -> None:
    """Put a value into nested dicts."""
    for part in key[:-1]:
        tree = tree.setdefault(part, {})
    tree[key[-1]] = value


def _flags(arrays: Mapping[Key, Array], axes: tuple[int, ...]) -> dict[str, Array]:
    """Return what ended in which way: an entry may have several flags a step, and "done" alone may tell."""
    flags = {}
    for name in ("terminated", "truncated", "done"):
        if (NEXT, name) in arrays:
            several = arrays[NEXT, name].reshape(*axes, -1)
            flags[name] = several[..., 0] if several.shape[-1] == 1 else np.asarray(several.any(axis=-1))
    nothing = np.zeros(axes, np.bool_)
    done = flags.pop("done", nothing)
    if "terminated" not in flags:
        flags["terminated"] = done & ~flags.get("truncated", nothing)
    if "truncated" not in flags:
        flags["truncated"] = done & ~flags["terminated"]
    return flags


def _alike(one: Any, other: torch.Tensor) -> bool:
    return isinstance(one, torch.Tensor) and one.shape == other.shape and one.dtype == other.dtype


@cache
def _numpys(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


def _dtype(key: Key, values: torch.Tensor) -> np.dtype[Any]:
    try:
        return _numpys(values.dtype)
    except TypeError:
        raise SchemaError(f"{key}: {values.dtype} is no dtype that Zarr holds; convert it, to torch.float32 for one") from None
