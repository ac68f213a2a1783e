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
    batch = arranged(single, tuple(map(torch.from_numpy, filled)))
    for name, note in notes.items():
        batch[name] = torch.from_numpy(note)
    return batch


def arranged(single: SingleSteps, values: tuple[Any, ...]) -> Batch:
    """Return filled arrays as a batch of arrays, nested as the columns' paths are; or of tensors over them."""
    if single.flat_keys is not None:
        batch: Batch = dict(zip(single.flat_keys, values, strict=False))
    else:
        batch = {}
        for above, keys, take in single.dicts:
            inner = batch
            for name in above:
                inner = inner.setdefault(name, {})
            inner.update(zip(keys, take(values), strict=True))
    batch["steps"] = values[-1]
    return batch
