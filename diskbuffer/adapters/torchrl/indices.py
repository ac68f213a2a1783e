"""Indices, as TorchRL has them and as numpy takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def plain(index: Any) -> Any:
    """Return an index that numpy takes."""
    if isinstance(index, tuple):
        return tuple(map(plain, index))
    if isinstance(index, torch.Tensor):
        return index.detach().cpu().numpy()
    if isinstance(index, list | range):
        return np.asarray(index) if len(index) else np.zeros(0, np.int64)
    return index


def has_slice(index: Any) -> bool:
    """Tell whether an index is of a slice of the storage, or has one."""
    return isinstance(index, slice) or index is Ellipsis or (isinstance(index, tuple) and any(map(has_slice, index)))


def is_one(index: Any) -> bool:
    """Tell whether an index is of a single place."""
    return isinstance(index, int | np.integer) or (isinstance(index, torch.Tensor | np.ndarray) and index.ndim == 0)
