"""Columns: what a row holds. From Gymnasium spaces, and to and from a store's attributes."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.integers import MOST, integer, shown
from diskbuffer.errors import InputError, SchemaError
from diskbuffer.schema.transforms import Greyscale, Resize, Transforms, check_shape, notation, transforms_of

if TYPE_CHECKING:
    import gymnasium

RESERVED_NAMES = (
    "steps",
    "next_obs",
    "mask",
    "discount",
    "weights",
    "is_first",
    "relabelled",
    "part",
    "self",
    "info",
    "env",
    "new_episode",
)
CHECKSUM = "row_checksum"
TAG = "tag"  # the column of tags
_EMPTY = "%"
_PLAIN = {*string.ascii_letters, *string.digits, "_", "-"}  # in a column's path, beside what identifiers have
_SIZES = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64), "complex": (64, 128)}
_CODEC = re.compile(r"none|lz4|(lz4hc|zstd):[1-9]|webp:([1-9][0-9]?|100)")
_WEBP_PIXELS = 16383  # of a side, the most that WebP has
_DTYPES = ("bool", *(f"{kind}{size}" for kind, sizes in _SIZES.items() for size in sizes))  # that both Zarr and torch hold


def _shape(shape: Any) -> tuple[int, ...]:
    try:
        return tuple(integer("an axis", n, -MOST) for n in (shape if isinstance(shape, tuple | list) else (shape,)))
    except InputError:
        raise SchemaError(f"a column's shape must be a tuple of integers, found {shown(shape)}") from None


@dataclass(frozen=True)
class Column:
    """Describe one array of the store: what each of its rows holds.

    Parameters
    ----------
    shape : tuple of int
        Shape of one row (of one frame, for stacked observations); ``()`` for a scalar.
    dtype : dtype-like
        Boolean, integer, floating or complex. Stored little-endian.
    allow_nan : bool
        Whether NaN and infinity may be stored. Refused by default: in a replay buffer they are found long after they came.
    codec : str, optional
        How rows of 1 KiB and more are compressed: ``"none"``, ``"lz4"``, ``"lz4hc:1"`` to ``"lz4hc:9"``, ``"zstd:1"`` to
        ``"zstd:9"``; with one of these, items of several bytes are shuffled by byte. By default that is chosen from the data,
        among ways to write LZ4. ``"webp:1"`` to ``"webp:100"``, with a loss: each picture is a WebP file of that quality, from
        when it leaves the tail. For pictures of a camera in columns of observations, ``(height, width, 3)`` of uint8; takes
        Pillow, ``diskbuffer[webp]``. The codec is fixed when the store is created; opening it again, it may be left out. Columns
        are equal whatever their codecs and transforms.
    transform : Greyscale, Resize, or tuple of them
        What pictures become before they are stored, by `add`, by `extend` and when they are imported: ``Column((84, 84), "uint8",
        transform=(Greyscale(), Resize(84, 84)))``. `shape` is that of what is stored. Pictures may be given in any size that
        these bring to it, or as they are stored. For columns of observations, of uint8. Fixed when the store is created.
    on_request : bool
        Whether batches have it only where ``columns=`` names it, as priorities are. Fixed when the column is made.
    """

    shape: tuple[int, ...] = ()
    dtype: npt.DTypeLike = "float32"
    allow_nan: bool = False
    codec: str | None = field(default=None, compare=False)
    transform: Greyscale | Resize | Transforms = field(default=(), compare=False)
    on_request: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self.shape))
        if self.codec is not None and not (isinstance(self.codec, str) and _CODEC.fullmatch(self.codec)):
            raise SchemaError(
                f"a column's codec must be 'none', 'lz4', 'lz4hc:1' to 'lz4hc:9', 'zstd:1' to 'zstd:9', 'webp:1' to 'webp:100', "
                f"or None to have it chosen from the data, found {self.codec!r}"
            )
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise SchemaError(f"a column's dtype must be one that numpy knows, found {self.dtype!r}") from error
        object.__setattr__(self, "dtype", dtype.newbyteorder("=") if dtype.name in _DTYPES else dtype)
        if dtype.name not in _DTYPES:
            raise SchemaError(f"a column's dtype must be one of {', '.join(_DTYPES)}, found {dtype}")
        if len(self.shape) > 16 or self.row_bytes > 2**30:
            raise SchemaError(f"a column's rows have 16 axes and 1 GiB at most, found shape {self.shape} of {dtype}")
        if any(n < 1 for n in self.shape):
            raise SchemaError(f"every axis of a column must be at least 1 long, found shape {self.shape}")
        if self.is_lossy and (dtype != np.uint8 or len(self.shape) != 3 or self.shape[2] != 3 or max(self.shape) > _WEBP_PIXELS):
            raise SchemaError(
                f"the codec {self.codec!r} is for pictures, (height, width, 3) of uint8, with {_WEBP_PIXELS:,} pixels a side at "
                f"most, found {self.shape} of {dtype}"
            )
        object.__setattr__(self, "transform", transforms_of(self.transform))
        check_shape(self.transforms, self.shape, self.np_dtype.name)

    @cached_property
    def np_dtype(self) -> np.dtype[Any]:
        """The dtype, as numpy's."""
        return np.dtype(self.dtype)

    @property
    def is_lossy(self) -> bool:
        """Whether the codec does not bring back the very values that were given."""
        return self.codec is not None and self.codec.startswith("webp:")

    @property
    def transforms(self) -> Transforms:
        """What pictures become, in the order in which it is applied."""
        return transforms_of(self.transform)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row, uncompressed."""
        return math.prod(self.shape) * self.np_dtype.itemsize

    def __str__(self) -> str:
        codec = f" ({self.codec})" if self.codec else ""
        transform = f" ({notation(self.transforms)})" if self.transform else ""
        return f"{self.np_dtype.name}{list(self.shape)}{' (NaN allowed)' if self.allow_nan else ''}{codec}{transform}"


FLAGS = ("terminated", "truncated", "is_last")
BUILT_IN = dict.fromkeys(FLAGS, Column((), "bool")) | {CHECKSUM: Column((3,), "uint32")}  # part of every store
KEPT = ("is_last", CHECKSUM)  # which are written by the buffer itself, and not part of batches


@dataclass(frozen=True)
class Schema:
    """All columns of a store by path, nested ones as ``"obs/pixels"``.

    A row is one observation and what happened there. Columns under ``obs`` have a value in every row; all others belong to
    a step, so that the last row of an episode, which has no step, holds zeros in them.

    Attributes
    ----------
    columns : mapping of str to Column
    derived : frozenset of str
        Columns that were not recorded, but computed from others later: priorities, advantages. They come last.
    """

    columns: Mapping[str, Column] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for path, column in self.columns.items():
            if not isinstance(path, str) or len(path) > 200:
                raise SchemaError(f"a column's name must be a string of 200 characters at most, found {str(path)[:300]!r}")
            parts = path.split("/")
            if "" in parts:
                raise SchemaError(f"a column's name, and a key of a dict, must not be empty, found {path!r}")
            if not all(map(is_part, parts)):
                raise SchemaError(
                    f"a column's name must be an identifier without a leading underscore, found {path!r}; other characters "
                    "are written as %20"
                )
            if len(parts) > 1 and any("/".join(parts[:n]) in self.columns for n in range(1, len(parts))):
                raise SchemaError(f"column {path!r} lies inside another column")
            if parts[0] in RESERVED_NAMES and not path.startswith("info/"):  # which `extend` takes
                raise SchemaError(f"{parts[0]!r} is a name that batches or `add` use for something else; give the column another")
            if not isinstance(column, Column):
                raise SchemaError(f"column {path!r} must be a diskbuffer.Column, found {type(column).__name__}")
            if column.transform and not is_observation(path):
                raise SchemaError(
                    f"column {path!r} has a transform, and only columns of observations (obs, obs/...) can have one"
                )
            if column.is_lossy and not is_observation(path):
                raise SchemaError(
                    f"column {path!r} has the codec {column.codec!r}, which only columns of observations (obs, obs/...) can have"
                )
        for path in self.derived:
            if path in BUILT_IN or is_observation(path) or path.split("/")[0] == "reward":
                raise SchemaError(f"column {path!r} is recorded with the steps, and cannot be one that is written later")
        if not any(path.split("/")[0] == "reward" for path in self.columns):
            raise SchemaError("a store has a column 'reward'")
        for name, column in BUILT_IN.items():
            if self.columns.get(name) != column:
                raise SchemaError(f"column {name!r} is part of every store and must be {column}, found {self.columns.get(name)}")

    @classmethod
    def of(cls, columns: Mapping[str, Column], extra: Mapping[str, Column] | None = None) -> Schema:
        """Build a schema from a user's columns: reward and flags are added where they are missing."""
        for name in extra or {}:
            if name in columns or name in BUILT_IN or is_observation(str(name)):
                raise SchemaError(f"extra column {name!r} stands for a column that the store has anyway")
        base: dict[str, Column] = {**columns}
        base.setdefault("reward", Column((), "float32"))
        for name, column in BUILT_IN.items():
            base.setdefault(name, column)
        return cls({**base, **(extra or {})})

    @classmethod
    def from_spaces(
        cls,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        extra: Mapping[str, Column] | None = None,
    ) -> Schema:
        """Build the schema of one environment (not a vector) from its two spaces."""
        return cls.of({**_space_columns("obs", observation_space), **_space_columns("action", action_space)}, extra)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, path: str) -> Column:
        return self.columns[path]

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def recorded(self) -> Schema:
        """The columns that every step is recorded with."""
        return Schema({path: column for path, column in self.columns.items() if path not in self.derived})

    def with_derived(self, name: str, column: Column) -> Schema:
        """Return a schema with one more column; a SchemaError where its name is none."""
        if "/" in name:
            raise SchemaError(f"a column that is written later cannot be nested, found {name!r}")
        return Schema({**self.columns, name: column}, self.derived | {name})

    def without_derived(self, name: str) -> Schema:
        """Return a schema without a column that was written later."""
        return Schema({path: column for path, column in self.columns.items() if path != name}, self.derived - {name})

    @cached_property
    def obs(self) -> tuple[str, ...]:
        """Paths of the observation's columns."""
        return tuple(path for path in self.columns if is_observation(path))

    @cached_property
    def step(self) -> tuple[str, ...]:
        """Paths of the columns that belong to a step, the buffer's own bookkeeping apart."""
        return tuple(path for path in self.columns if not is_observation(path) and path not in KEPT)

    def to_attributes(self) -> dict[str, Any]:
        """Describe the columns in JSON."""
        return {
            path: {"shape": list(c.shape), "dtype": c.np_dtype.name, "allow_nan": c.allow_nan, "derived": path in self.derived}
            | ({"codec": c.codec} if c.codec else {})
            | ({"transform": notation(c.transforms)} if c.transform else {})
            | ({"on_request": True} if c.on_request else {})
            for path, c in self.columns.items()
        }

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Schema:
        """Read what `to_attributes` wrote; a SchemaError where it cannot be that."""
        try:
            derived = frozenset(path for path, a in attributes.items() if a["derived"])
            return cls({path: _column_of(a) for path, a in attributes.items()}, derived)
        except (KeyError, TypeError, AttributeError) as error:
            raise SchemaError(f"the store's description of its columns is damaged: {error!r}") from error

    def difference(self, other: Schema) -> str:
        """Show, a line each, the columns in which `other` (what was asked for) differs from this (what is stored)."""
        lines = []
        for path in dict.fromkeys([*self.columns, *other.columns]):
            stored, requested = self.columns.get(path), other.columns.get(path)
            if stored != requested:
                lines.append(f"  {path}: stored {stored or 'nothing'}, asked for {requested or 'nothing'}")
        return "\n".join(lines)


def _column_of(a: Mapping[str, Any]) -> Column:
    transform = a.get("transform")
    transforms = () if transform is None else tuple(str(transform).split(","))
    kept = bool(a.get("on_request", False))
    return Column(tuple(a["shape"]), str(a["dtype"]), bool(a["allow_nan"]), a.get("codec"), transforms_of(transforms), kept)


def escape_key(key: str) -> str:
    """Return a key of a dict as a part of a column's path: as it is, where that is a name, else with %20 for what is none.

    The empty key is ``"%"``, which no other becomes.
    """
    if key.isidentifier() and not key.startswith("_"):
        return key
    if not key:
        return _EMPTY
    quoted = "".join(c if c in _PLAIN else "".join(f"%{byte:02X}" for byte in c.encode(errors="surrogatepass")) for c in key)
    return f"%5F{quoted[1:]}" if quoted.startswith("_") else quoted


def unescape_key(part: str) -> str:
    """Return the key that a part of a column's path stands for."""
    if part == _EMPTY:
        return ""
    if "%" not in part:
        return part
    try:
        return unquote(part, errors="surrogatepass")
    except UnicodeDecodeError:  # of a damaged file, or a stranger's: `escape_key` does not write it
        return unquote(part)


def is_part(name: str) -> bool:
    """Return whether a name is one that `escape_key` gives to some key."""
    return escape_key(unescape_key(name)) == name


def is_observation(path: str) -> bool:
    """Return whether a column is part of the observation."""
    return path == "obs" or path.startswith("obs/")


def _space_columns(name: str, space: gymnasium.Space[Any]) -> dict[str, Column]:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        columns: dict[str, Column] = {}
        for key, inner in space.spaces.items():
            columns.update(_space_columns(f"{name}/{escape_key(str(key))}", inner))
        return columns
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return {name: Column(tuple(space.shape or ()), space.dtype)}
    raise SchemaError(
        f"{name} has the space {space}, and columns are made of Box, Discrete, MultiDiscrete, MultiBinary and Dict. "
        "Wrap the environment (gymnasium.wrappers.TransformObservation), or describe columns yourself with columns="
    )
