"""Features of a LeRobot data set, each of which is a column of a store."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import SchemaError, SourceError
from diskbuffer.formats.lerobot.names import COUNTED, DONE, TERMINATED, TRUNCATED, column_paths, feature_names
from diskbuffer.formats.lerobot.pixels import Pixels
from diskbuffer.plugin import FLAGS

_MOST_AXES = 5  # of an array, as LeRobot has them
# What numbers of other dtypes are written as: those of data sets that LeRobot records, which viewers know. LeRobot's loader makes
# int64 of all integers, and float32 of all floats.
_WRITTEN = {
    **{"int8": "int16", "uint8": "int16", "uint16": "int64", "int32": "int64", "uint32": "int64", "uint64": "int64"},
    **{"float16": "float32", "complex64": "float32", "complex128": "float64"},
}


@dataclass(frozen=True)
class Feature:
    """A feature, and the column that it is.

    Attributes
    ----------
    name : str
        As LeRobot has it: "observation.state".
    path : str
        The column's: "obs/state".
    column : Column
    dtype : str
        As LeRobot has it: "video", "image", or that of numbers.
    shape : tuple of int
        Of a row, as LeRobot has it; (1,) for a scalar.
    pixels : Pixels or None
        How its rows are pictures.
    """

    name: str
    path: str
    column: Column
    dtype: str
    shape: tuple[int, ...]
    pixels: Pixels | None = None

    def numbers(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return rows of the column, (n, ...), as numbers of LeRobot's shape."""
        plain = np.ascontiguousarray(rows)
        if self.column.np_dtype.kind == "c":
            plain = plain[..., None].view(self.dtype)
        return plain.astype(self.dtype, copy=False).reshape(len(rows), *self.shape)

    def rows(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return numbers of LeRobot's shape, (n, ...), as rows of the column; a SourceError where they do not fit its dtype."""
        dtype = self.column.np_dtype
        if dtype.kind == "c":
            values = np.ascontiguousarray(numbers).reshape(len(numbers), -1).view(dtype)
        else:
            values = numbers.astype(dtype, copy=False)
            if dtype.kind in "iu" and not np.array_equal(values.astype(self.dtype), numbers):
                raise SourceError(
                    f"{self.name!r} has numbers that are no {dtype}, and info.json says that its column is {self.column}"
                )
        return values.reshape(len(numbers), *self.column.shape)

    def described(self) -> dict[str, Any]:
        """Describe it as in info.json."""
        names = ["height", "width", "channels"] if self.pixels else None
        return {"dtype": self.dtype, "shape": list(self.shape), "names": names}


# To write


def planned(columns: Mapping[str, Column], pictures: str) -> list[Feature]:
    """Return the features that columns become; those that are pictures are of the dtype `pictures`: "video" or "image"."""
    pixels = {path: kind for path, column in columns.items() if (kind := Pixels.of(path, column)) is not None}
    names = feature_names([path for path in columns if path not in FLAGS], pixels)
    return [
        Feature(name, path, columns[path], pictures, _picture_shape(pixels[path], pictures), pixels[path])
        if path in pixels
        else _of_numbers(name, path, columns[path])
        for path, name in names.items()
    ]


def _picture_shape(pixels: Pixels, pictures: str) -> tuple[int, ...]:
    return (pixels.height, pixels.width, 1 if pixels.grey and pictures == "image" else 3)  # every decoder makes RGB of a video


def _of_numbers(name: str, path: str, column: Column) -> Feature:
    dtype, shape = _written(column), column.shape
    if column.np_dtype.kind == "c":
        shape = (*shape, 2)
    if len(shape) > _MOST_AXES:
        shape = (math.prod(shape),)
    return Feature(name, path, column, dtype, shape or (1,))


def _written(column: Column) -> str:
    name = column.np_dtype.name
    return _WRITTEN.get(name, name)


# To read


def column_features(
    features: Mapping[str, Any], own: Mapping[str, Any], timestamps: bool, done: str
) -> tuple[list[Feature], list[str]]:
    """Return the features of a data set that become columns, and the names of those that cannot.

    Parameters
    ----------
    features : mapping
        What info.json says of each.
    own : mapping
        What we wrote of the columns when we made the data set; empty if we did not.
    timestamps : bool
        Whether the feature "timestamp" is to be a column.
    done : str
        Where this is "column", `next.done` becomes a column, and is no flag.
    """
    apart = {*COUNTED, TERMINATED, TRUNCATED, *([] if done == "column" else [DONE])} - ({"timestamp"} if timestamps else set())
    names = [name for name in features if name not in apart]
    paths = column_paths(names)
    columns, left = [], []
    for name in names:
        dtype, shape = _declared(name, features[name])
        if dtype in ("video", "image"):
            height, width, channels = _sides(name, shape, features[name].get("names"))
            column, pixels = _picture(name, height, width, channels, own.get(name))
            columns.append(Feature(name, _own_path(own.get(name)) or paths[name], column, dtype, shape, pixels))
        elif (number := _number(dtype)) is None:
            left.append(name)
        else:
            mine = own.get(name)
            column = _column(name, mine) if mine is not None else _plain_column(name, shape, number)
            feature = Feature(name, _own_path(mine) or paths[name], column, number, shape or (1,))
            size = math.prod(column.shape) * (2 if column.np_dtype.kind == "c" else 1)
            if size != math.prod(feature.shape) or (mine is not None and _written(column) != number):
                raise SourceError(f"info.json: {name!r} is {dtype}{list(shape)}, and does not fit its column, {column}")
            columns.append(feature)
    for path, times in Counter(one.path for one in columns).items():
        if times > 1:
            several = ", ".join(repr(one.name) for one in columns if one.path == path)
            raise SourceError(f"info.json: {several} are the same column {path!r}, as diskbuffer noted there")
    return columns, left


def _declared(name: str, feature: Any) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and the shape of a feature."""
    if not isinstance(feature, dict) or not isinstance(feature.get("dtype"), str) or not isinstance(feature.get("shape"), list):
        raise SourceError(f"info.json: the feature {name!r} must have a dtype and a shape, found {str(feature)[:200]}")
    shape = feature["shape"]
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n < 2**31 for n in shape) or len(shape) > 16:
        raise SourceError(f"info.json: the shape of {name!r} must be a few positive integers, found {str(shape)[:200]}")
    return feature["dtype"], tuple(shape)


def _number(dtype: str) -> str | None:
    """Return a dtype of numbers that a column can have; None where it is none."""
    try:
        return Column((), dtype).np_dtype.name
    except SchemaError:
        return None


def _sides(name: str, shape: tuple[int, ...], names: Any) -> tuple[int, int, int]:
    """Return the height, the width and the channels of pictures."""
    if len(shape) != 3:
        raise SourceError(f"info.json: the pictures {name!r} must have a shape of three numbers, found {list(shape)}")
    named = isinstance(names, list) and len(names) == 3 and all(isinstance(one, str) for one in names)
    first = named and names[0].startswith("channel")
    last = named and names[2].startswith("channel")
    if first or (not last and shape[0] in (1, 3) and shape[2] not in (1, 3)):
        channels, height, width = shape
    else:
        height, width, channels = shape
    if channels not in (1, 3):
        raise SourceError(f"info.json: the pictures {name!r} must be grey or RGB, found {list(shape)}")
    return height, width, channels


def _picture(name: str, height: int, width: int, channels: int, own: Any) -> tuple[Column, Pixels]:
    if own is None:
        pixels = Pixels(height, width, channels == 1, 2)
        return _plain_column(name, pixels.row_shape, "uint8"), pixels
    column = _column(name, own)
    for axis in (None, 0, 2):
        for grey in (True, False) if channels == 3 else (True,):
            pixels = Pixels(height, width, grey, axis)
            if (axis is not None or grey) and column.np_dtype == np.uint8 and pixels.row_shape == column.shape:
                return column, pixels
    raise SourceError(f"info.json: {name!r} has pictures of {height} x {width}, which do not fit its column, {column}")


def _column(name: str, own: Any) -> Column:
    try:
        return Column(tuple(own["shape"]), str(own["dtype"]), bool(own["allow_nan"]), own.get("codec"))
    except (KeyError, TypeError, AttributeError, SchemaError) as error:
        raise SourceError(f"info.json: what we wrote of the column {name!r} is damaged: {error!r}") from error


def _plain_column(name: str, shape: tuple[int, ...], dtype: str) -> Column:
    try:
        return Column(() if shape in ((), (1,)) else shape, dtype)
    except SchemaError as error:
        raise SourceError(f"info.json: {name!r} cannot be a column ({error})") from error


def _own_path(own: Any) -> str | None:
    if own is None:
        return None
    if not isinstance(own, dict) or not isinstance(own.get("path"), str):
        raise SourceError(f"info.json: what we wrote of a column is damaged: {str(own)[:200]}")
    return str(own["path"])
