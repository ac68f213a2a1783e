"""The arrays of a memory-mapped TensorDict, without loading it.

A directory has ``meta.json``, which tells the dtype and shape of each ``KEY.memmap`` in it, and which keys are directories, too.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import DiskBufferError, SourceError
from diskbuffer.formats.json_files import read_json

META = "meta.json"
TYPE = "<class 'tensordict._td.TensorDict'>"
_DEEPEST = 8
_UNSAFE = set('/<>:"|?*\\ %')
_DTYPES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_FLOATS = ("float16", "float32", "float64", "complex64", "complex128", "bfloat16")


@dataclass(frozen=True)
class StoredArrays:
    """What is in a directory.

    Attributes
    ----------
    arrays : mapping of str to numpy.ndarray
        By keys, joined by "/"; memory-mapped, with the batch's axes first. Numbers of bfloat16 are raw, as uint16.
    shape : tuple of int
        Of the batch.
    bfloat16 : set of str
        Arrays that are bfloat16.
    others : mapping of str to str
        What cannot be read, and what it is.
    maps : mapping of str to mmap.mmap
        The memory of each array, where it has any.
    """

    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    bfloat16: set[str] = field(default_factory=set)
    others: dict[str, str] = field(default_factory=dict)
    maps: dict[str, mmap.mmap] = field(default_factory=dict)


class Mapped:
    """Rows of a memory-mapped array, whose pages are given back as soon as they are copied."""

    def __init__(self, rows: npt.NDArray[Any], of: mmap.mmap | None) -> None:
        self._rows, self._map = rows, of
        self.shape, self.dtype = rows.shape, rows.dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        values = self._rows[rows].copy()
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
        return values


def find_arrays(path: Path) -> StoredArrays:
    """Return the arrays in a directory and in those below it; a SourceError where files are not as they are told."""
    metadata = read_json(path / META)
    stored = StoredArrays(shape=_shape(metadata.get("shape"), path / META))
    _collect(path, metadata, "", stored, 0)
    return stored


def encoded(key: str) -> str:
    """Return a key as a name of a file, as tensordict has it."""
    if key in ("", ".", ".."):
        return "%2E" * len(key) or "%"
    return "".join(f"%{ord(c):02X}" if c in _UNSAFE or ord(c) < 32 or ord(c) == 127 else c for c in key)


def _collect(path: Path, metadata: dict[str, Any], prefix: str, stored: StoredArrays, depth: int) -> None:
    if depth > _DEEPEST:
        raise SourceError(f"{path} has more than {_DEEPEST} directories in one another")
    if metadata.get("_type") != TYPE:
        if not prefix:
            raise SourceError(f"{path / META} tells of {metadata.get('_type')!r}, and only TensorDicts are read")
        stored.others[prefix.rstrip("/")] = str(metadata.get("_type"))[:100]
        return
    if _shape(metadata.get("shape"), path / META)[: len(stored.shape)] != stored.shape:
        raise SourceError(f"{path} should have the batch's shape {list(stored.shape)}, and has {metadata.get('shape')}")
    for key, one in metadata.items():
        if not isinstance(one, dict):
            continue
        name, where = f"{prefix}{key}", _place(path, key, "" if "type" in one else ".memmap")
        if "/" in key:
            stored.others[name] = "a key with a slash"
        elif "type" in one:
            inner = read_json(where / META) if one["type"] == "TensorDict" else {"_type": one["type"]}
            _collect(where, inner, f"{name}/", stored, depth + 1)
        else:
            _map(where, name, one, stored)


def _place(path: Path, key: str, suffix: str) -> Path:
    """Return where a key is: by its encoded name, or, as in older versions, by the key itself."""
    new = path / f"{encoded(key)}{suffix}"
    plain = not set(key) & set("/\\\0") and key not in ("", ".", "..")
    return path / f"{key}{suffix}" if plain and not new.exists() else new


def _map(path: Path, name: str, metadata: dict[str, Any], stored: StoredArrays) -> None:
    dtype = str(metadata.get("dtype")).removeprefix("torch.")
    shape = _shape(metadata.get("shape"), path)
    if metadata.get("is_nested") or dtype not in (*_DTYPES, *_FLOATS):
        stored.others[name] = "a nested tensor" if metadata.get("is_nested") else dtype[:100]
        return
    if shape[: len(stored.shape)] != stored.shape:
        raise SourceError(f"{path} should have the batch's shape {list(stored.shape)} first, and is {list(shape)}")
    if dtype == "bfloat16":
        stored.bfloat16.add(name)
    of = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    try:
        size = path.stat().st_size
        if size != math.prod(shape) * of.itemsize:
            raise SourceError(
                f"{path} should have {math.prod(shape) * of.itemsize:,} bytes, for {dtype}{list(shape)}, and has {size:,}"
            )
        if not size:
            stored.arrays[name] = np.zeros(shape, of)
        else:
            with path.open("rb") as file:
                stored.maps[name] = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            stored.arrays[name] = np.frombuffer(stored.maps[name], of).reshape(shape)
    except (OSError, ValueError) as error:
        if isinstance(error, DiskBufferError):
            raise
        raise SourceError(f"{path} cannot be read: {error}") from error


def _shape(shape: Any, where: Path) -> tuple[int, ...]:
    fits = isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**48 for n in shape)
    if not fits:
        raise SourceError(f"{where}: a shape should be a list of whole numbers, found {str(shape)[:100]}")
    return tuple(shape)
