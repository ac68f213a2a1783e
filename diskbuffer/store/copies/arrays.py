"""Arrays by name that belong to a moment of a store: in a mark, a snapshot, or a store that went back to a mark.

One JSON file: of each array its dtype, its shape and its bytes in base64, and a CRC32C of all that.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import as_array
from diskbuffer.errors import CorruptionError, InputError
from diskbuffer.store.format.layout import SEGMENTS, checksum_of_json
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.json_files import read_json

Arrays = Mapping[str, npt.NDArray[Any]]

FILE = f"{SEGMENTS}/length/arrays.json"  # inside an array's directory, which no Zarr tool lists
MOST_BYTES = 8 * 1024**2  # of all arrays
_DTYPE = re.compile(r"[<|][biufc][0-9]{1,2}")


def checked(arrays: Any) -> dict[str, npt.NDArray[Any]]:
    """Return copies of arrays of numbers by name; an InputError where they are something else, or too many."""
    if not isinstance(arrays, Mapping) or not all(isinstance(name, str) for name in arrays):
        raise InputError(f"arrays must be a mapping of names to arrays, found {type(arrays).__name__}")
    found = dict[str, npt.NDArray[Any]]()
    for name, value in arrays.items():
        array = as_array(f"arrays[{name!r}]", value)
        if array.dtype.kind not in "biufc":
            raise InputError(f"arrays[{name!r}] must be an array of numbers, found dtype {array.dtype}; nothing is pickled")
        found[name] = array.astype(array.dtype.newbyteorder("<"))
    if (size := sum(array.nbytes for array in found.values())) > MOST_BYTES:
        raise InputError(
            f"arrays must have at most {MOST_BYTES:,} bytes together, found {size:,}; keep them in a file of their own"
        )
    return found


def write(files: Files, arrays: Arrays) -> None:
    """Put arrays, as `checked` returns them, in a store's directory, and bring them to the disk; nothing where there are none."""
    if not arrays:
        return
    described = {
        name: [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()] for name, array in arrays.items()
    }
    files.replace_contents(FILE, json.dumps({"arrays": described, "checksum": checksum_of_json(described)}).encode())


def read(files: Files) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays in a store's directory, none where there is no such file; a CorruptionError where it is damaged."""
    try:
        data = read_json(files, FILE)
        described = data["arrays"]
        if data["checksum"] == checksum_of_json(described):
            return {name: _array(*each) for name, each in described.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise CorruptionError(
        f"{files.root / FILE}, with the arrays that were kept here, is damaged. `diskbuffer check --repair` removes it"
    )


def _array(dtype: str, shape: list[int], data: str) -> npt.NDArray[Any]:
    values = base64.b64decode(data, validate=True)
    if not _DTYPE.fullmatch(dtype) or min(shape, default=1) < 0 or math.prod(shape) * np.dtype(dtype).itemsize != len(values):
        raise ValueError(dtype)
    return np.frombuffer(values, dtype).reshape(shape).copy()
