"""Batches on their way between processes: as few arrays, each once, which Ray moves without a copy of its own.

``obs`` and ``next_obs`` of a batch share memory where frames are stacked; pickled one by one they would be sent twice.
"""

from __future__ import annotations

from bisect import bisect
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numcodecs import Blosc

from diskbuffer.plugin import leaves

_CODEC = Blosc("lz4", 1, Blosc.SHUFFLE)
_LEAST = 1 << 16  # bytes that are worth compressing
_SAVED = 0.8  # of the bytes, at most, for them to be sent compressed


class TensorLayout(NamedTuple):
    """Where a tensor is: in which memory, from which element on."""

    memory: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Packed(NamedTuple):
    """A batch: the memory that its tensors share, (bytes,) uint8 each or compressed, and where in it each of them is."""

    memories: list[npt.NDArray[np.uint8] | bytes]
    layouts: dict[str, Any]


class _Span:
    """Memory from an address on, as numpy takes it; it keeps the tensors alive that are in it."""

    def __init__(self, address: int, nbytes: int, tensors: list[torch.Tensor]) -> None:
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}
        self.tensors = tensors


def pack(batch: dict[str, Any], *, compress: bool = False) -> Packed:
    """Pack a batch of tensors, the bytes that several are made of once; compressed, where that is asked for and takes less."""
    spans = _spans([tensor for tensor in leaves(batch) if tensor.numel()])
    starts = [address for address, _, _ in spans]

    def layout(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: layout(part) for name, part in value.items()}
        number = max(bisect(starts, value.data_ptr()) - 1, 0) if value.numel() else 0
        offset = (value.data_ptr() - starts[number]) // value.element_size() if value.numel() else 0
        return TensorLayout(number, value.dtype, offset, tuple(value.shape), tuple(value.stride()))

    layouts = layout(batch)
    memories = [np.asarray(_Span(*span), np.uint8) for span in spans]
    return Packed([_compressed(memory) if compress else memory for memory in memories], layouts)


def _spans(tensors: list[torch.Tensor]) -> list[tuple[int, int, list[torch.Tensor]]]:
    """Return the addresses and bytes of the memory that tensors are in: those that overlap are in one.

    They may be views of one array, whose storages begin where the views do, so that storages do not tell.
    """
    spans: list[tuple[int, int, list[torch.Tensor]]] = []
    for tensor in sorted(tensors, key=lambda one: one.data_ptr()):
        begin, item = tensor.data_ptr(), tensor.element_size()
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        nbytes = (last + 1) * item
        if spans and begin < spans[-1][0] + spans[-1][1]:
            address, before, others = spans.pop()
            spans.append((address, max(before, begin + nbytes - address), [*others, tensor]))
        else:
            spans.append((begin, nbytes, [tensor]))
    return spans


def unpack(packed: Packed) -> dict[str, Any]:
    """Return the batch, in memory of its own."""
    memories = [torch.from_numpy(_writable(memory)) for memory in packed.memories]

    def tensor(layout: Any) -> Any:
        if isinstance(layout, dict):
            return {name: tensor(part) for name, part in layout.items()}
        if 0 in layout.shape:
            return torch.empty(layout.shape, dtype=layout.dtype)
        whole = memories[layout.memory].view(layout.dtype)
        return torch.as_strided(whole, layout.shape, layout.strides, layout.offset)

    batch: dict[str, Any] = tensor(packed.layouts)
    return batch


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
