"""Batches of single steps that were copied at once: tensors over arrays of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy.typing as npt
import torch

from diskbuffer.reading.batches.base import Batch
from diskbuffer.reading.gather.single_steps import SingleSteps

Array = npt.NDArray[Any]
_NO_NOTES: Mapping[str, Array] = MappingProxyType({})


def as_batch(single: SingleSteps, filled: tuple[Array, ...], notes: Mapping[str, Array] = _NO_NOTES) -> Batch:
    """Return filled arrays, and notes that are delivered, as a batch of tensors, nested as the columns' paths are."""
    tensors = map(torch.from_numpy, filled)
    batch: Batch = _nested(single, tensors) if single.flat_keys is None else dict(zip(single.flat_keys, tensors, strict=False))
    for name, note in notes.items():
        batch[name] = torch.from_numpy(note)
    batch["steps"] = torch.from_numpy(filled[-1])
    return batch


def _nested(single: SingleSteps, tensors: Iterable[torch.Tensor]) -> Batch:
    found: Batch = {}
    for (above, key), tensor in zip(single.keys, tensors, strict=False):
        values = found
        for name in above:
            values = values.setdefault(name, {})
        values[key] = tensor
    return found
