"""Batches of single steps that were copied at once: tensors over arrays of their own."""

from __future__ import annotations

from collections.abc import Mapping
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
    batch: Batch = {}
    for (above, key), array in zip(single.keys, filled, strict=False):
        values = batch
        for name in above:
            values = values.setdefault(name, {})
        values[key] = torch.from_numpy(array)
    for name, note in notes.items():
        batch[name] = torch.from_numpy(note)
    batch["steps"] = torch.from_numpy(filled[-1])
    return batch
