"""Digests of values: of names, dtypes, shapes and bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch


class Digest:
    """BLAKE2b of 128 bits over whatever is put in, one after the other."""

    def __init__(self, *values: Any) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        for value in values:
            self.put(value)

    def put(self, value: Any) -> None:
        """Put in arrays, tensors, bytes, numbers and texts; of mappings every name and its value, in the order of the names."""
        match value:
            case Mapping():
                self._note("dict", sorted(value))
                for name in sorted(value):
                    self.put(value[name])
            case torch.Tensor():
                self.put(value.numpy())
            case np.ndarray() if value.dtype.kind != "U" and value.dtype != object:
                self._note(value.dtype.name, value.shape)
                self._hash.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
            case bytes():
                self._note("bytes", len(value))
                self._hash.update(value)
            case np.ndarray() | list() | tuple():
                self._note("list", len(value))
                for one in value:
                    self.put(one)
            case np.generic():
                self.put(np.asarray(value))
            case None | str() | bool() | int() | float():
                self._note(type(value).__name__, repr(value))
            case _:
                raise TypeError(f"there is no digest of a {type(value).__name__}")

    def _note(self, *values: Any) -> None:
        self._hash.update(repr(values).encode() + b";")

    def __str__(self) -> str:
        return self._hash.hexdigest()


def digest_of(values: Iterable[Any]) -> str:
    """Return the digest of values, in hexadecimal digits."""
    return str(Digest(*values))
