"""Checking what users give: shapes, dtypes, values. Everything is checked before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import as_array
from diskbuffer.errors import InputError
from diskbuffer.native.recording import round_to_float32
from diskbuffer.schema.schema import Column

Array = npt.NDArray[Any]


def check_names(columns: Mapping[str, Any], expected: Collection[str]) -> None:
    """Refuse columns that the store has not, and missing ones."""
    for path in columns:
        if path not in expected:
            raise InputError(
                f"unknown column {path!r}; expected {', '.join(map(repr, expected)) or 'none'}. Declare others when creating "
                "the buffer, with extra= or columns="
            )
    missing = [path for path in expected if path not in columns]
    if missing:
        raise InputError(f"missing column {', '.join(map(repr, missing))}; every step has a value in each column")


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of what may be an array; that of a scalar for what is ragged, which `fit` refuses."""
    try:
        return np.shape(value)
    except ValueError:
        return ()


def fit(path: str, column: Column, value: Any, shapes: tuple[tuple[int, ...], ...]) -> Array:
    """Return `value` as a contiguous array of the column's dtype and the first of `shapes`.

    Other `shapes` are accepted where they hold the same number of values. An InputError where the shape is none of them, a
    value does not fit the dtype, or is not finite where the column forbids it.
    """
    dtype = column.np_dtype
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{path}: expected an array of shape {shapes[0]}, found something ragged: {error}") from error
    except (RuntimeError, TypeError):  # a tensor that requires grad, or on a GPU
        array = as_array(path, value)
    if array.shape not in shapes:
        expected = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise InputError(f"{path}: expected shape {expected}, found {array.shape}")
    array = bools(array) if array.dtype == dtype else convert(path, dtype, array)
    if dtype.kind in "fc" and not column.allow_nan and not np.isfinite(array).all():
        refuse_nonfinite(path)
    return np.ascontiguousarray(array).reshape(shapes[0])


def refuse_nonfinite(path: str) -> NoReturn:
    """Raise the InputError for NaN or infinity in a column that may not have them."""
    raise InputError(
        f"{path}: found NaN or infinity, which this column does not allow",
        advice="Find where it comes from, or declare the column with Column(..., allow_nan=True)",
    )


def bools(array: Array) -> Array:
    """Return an array of which truth values are bytes of 0 or 1, as code that counts or compares bytes takes them to be.

    In a view of other memory, such as a mask of bytes of 255, any byte but 0 is true.
    """
    return array.view(np.uint8) != 0 if array.dtype == np.bool_ else array


def convert(path: str, dtype: np.dtype[Any], array: Array) -> Array:
    """Change the dtype where every value can be held; floats may be rounded, but not to infinity."""
    if array.dtype.kind not in "biufc":
        raise InputError(f"{path}: expected {dtype.name}, found {array.dtype}")
    if np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    if array.dtype == np.float64 and dtype == np.float32:
        rounded, all_fit = round_to_float32(np.ascontiguousarray(array, np.float64).ravel())
        if all_fit:
            return rounded.reshape(array.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(dtype) if dtype.kind == "c" or array.dtype.kind != "c" else array.real.astype(dtype)
    if (dtype.kind in "fc" and array.dtype.kind != "c") or dtype.kind == "c":
        fits = np.isfinite(converted) | ~np.isfinite(array)
    else:
        fits = converted == array
        if dtype.kind in "iu" and array.dtype.kind == "f":  # 2**63 as a float becomes the least int64, or stays
            info = np.iinfo(dtype)
            fits &= (array >= float(info.min)) & (array < float(info.max) + 1)
        elif dtype.kind in "iu" and array.dtype.kind in "iu":
            fits &= (converted < 0) == (array < 0)
    if not np.all(fits):
        bad = array[~fits].flat[0] if array.ndim else array[()]
        raise InputError(f"{path}: the value {bad} ({array.dtype.name}) does not fit {dtype.name}")
    return converted


def flags(name: str, value: Any, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Return a flag, or one for each step, as an array of a shape."""
    flags = np.asarray(value)
    if flags.dtype != np.bool_ or flags.shape not in ((), shape):
        each = shape[0] if len(shape) == 1 else shape
        raise InputError(f"{name} must be None, True or False, or {each} of these, found {flags.dtype} of shape {flags.shape}")
    return np.array(np.broadcast_to(bools(flags), shape))
