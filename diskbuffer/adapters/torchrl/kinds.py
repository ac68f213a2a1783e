"""What steps are given to a storage as: tensordicts, tensorclasses, tensors, or nested dicts, lists and tuples of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import is_tensor_collection
from tensordict.utils import is_tensorclass
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from diskbuffer.adapters.torchrl.entries import Entries, Key, leaves, value_at
from diskbuffer.adapters.torchrl.rows import Later

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Kind:
    """What was given last, and is returned from then on; tensordicts before that, for the disk tells of no others.

    Attributes
    ----------
    tensorclass : type, optional
    tree : TreeSpec, optional
        Of nested dicts, lists and tuples.
    keys : tuple of keys
        Of the tensors in these.
    """

    tensorclass: Any = None
    tree: Any = None
    keys: tuple[Key, ...] = ()

    @classmethod
    def of(cls, data: Any) -> Kind:
        """Return what some steps are."""
        if is_tensor_collection(data):
            return cls(tensorclass=type(data) if is_tensorclass(data) else None)
        if isinstance(data, torch.Tensor):
            return cls()
        return cls(tree=tree_flatten(data)[1], keys=tuple(key for key, _ in leaves(data)))

    def made_of(self, tree: dict[str, Any], entries: Entries) -> Any:
        """Return tensors, or nested dicts, lists and tuples of them; None where steps are tensordicts."""
        if self.tree is None and not entries.bare:
            return None
        found = [value_at(tree, key) for key in ([()] if self.tree is None else self.keys)]
        tensors = [value.read() if isinstance(value, Later) else value for value in found]
        return tensors[0] if self.tree is None else tree_unflatten(tensors, self.tree)

    def from_tensordict(self, found: Any) -> Any:
        """Return a tensordict as what it was given as."""
        return found if self.tensorclass is None else self.tensorclass.from_tensordict(found)


def axes_of(data: Any, ndim: int) -> int:
    """Count the axes of its own that a step has, in tensordicts, behind the storage's."""
    return max(len(data.batch_size) - ndim, 0) if is_tensor_collection(data) else 0


def indexed(data: Any, entries: Entries, places: Int64) -> Any:
    """Return tensordicts with the entry "index" that TorchRL's writers add, or without it, as the storage has it."""
    if not is_tensor_collection(data) or is_tensorclass(data):
        return data
    has = any(entry.key == ("index",) for entry in entries)
    given = "index" in data.keys()  # noqa: SIM118  tensordicts are no dicts
    if has and not given:
        index = torch.from_numpy(places).reshape(-1, *(1,) * (data.ndim - 1)).expand(data.shape)
        return data.copy().set("index", index)
    return data.exclude("index") if given and not has else data


def stacked(parts: list[Any]) -> Any:
    """Return steps, a list, as they would be given together; a RuntimeError, as TorchRL's, where they differ."""
    try:
        return torch.stack(parts) if is_tensor_collection(parts[0]) else tree_map(lambda *of: torch.stack(of), *parts)
    except (RuntimeError, TypeError, ValueError) as error:
        raise RuntimeError(
            "Stacking the elements of the list resulted in an error: all of them must have the same structure and shapes"
        ) from error
