"""Batches on their way between processes: as few arrays, each once, which Ray moves without a copy of its own.

``obs`` and ``next_obs`` of a batch share memory where frames are stacked; pickled one by one they would be sent twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numcodecs import Blosc

_CODEC = Blosc("lz4", 1, Blosc.SHUFFLE)
_LEAST = 1 << 16  # bytes that are worth compressing
_SAVED = 0.8  # of the bytes, at most, for them to be sent compressed


class Place(NamedTuple):
    """Where a tensor is: in which memory, from which element on."""

    memory: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Packed(NamedTuple):
    """A batch: the memory that its tensors share, (bytes,) uint8 each or compressed, and where in it each of them is."""

    memories: list[npt.NDArray[np.uint8] | bytes]
    places: dict[str, Any]


def pack(batch: dict[str, Any], *, compress: bool = False) -> Packed:
    """Pack a batch of tensors; compressed, where that is asked for and takes less."""
    memories: list[npt.NDArray[np.uint8]] = []
    known: dict[int, int] = {}

    def place(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: place(part) for name, part in value.items()}
        storage = value.untyped_storage()
        number = known.setdefault(storage.data_ptr(), len(memories))
        if number == len(memories):
            memories.append(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
        return Place(number, value.dtype, value.storage_offset(), tuple(value.shape), tuple(value.stride()))

    places = place(batch)
    return Packed([_compressed(memory) for memory in memories] if compress else list(memories), places)


def unpack(packed: Packed) -> dict[str, Any]:
    """Return the batch, in memory of its own."""
    memories = [torch.from_numpy(_writable(memory)) for memory in packed.memories]

    def tensor(place: Any) -> Any:
        if isinstance(place, dict):
            return {name: tensor(part) for name, part in place.items()}
        if 0 in place.shape:
            return torch.empty(place.shape, dtype=place.dtype)
        whole = memories[place.memory].view(place.dtype)
        return torch.as_strided(whole, place.shape, place.strides, place.offset)

    found: dict[str, Any] = tensor(packed.places)
    return found


def joined(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one batch of several."""
    if len(batches) == 1:
        return batches[0]
    return {
        name: joined([batch[name] for batch in batches]) if isinstance(value, dict) else torch.cat([b[name] for b in batches])
        for name, value in batches[0].items()
        if all(name in batch for batch in batches)
    }


def _compressed(memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8] | bytes:
    if memory.nbytes < _LEAST:
        return memory
    smaller: bytes = _CODEC.encode(memory)
    return smaller if len(smaller) < _SAVED * memory.nbytes else memory


def _writable(memory: npt.NDArray[np.uint8] | bytes) -> npt.NDArray[np.uint8]:
    if isinstance(memory, bytes):
        return np.frombuffer(bytearray(_CODEC.decode(memory)), np.uint8)
    return memory.copy()
