"""Single steps of flat columns: found and copied in one native call, where plan, gather and pooled memory would cost more.

Of a batch of 256 steps of a few numbers, that is a third of the time. Columns in chunks, stacks and sequences go through a plan.
"""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.index.index import Index
from diskbuffer.native.single_steps import allocate
from diskbuffer.reading.gather import structs
from diskbuffer.reading.gather.targets import Columns
from diskbuffer.schema.schema import is_observation, unescape_key

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Filled = tuple[Array, ...]
Copy = Callable[..., bool]  # a function of `diskbuffer.native.single_steps`

MOST = 2**21  # bytes of an array: larger ones go through a plan, as the store's lock is held while they are copied
_FRESH = 2**16  # bytes of an array: larger ones are in memory that is used again, as fresh pages cost more than the copy
_KEPT = 4  # batches whose memory is used again


class SingleSteps:
    """Arrays for single steps of some columns, each of which is flat.

    Parameters
    ----------
    columns : Columns

    Attributes
    ----------
    names : tuple of str
        Of the arrays: the columns' paths, ``next_`` before that of an observation after the step.
    flat_keys : list of key, optional
        The keys of the arrays in a batch, where none is in a dict below it.
    dicts : list of (tuple, list of key, callable)
        Else of each dict of a batch: the keys of those above it, the keys in it, and what takes its values from a tuple of all.
    most : int
        Steps that can be read at once.
    """

    def __init__(self, columns: Columns) -> None:
        names, described, kinds = list[str](), list[tuple[int, ...]](), list[tuple[tuple[int, ...], np.dtype[Any]]]()
        for path, target in zip(columns.paths, columns.targets[0].tolist(), strict=True):
            for after in range(1 + is_observation(path)):
                names.append("next_" + path if after else path)
                described.append((target[structs.COLUMN], target[structs.ROW_BYTES], target[structs.FLAG], after))
                kinds.append((columns.schema[path].shape, columns.schema[path].np_dtype))
        self.names = tuple(names)
        nested = [tuple(map(unescape_key, name.split("/"))) for name in names]
        of: dict[tuple[str, ...], list[int]] = {}
        for number, keys in enumerate(nested):
            of.setdefault(keys[:-1], []).append(number)
        self.flat_keys = [keys[-1] for keys in nested] if of.keys() <= {()} else None
        self.dicts = [(above, [nested[n][-1] for n in numbers], _taking(numbers)) for above, numbers in of.items()]
        self._described, self._kinds = np.array(described, np.int64).reshape(-1, 4), [*kinds, ((), np.dtype(np.int64))]
        largest = max((row_bytes for _, row_bytes, _, _ in described), default=1)
        self.most, self._most_fresh = MOST // max(largest, 1), _FRESH // max(largest, 1)
        self._kept: deque[Filled] = deque(maxlen=_KEPT)  # of larger batches

    @staticmethod
    def can_be(columns: Columns) -> bool:
        """Return whether all of the columns are flat."""
        return not columns.targets[0, :, structs.CHUNK_ROWS].any()

    def filled(self, copy: Copy, index: Index, mapped: Int64, size: int, *steps: Any) -> Filled | None:
        """Return the arrays of so many steps, and the steps' names; None where only a plan can, or can say why not.

        The store's lock must be held.
        """
        if size > self.most:
            return None
        filled = allocate(self._kinds, size) if size <= self._most_fresh else self._take(size)
        return filled if copy(index.table, mapped, index.segment_rows, self._described, filled, *steps) else None

    def _take(self, size: int) -> Filled:
        """Return arrays of a batch that nobody holds any more, nor a tensor over them; new ones where there are none."""
        for arrays in self._kept:
            if len(arrays[-1]) == size and _are_unused(arrays):
                return arrays
        arrays = allocate(self._kinds, size)
        self._kept.append(arrays)
        return arrays


def _taking(numbers: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return what takes some values of a tuple, as a tuple."""
    return operator.itemgetter(*numbers) if len(numbers) > 1 else operator.itemgetter(slice(numbers[0], numbers[0] + 1))


def _are_unused(arrays: Filled) -> bool:
    """Return whether a tuple is all that holds its arrays."""
    return max(map(sys.getrefcount, arrays)) <= _UNUSED


_UNUSED = max(map(sys.getrefcount, (np.empty(0),)))  # as seen there
