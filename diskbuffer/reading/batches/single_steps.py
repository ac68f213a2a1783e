"""Batches of single steps that were copied at once: arrays of their own, or tensors over them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from diskbuffer.reading.batches.base import Batch, tensor_maker
from diskbuffer.reading.gather.single_steps import SingleSteps

Array = npt.NDArray[Any]
_NO_NOTES: Mapping[str, Array] = MappingProxyType({})


def as_batch(
    single: SingleSteps, filled: tuple[Array, ...], notes: Mapping[str, Array] = _NO_NOTES, *, numpy: bool = False
) -> Batch:
    """Return filled arrays, and notes that are delivered, as a batch of tensors or arrays, nested as the columns' paths are."""
    if numpy:
        return {**_arranged(single, filled), **notes}
    tensor = tensor_maker()
    batch = _arranged(single, tuple(map(tensor, filled)))
    for name, note in notes.items():
        batch[name] = tensor(note)
    return batch


def _arranged(single: SingleSteps, values: tuple[Any, ...]) -> Batch:
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
