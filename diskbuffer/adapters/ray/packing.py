"""Batches on their way between processes: frames that several arrays share, as stacks and sequences do, are sent once."""

from __future__ import annotations

from bisect import bisect
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_flatten, tree_map_only


class Packed(NamedTuple):
    """The memories that a batch's arrays are in, (bytes,) uint8 each, and the batch with a `_Place` for each array."""

    memories: list[npt.NDArray[np.uint8]]
    batch: Any


class _Place:
    """Where an array is."""

    def __init__(self, memory: int, offset: int, array: npt.NDArray[Any]) -> None:
        self.memory, self.offset = memory, offset
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype.str


class _Memory:
    """Bytes from an address on, as numpy takes them; it keeps the tensors that are in it."""

    def __init__(self, begin: int, end: int, tensors: list[torch.Tensor]) -> None:
        self.__array_interface__ = {"shape": (end - begin,), "typestr": "|u1", "data": (begin, False), "version": 3}
        self.tensors = tensors


def pack(batch: Any) -> Packed:
    """Pack a batch of tensors; this copies nothing."""
    tensors = tree_flatten(batch)[0]
    spans: list[list[int]] = []
    for begin, end in sorted(np.lib.array_utils.byte_bounds(tensor.numpy()) for tensor in tensors):
        if spans and begin < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([begin, end])

    def place(tensor: torch.Tensor) -> _Place:
        address = tensor.data_ptr()
        memory = bisect(spans, [address, 1 << 64]) - 1
        return _Place(memory, address - spans[memory][0], tensor.numpy())

    return Packed([np.asarray(_Memory(span[0], span[1], tensors)) for span in spans], tree_map_only(torch.Tensor, place, batch))


def unpack(packed: Packed) -> Any:
    """Return the batch as arrays, in memory of its own."""
    memories = [memory.copy() for memory in packed.memories]

    def array(place: _Place) -> npt.NDArray[Any]:
        return np.ndarray(place.shape, place.dtype, memories[place.memory], place.offset, place.strides)

    return tree_map_only(_Place, array, packed.batch)
