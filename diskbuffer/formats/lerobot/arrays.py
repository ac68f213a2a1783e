"""Rows of numbers as Arrow's arrays, and the other way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.formats.arrow import as_numpy
from diskbuffer.plugin import require


def pyarrow(module: str = "pyarrow") -> Any:
    """Return pyarrow, or a module of it."""
    return require(module, "pyarrow", "lerobot", "LeRobot's format")


def arrow_type(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return the type that LeRobot has rows of a shape in: a number, a list of a fixed size, or lists of lists."""
    pa = pyarrow()
    inner = pa.from_numpy_dtype(np.dtype(dtype))
    if shape == (1,):
        return inner
    if len(shape) == 1:
        return pa.list_(inner, shape[0])
    for _ in shape:
        inner = pa.list_(inner)
    return inner


def to_arrow(values: npt.NDArray[Any]) -> Any:
    """Return rows, (n, ...), as an array of `arrow_type`."""
    pa = pyarrow()
    array, shape = pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1:]
    if shape == (1,):
        return array
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(array, shape[0])
    for axis in range(len(shape) - 1, -1, -1):
        count = len(values) * math.prod(shape[:axis])
        array = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * shape[axis]), array)
    return array


def from_arrow(array: Any, dtype: str, shape: tuple[int, ...], what: str) -> npt.NDArray[Any]:
    """Return an array of `arrow_type`, or of other kinds of lists, as rows, (n, *shape); a SourceError where it is none."""
    pa = pyarrow()
    values, lists = array, () if shape == (1,) else shape
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    for size in lists:
        fixed = pa.types.is_fixed_size_list(values.type)
        if not (fixed or pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
            raise SourceError(f"{what}: expected {dtype}{list(shape)}, found {array.type}")
        lengths = values.type.list_size if fixed else np.diff(as_numpy(values.offsets))  # `pyarrow.compute.equal` imports pandas
        if values.null_count or np.any(lengths != size):
            raise SourceError(f"{what}: expected {dtype}{list(shape)} in every row, found rows of other lengths")
        values = values.flatten()
    if values.null_count:
        raise SourceError(f"{what}: expected {dtype}{list(shape)} in every row, found rows without a value")
    expected = pa.from_numpy_dtype(np.dtype(dtype))
    if values.type != expected:
        kind = values.type
        try:
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
                raise pa.ArrowInvalid("no numbers")
            values = values.cast(expected)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SourceError(f"{what}: expected {dtype}, found {array.type}, which is not the same ({error})") from error
    return as_numpy(values).astype(dtype, copy=False).reshape(len(array), *shape)
