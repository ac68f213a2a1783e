"""Strings in tensordicts: numbers in a column of the store, whose tags name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tensordict import NonTensorData, NonTensorStack

from diskbuffer.errors import InputError

Array = npt.NDArray[Any]
_LONGEST = 200  # characters, as of tags
COLUMN_DTYPE = np.dtype(np.uint16)


@dataclass(frozen=True)
class Strings:
    """The strings of an entry.

    Attributes
    ----------
    values : list of str
        Flat.
    shape : tuple of int
    """

    values: list[str]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, key: Any, found: Any) -> Strings:
        """Return those of an entry that is no tensor; an InputError where it holds something else."""
        values = [found.tolist()] if not found.batch_size else found.tolist()
        for _ in found.batch_size[1:]:
            values = [value for part in values for value in part]
        for value in values:
            if not isinstance(value, str):
                what = f"a {type(value).__name__}, {str(value)[:100]!r}"
            elif len(value) > _LONGEST:
                what = f"a string of {len(value):,} characters, {value[:50]!r} ..."
            else:
                continue
            raise InputError(
                f"entry {key!r} holds {what}. A DiskStorage holds tensors, and strings of {_LONGEST} characters at most: leave "
                f"the entry out, as by steps.exclude({key!r}), or make a tensor of it"
            )
        return cls(values, tuple(found.batch_size))

    def numbers(self, known: dict[str, int]) -> Array:
        """Return their numbers, flat."""
        return np.array([known[value] for value in self.values], COLUMN_DTYPE)


def named(numbers: Array, names: Sequence[str]) -> Any:
    """Return an entry of strings, by their numbers, from 1 on: of any shape, as tensordicts hold them."""
    if not numbers.ndim:
        return NonTensorData(names[int(numbers) - 1])
    if not numbers.size:
        return NonTensorData("", batch_size=numbers.shape)
    found = np.array([*names, ""], object)[numbers.astype(np.int64) - 1]
    return NonTensorStack.from_list(found.tolist())
