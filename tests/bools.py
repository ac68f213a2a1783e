"""Truth values whose bytes are others than 0 and 1, and the bytes of those in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

Array = np.ndarray[Any, Any]


def disguised(array: Array, rng: np.random.Generator) -> Array:
    """Return an array of booleans whose bytes are others than 0 and 1 where it is true."""
    true = rng.choice(np.array([2, 3, 128, 255], np.uint8), array.shape)
    found: Array = np.where(array, true, np.uint8(0)).view(np.bool_)
    return found


def bytes_of_bools(path: Path) -> set[int]:
    """Return all bytes that stand for truth values in a store that is closed."""
    members = zarr.open_group(path, mode="r").members(max_depth=None)
    arrays = [each for _, each in members if isinstance(each, zarr.Array) and each.dtype == np.bool_]
    assert len(arrays) >= 3  # flags
    return {byte for each in arrays for byte in np.unique(np.asarray(each[:]).view(np.uint8)).tolist()}
