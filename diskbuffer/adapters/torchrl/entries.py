"""Which columns of a store hold which entries of a tensordict, and the way between the two."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase, is_leaf_nontensor, is_non_tensor, unravel_key

from diskbuffer import Column
from diskbuffer.adapters import column_names
from diskbuffer.adapters.frame_stacks import Frames, padding, recognise
from diskbuffer.adapters.place_column import OURS, SLOT
from diskbuffer.errors import InputError, SchemaError
from diskbuffer.plugin import Batch, escape_key, unescape_key

Array = npt.NDArray[Any]
Key = tuple[str, ...]

NEXT = "next"
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
    def of(cls, data: Any, ndim: int, frame_stack: int | None) -> Entries:
        """Find them in steps, (n, ...), of which the first begins an episode."""
        found = dict(leaves(data))
        lanes = tuple(next(iter(found.values())).shape[1:ndim])
        entries = []
        for key, values in found.items():
            if key[:1] == (NEXT,) and key[1:] in found and _alike(found[key[1:]], values):
                continue
            shape, after = tuple(values.shape[ndim:]), found.get((NEXT, *key))
            frames, paired = Frames(shape, _dtype(key, values)), False
            if isinstance(after, torch.Tensor) and _alike(values, after):
                paired = True
                if len(shape) >= 2:
                    before, following = (array[:1].cpu().reshape(-1, *shape).numpy() for array in (values, after))
                    frames = recognise(shape, frames.dtype, before, following, frame_stack)
            entries.append(Entry(key, paired, frames))
        pictures = [entry.frames for entry in entries if entry.is_picture]
        stacks = {frames.stack for frames in pictures}
        told_by_columns = all(frames == _told_by(frames.column, max(stacks)) for frames in pictures)
        if not told_by_columns:  # which is all that `stored` has
            entries, stacks = [replace(e, frames=Frames(e.frames.shape, e.frames.dtype)) for e in entries], {1}
        if frame_stack and max(stacks, default=1) != frame_stack:
            raise InputError(
                f"frame_stack={frame_stack} is of pictures with two axes or more, in stacks along their first axis, the same for "
                f"all, and there are {[(entry.key, entry.frames.shape) for entry in entries]}. Leave it out, or give 1, to store "
                "them whole"
            )
        return cls(tuple(entries), lanes, max(stacks, default=1))

    @classmethod
    def stored(cls, columns: Mapping[str, Column], lanes: tuple[int, ...], stack: int) -> Entries:
        """Find them in a store's columns."""
        entries = []
        for path, column in columns.items():
            if path in OURS or path == NOTHING or (path == "reward" and not column.shape and column.np_dtype == np.bool_):
                continue
            key, paired = key_of(path)
            entries.append(Entry(key, paired, _told_by(column, stack if paired else 1)))
        return cls(tuple(entries), lanes, stack)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def find(self, key: Key) -> tuple[Entry, str] | None:
        """Return what holds an entry, and whether as "obs" or as "next_obs", as `nested` has it."""
        for entry in self.entries:
            if entry.key == key:
                return entry, "obs"
            if entry.paired and (NEXT, *entry.key) == key:
                return entry, "next_obs"
        return None

    @property
    def columns(self) -> dict[str, Column]:
        """What the store is made with, beside what every store has."""
        found = {entry.path: entry.frames.column for entry in self.entries}
        if not any(entry.paired for entry in self.entries):
            found[NOTHING] = Column((), "bool")
        return {"reward": Column((), "bool")} | found | {SLOT: Column((), "int64")}

    def padding(self, data: Any) -> str:
        """Tell what an episode's first stack is filled up with, by steps of which the first begins one."""
        for entry in self.entries:
            if entry.frames.stack > 1:
                first = dict(leaves(data))[entry.key][:1].cpu().reshape(-1, *entry.frames.shape).numpy()
                return padding(entry.frames.split(first))
        return "first"

    def rows(self, data: Any, n: int) -> dict[str, Any]:
        """Return what `ReplayBuffer.extend` is given, with an axis of lanes, (n, lanes, ...), behind that of steps."""
        found, n_lanes = dict(leaves(data)), math.prod(self.lanes)
        missing = [e.key for e in self.entries if e.key not in found or (e.paired and (NEXT, *e.key) not in found)]
        known = {e.key for e in self.entries} | {(NEXT, *e.key) for e in self.entries if e.paired}
        if missing or found.keys() - known:
            new = sorted(found.keys() - known) or "none"
            raise InputError(
                f"a storage holds the same entries of every step; missing are {missing or 'none'}, and new are {new}"
            )

        def array(key: Key, frames: Frames) -> Array:
            values = found[key]
            feature = tuple(values.shape[len(values.shape) - len(frames.shape) :])
            if (
                _dtype(key, values) != frames.dtype
                or feature != frames.shape
                or values.numel() != n * n_lanes * math.prod(feature)
            ):
                lanes = "" if not self.lanes else f", of {' x '.join(map(str, self.lanes))} environments as in the first step"
                raise InputError(
                    f"{key}: expected {frames.dtype} of shape {(n, *self.lanes, *frames.shape)}{lanes}, found "
                    f"{tuple(values.shape)} of {_dtype(key, values)}"
                )
            return values.detach().cpu().reshape(n * n_lanes, *frames.shape).numpy()

        def apart(values: Array) -> Array:
            return values.reshape(n, n_lanes, *values.shape[1:])

        rows: dict[str, Any] = {"reward": np.zeros((n, n_lanes), np.bool_), "obs": {}, "next_obs": {}}
        for entry in self.entries:
            if entry.paired:
                put(rows["obs"], entry.key, apart(entry.frames.split(array(entry.key, entry.frames))))
                put(rows["next_obs"], entry.key, apart(entry.frames.split(array((NEXT, *entry.key), entry.frames))))
            else:
                rows[entry.path] = apart(array(entry.key, entry.frames))
        if not rows["obs"]:
            rows["obs"] = rows["next_obs"] = np.zeros((n, n_lanes), np.bool_)
        return rows | self._flags(found, n, n_lanes)

    @staticmethod
    def _flags(found: Mapping[Key, torch.Tensor], n: int, n_lanes: int) -> dict[str, Array]:
        flags: dict[str, Array] = {}
        for name in ("terminated", "truncated", "done"):
            values = found.get((NEXT, name))
            flat = np.zeros((n, n_lanes, 1), np.bool_)
            if isinstance(values, torch.Tensor):
                flat = values.cpu().numpy().reshape(n, n_lanes, -1)
            flags[name] = np.asarray(flat.any(axis=2))
        done = flags.pop("done")
        if (NEXT, "terminated") not in found:
            flags["terminated"] = done & ~flags["truncated"]
        elif (NEXT, "truncated") not in found:
            flags["truncated"] = done & ~flags["terminated"]
        return flags

    def nested(self, values: Callable[[Entry, str], Any]) -> dict[str, Any]:
        """Put ``values(entry, "obs" or "next_obs")`` where a tensordict has them; dicts are what is nested."""
        tree: dict[str, Any] = {}
        for entry in self.entries:
            put(tree, entry.key, values(entry, "obs"))
            if entry.paired:
                put(tree, (NEXT, *entry.key), values(entry, "next_obs"))
        return tree

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(entry.path for entry in self.entries)

    @cached_property
    def numbers(self) -> tuple[str, ...]:
        """Those of a number, or a flag, a step."""
        return tuple(entry.path for entry in self.entries if entry.is_number)


def _told_by(column: Column, stack: int) -> Frames:
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


def leaves(data: TensorDictBase) -> Iterator[tuple[Key, torch.Tensor]]:
    """Yield the entries of a tensordict; an InputError where one is no tensor."""
    for key, value in data.items(True, True, is_leaf=is_leaf_nontensor):
        if not isinstance(value, torch.Tensor):
            kind = type(value.data if is_non_tensor(value) else value).__name__
            raise InputError(
                f"expected tensors, found a {kind} at {key!r}; leave it out, as by steps.exclude(...), or make a tensor of it, "
                "such as a number for each of a few strings"
            )
        yield as_tuple(key), value


def as_tensordict(data: Any) -> TensorDictBase:
    """Return a tensordict, or a list of them stacked; an InputError where it is something else."""
    if isinstance(data, list) and data and all(isinstance(step, TensorDictBase) for step in data):
        return torch.stack(data)
    if not isinstance(data, TensorDictBase):
        raise InputError(
            f"a DiskStorage holds tensordicts, found {type(data).__name__}; make one, as by TensorDict({{'x': x}}, [n]), or "
            "steps.to_tensordict() of a tensorclass"
        )
    return data


def put(tree: dict[str, Any], key: Key, value: Any) -> None:
    """Put a value into nested dicts."""
    for part in key[:-1]:
        tree = tree.setdefault(part, {})
    tree[key[-1]] = value


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
