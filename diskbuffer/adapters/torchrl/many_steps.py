"""The tensors of steps as a store takes them, without a copy, where tensordicts have them as the store does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from diskbuffer import Column
from diskbuffer.adapters.place_column import SLOT
from diskbuffer.adapters.torchrl.entries import NEXT, Entries, Key
from diskbuffer.plugin import KEPT, put_argument

Int64 = npt.NDArray[np.int64]
_FLAGS = ("terminated", "truncated")
_INDEX = ("index",)


class ManySteps:
    """Take blocks of steps apart whose entries are known to be what the store holds.

    Parameters
    ----------
    entries : Entries
        Without stacks.
    recorded : mapping of str to Column
        The columns of the store that are recorded with the steps.
    """

    def __init__(self, entries: Entries, recorded: Mapping[str, Column]) -> None:
        self._lanes, self._n_lanes = entries.lanes, int(np.prod(entries.lanes, dtype=np.int64))
        self._entries, paths = list(entries), {entry.path for entry in entries}
        self._others = {path: column.np_dtype for path, column in recorded.items() if path not in (*paths, *KEPT)}
        self._wanted: dict[Key, tuple[tuple[int, ...], torch.dtype]] = {}  # shapes and dtypes of one step's values
        for entry in entries:
            like = torch.from_numpy(np.empty(0, entry.frames.dtype)).dtype
            self._wanted |= dict.fromkeys((entry.key, (NEXT, *entry.key))[: 1 + entry.paired], (entry.frames.shape, like))

    @classmethod
    def of(cls, entries: Entries, recorded: Mapping[str, Column]) -> ManySteps | None:
        """Return what takes steps of these apart; None where some have to be converted."""
        converted = any(entry.frames.dtype.kind == "c" for entry in entries)
        return None if converted or entries.stack > 1 else cls(entries, recorded)

    def find(self, data: TensorDict, n: int, slots: Int64, *, one: bool) -> dict[str, Any] | None:
        """Return what `ReplayBuffer.extend` is given for `n` steps of all lanes.

        None where something is not as the store has it, or on a device: it takes another way then. `slots` are what is stored of
        the places, (n,). `one` tells that `data` is a step, without an axis.
        """
        found = self._tensors(data, self._lanes if one else (n, *self._lanes))
        if found is None:
            return None
        axes = (n,) if self._n_lanes == 1 else (n, self._n_lanes)
        values: dict[str, Any] = {}
        for entry in self._entries:
            put_argument(values, entry.path, found[entry.key].numpy().reshape(*axes, *entry.frames.shape))
            if entry.paired:
                put_argument(values, "next_" + entry.path, found[NEXT, *entry.key].numpy().reshape(*axes, *entry.frames.shape))
        for path, dtype in self._others.items():
            if path == SLOT:
                values[path] = slots if len(axes) == 1 else np.broadcast_to(slots[:, None], axes)
            elif path in _FLAGS:
                flag = self._flag(found, path, axes)
                if flag is None:
                    return None
                values[path] = flag
            else:  # the observation of what has none, and what else tensordicts lack
                values[path] = np.zeros(axes, dtype)
                if path == "obs":
                    values["next_obs"] = values[path]
        return values

    def _tensors(self, data: TensorDict, axes: tuple[int, ...]) -> dict[Key, torch.Tensor] | None:
        """Return contiguous tensors, with such axes first; None where something is not as wanted, or on a device."""
        found: dict[Key, torch.Tensor] = {}
        if not _collect(found, data, ()):
            return None
        if _INDEX not in self._wanted:
            found.pop(_INDEX, None)  # which TorchRL's writers add
        if found.keys() != self._wanted.keys():
            return None
        for key, (shape, dtype) in self._wanted.items():
            value = found[key]
            if value.shape != (*axes, *shape) or value.dtype != dtype or not value.is_contiguous():
                return None
        return found

    def _flag(self, found: Mapping[Key, torch.Tensor], name: str, axes: tuple[int, ...]) -> npt.NDArray[Any] | None:
        """Return a flag's values; None where it is made of several."""
        flag = found.get((NEXT, name))
        if flag is None:
            return None if (NEXT, "done") in found else np.zeros(axes, np.bool_)
        return flag.numpy().reshape(axes) if flag.dtype == torch.bool and flag.numel() == math.prod(axes) else None


def _collect(found: dict[Key, torch.Tensor], data: Any, above: Key) -> bool:
    """Put all tensors of a tensordict into `found`; return whether there is nothing else in it, nor on a device."""
    for name, value in data.items():
        if value.__class__ is torch.Tensor:
            if not value.is_cpu or value.is_neg():
                return False
            found[*above, name] = value
        elif value.__class__ is not TensorDict or not _collect(found, value, (*above, name)):
            return False
    return True
