"""Where the values of steps lie in memory, as tensordicts have them: what a store of flat columns is given without a copy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from diskbuffer.adapters.place_column import SLOT
from diskbuffer.adapters.torchrl.entries import NEXT, Entries, Key
from diskbuffer.native.arrays import address_of

Int64 = npt.NDArray[np.int64]
_FLAGS = ("terminated", "truncated")
_INDEX = ("index",)
_ZERO = np.zeros(8, np.uint8)  # the value of columns that a store has, and tensordicts have not
_NOTHING = (address_of(_ZERO), 0)


class Wanted:
    """Find the tensors of entries in tensordicts, where these have them, and nothing else, as a store does.

    Parameters
    ----------
    entries : Entries
        Without strings.

    Attributes
    ----------
    of : dict of key to (tuple of int, torch.dtype, int)
        Shape and dtype of one step's value, and its bytes; "next" entries, too.
    """

    def __init__(self, entries: Entries) -> None:
        self.of: dict[Key, tuple[tuple[int, ...], torch.dtype, int]] = {}
        for entry in entries:
            like = torch.from_numpy(np.empty(0, entry.frames.dtype)).dtype
            for key in (entry.key, (NEXT, *entry.key))[: 1 + entry.paired]:
                self.of[key] = entry.frames.shape, like, math.prod(entry.frames.shape) * entry.frames.dtype.itemsize
        self._known = frozenset(self.of)
        self._has_index = _INDEX in self._known

    def find(self, data: TensorDict, batch: tuple[int, ...]) -> dict[Key, torch.Tensor] | None:
        """Return contiguous tensors with the axes of `batch` first; None where something is not as wanted, or on a device."""
        found: dict[Key, torch.Tensor] = {}
        if not _collect(found, data, ()):
            return None
        if not self._has_index:
            found.pop(_INDEX, None)  # which TorchRL's writers add
        if found.keys() != self._known:
            return None
        for key, (shape, dtype, _) in self.of.items():
            value = found[key]
            if value.shape != (*batch, *shape) or value.dtype != dtype or not value.is_contiguous():
                return None
        return found


class Addresses:
    """Find the values of entries, as `ReplayBuffer._extend_from` takes them.

    Parameters
    ----------
    entries : Entries
        Without strings and stacks.
    columns : sequence of str
        All recorded columns of the store, in its order.
    """

    def __init__(self, entries: Entries, columns: Sequence[str]) -> None:
        self._lanes, self._n_lanes = entries.lanes, int(np.prod(entries.lanes, dtype=np.int64))
        self._columns = tuple(columns)
        self._of = {entry.path: entry for entry in entries}
        self._wanted = Wanted(entries)

    @classmethod
    def of(cls, entries: Entries, columns: Sequence[str]) -> Addresses | None:
        """Return those of entries; None where some of them have to be converted."""
        converted = any(entry.strings or entry.frames.dtype.kind == "c" for entry in entries)
        return None if converted or entries.stack > 1 or entries.bare or not columns else cls(entries, columns)

    def find(self, data: TensorDict, n: int, slots: Int64, *, one: bool) -> Int64 | None:
        """Return (columns, 4) of the first lane: addresses of `n` steps' values, and how far they lie apart.

        None where something is not as the store has it, or on a device: it takes another way then. `slots` are what is stored of
        the places, (n,). `one` tells that `data` is a step, without an axis.
        """
        found = self._wanted.find(data, self._lanes if one else (n, *self._lanes))
        if found is None:
            return None
        at = {key: value.data_ptr() for key, value in found.items()}
        rows = []
        for path in self._columns:
            entry = self._of.get(path)
            if entry is not None:
                apart = self._wanted.of[entry.key][2] * self._n_lanes
                rows.append((at[entry.key], apart, at[NEXT, *entry.key] if entry.paired else 0, apart))
            elif path == SLOT:
                rows.append((address_of(slots), 8, 0, 0))
            elif path in _FLAGS:
                flag = self._flag(found, at, path, n)
                if flag is None:
                    return None
                rows.append((*flag, 0, 0))
            else:
                rows.append(_NOTHING * 2)
        return np.array(rows, np.int64)

    def _flag(self, found: Mapping[Key, torch.Tensor], at: Mapping[Key, int], name: str, n: int) -> tuple[int, int] | None:
        """Return where a flag's values are; None where it is made of several."""
        key = NEXT, name
        if key in at:
            one = found[key].dtype == torch.bool and found[key].numel() == n * self._n_lanes
            return (at[key], self._n_lanes) if one else None
        return None if (NEXT, "done") in at else _NOTHING

    def of_lane(self, places: Int64, lane: int) -> Int64:
        """Return those of another lane."""
        moved = places.copy()
        if lane:
            for row, path in enumerate(self._columns):
                if path != SLOT:
                    moved[row, ::2] += lane * (moved[row, 1::2] // self._n_lanes)
        return moved


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
