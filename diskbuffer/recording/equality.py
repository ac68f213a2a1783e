"""Whether values in memory are the same, or of a kind: numbers, not bytes, so that 0.0 is -0.0, and NaN is NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import memcmp
from diskbuffer.native.memory import load_i64, load_u8, load_u32, store_u8


def float_bytes(dtype: np.dtype[Any]) -> int:
    """Return the bytes of a floating-point number of a dtype, of which a complex one has two; 0 for others."""
    return {"f": dtype.itemsize, "c": dtype.itemsize // 2}.get(dtype.kind, 0)


@compiled
def same_values(a: int, b: int, size: int, width: int) -> bool:
    """Tell whether `size` bytes hold the same values, `width` being `float_bytes`. Mostly they have the same bytes, too."""
    if memcmp(a, b, size) == 0:
        return True
    if width == 0:
        return False
    infinity, magnitude = _limits(width)
    for k in range(0, size, width):
        left, right = _bits(a + k, width) & magnitude, _bits(b + k, width) & magnitude
        either_nan = left > infinity or right > infinity
        if either_nan and not (left > infinity and right > infinity):
            return False
        if not either_nan and left | right != 0 and memcmp(a + k, b + k, width) != 0:
            return False
    return True


@compiled
def compare_rows(a: int, a_apart: int, b: int, b_apart: int, size: int, width: int, same: Any) -> None:
    """Tell which rows have the same values, row after row; those of each side lie so many bytes apart."""
    for i in range(same.shape[0]):
        same[i] = same_values(a + i * a_apart, b + i * b_apart, size, width)


@compiled
def compare_stacks(
    obs: int, obs_apart: int, following: int, following_apart: int, stack: int, frame: int, width: int, same: Any, rolls: Any
) -> None:
    """Tell of steps' stacks of frames which are what the step before led to, and which lead to themselves moved on by a frame.

    `same` and `rolls` are for all steps; the first of `same` stays as it is.
    """
    for i in range(same.shape[0]):
        now, after = obs + i * obs_apart, following + i * following_apart
        if i:
            before = after - following_apart
            same[i] = now == before or same_values(now, before, stack * frame, width)
        rolls[i] = same_values(after, now + frame, (stack - 1) * frame, width)


@compiled
def all_zero(address: int, size: int, width: int) -> bool:
    """Tell whether `size` bytes hold zeros only; so is -0.0."""
    for k in range(size):
        if load_u8(address + k):
            break
    else:
        return True
    if width == 0:
        return False
    _, magnitude = _limits(width)
    for k in range(0, size, width):  # noqa: SIM110  numba has no any()
        if _bits(address + k, width) & magnitude != 0:
            return False
    return True


@compiled
def has_nan(address: int, size: int, width: int) -> bool:
    """Tell whether a number among `size` bytes is NaN, `width` being `float_bytes`, above 0."""
    infinity, magnitude = _limits(width)
    for k in range(0, size, width):  # noqa: SIM110  numba has no any()
        if _bits(address + k, width) & magnitude > infinity:
            return True
    return False


@compiled
def are_bools(address: int, size: int) -> bool:
    """Return whether `size` bytes are 0 or 1 each, as truth values that are stored must be."""
    found = 0
    for k in range(size):
        found |= load_u8(address + k)
    return bool(found <= 1)


@compiled
def copy_bools(target: int, source: int, size: int) -> None:
    """Copy `size` truth values as bytes of 0 or 1; onto themselves, too."""
    for k in range(size):
        store_u8(target + k, load_u8(source + k) != 0)


@compiled
def _limits(width: int) -> tuple[int, int]:
    """Return infinity as an integer, and all bits but the sign."""
    if width == 2:
        return 0x7C00, 0x7FFF
    if width == 4:
        return 0x7F800000, 0x7FFFFFFF
    return 0x7FF0000000000000, 0x7FFFFFFFFFFFFFFF


@compiled
def _bits(address: int, width: int) -> int:
    if width == 2:
        return np.int64(load_u8(address)) | np.int64(load_u8(address + 1)) << 8  # type: ignore[return-value]
    if width == 4:
        return np.int64(load_u32(address))  # type: ignore[return-value]
    return np.int64(load_i64(address))  # type: ignore[return-value]
