"""A sum tree: weights of items, their sum, and which item a mass falls on (Schaul et al., 2016, "Prioritized experience replay").

How it is made, and how fast it is, tells `native/kernels/sum_tree.hpp`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.integers import integer
from diskbuffer.errors import InputError
from diskbuffer.native import sampling
from diskbuffer.native.arrays import address_of

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Float = npt.NDArray[np.floating[Any]]

TINY = float(np.finfo(np.float32).tiny)
LARGEST = float(np.finfo(np.float32).max)


class SumTree:
    """Non-negative weights of `size` items, of which some are drawn in proportion.

    Not for several threads at once: the caller holds a lock.

    Parameters
    ----------
    size : int
        Items, of weight zero at first. Each takes 4.8 bytes.

    Attributes
    ----------
    nodes : numpy.ndarray
        All of the tree, (nbytes,) uint8. Replaced by `grow`.

    Notes
    -----
    Weights are rounded to float32; those above zero and below 1.2e-38 become 1.2e-38, so that none vanishes. An item's share in
    the draws is its weight over the total, but for the rounding of masses: 1e-16 of the total.

    Examples
    --------
    >>> import numpy as np
    >>> tree = SumTree(1000)
    >>> tree.set(np.array([3, 500]), np.array([1.0, 3.0]))
    >>> tree.total, tree.least, tree.find(np.array([0.5, 1.0, 3.9])).tolist()
    (4.0, 1.0, [3, 500, 500])
    """

    def __init__(self, size: int) -> None:
        self.size = integer("size", size, 0)
        self.nodes = _zeros(sampling.tree_bytes(self.size))

    @property
    def nbytes(self) -> int:
        """Bytes of the tree; RAM, once they were written to."""
        return self.nodes.nbytes

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return sampling.tree_total(self.nodes, self.size)

    @property
    def least(self) -> float:
        """Smallest weight above zero; infinity where there is none."""
        return sampling.tree_least(self.nodes, self.size) or np.inf

    def grow(self, size: int) -> None:
        """Make room for more items, of weight zero. Copies what was written to."""
        size = integer("size", size, self.size)
        nodes = _zeros(sampling.tree_bytes(size))
        sampling.tree_take_over(nodes, size, self.nodes, self.size)
        self.size, self.nodes = size, nodes

    def set(self, items: Int64, weights: Float) -> None:
        """Set the weights of items, (n,) each; of an item that is named twice, the last counts."""
        items, weights = _integers(items), _doubles(weights)
        if items.shape != weights.shape:
            raise InputError(f"items and weights must be of one length, found {len(items)} and {len(weights)}")
        wrong = sampling.tree_set(self.nodes, self.size, items, weights)
        if wrong >= 0:
            self._refuse(items, wrong)
            _refuse_weight(weights[wrong])

    def get(self, items: Int64) -> Float64:
        """Return the weights of items, (n,)."""
        items = _integers(items)
        weights = np.empty(len(items))
        wrong = sampling.tree_get(self.nodes, self.size, items, weights)
        if wrong >= 0:
            self._refuse(items, wrong)
        return weights

    def fill(self, first: int, weights: Float) -> None:
        """Set the weights of a range, (n,); 1.5 ms a million."""
        weights = _doubles(weights)
        wrong = sampling.tree_fill(self.nodes, self.size, self._check_range(first, len(weights)), weights)
        if wrong >= 0:
            _refuse_weight(weights[wrong])

    def clear(self, first: int, count: int) -> None:
        """Set the weights of a range to zero; as fast as memory."""
        first = self._check_range(first, integer("count", count, 0))
        if count:
            sampling.tree_clear(self.nodes, self.size, first, count)

    def find(self, masses: Float64) -> Int64:
        """Return on which items masses fall, (n,): item i with ``sum(w[:i]) <= mass < sum(w[:i + 1])``, but for rounding.

        Never one of weight zero. A mass below zero falls on the first item above zero; one of `total` or more, or NaN, on the
        last of a node, if not of all.
        """
        return self.draw(masses)[0]

    def draw(self, masses: Float64) -> tuple[Int64, Float64]:
        """Return on which items masses fall, as `find` does, and their weights, which costs nothing more."""
        masses = _doubles(masses)
        items, weights = np.empty(len(masses), np.int64), np.empty(len(masses))
        if not self.total:
            raise InputError("a mass falls on an item only where a weight is above zero, found none")
        sampling.tree_find(self.nodes, self.size, masses, items, weights)
        return items, weights

    def _check_range(self, first: int, count: int) -> int:
        first = integer("first", first, 0)
        if first + count > self.size:
            raise InputError(f"a range must end at {self.size}, the number of items, or before, found {first} to {first + count}")
        return first

    def _refuse(self, items: Int64, at: int) -> None:
        if not 0 <= items[at] < self.size:
            raise InputError(f"items must be from 0 to {self.size - 1}, found {items[at]}")


def _refuse_weight(weight: float) -> None:
    raise InputError(f"weights must be from 0 to {LARGEST:.2g}, found {weight}")


def _integers(values: Int64) -> Int64:
    values = np.asarray(values)
    if values.ndim != 1 or (values.dtype.kind not in "iu" and len(values)):
        raise InputError(f"items must be integers in one dimension, found {values.dtype} in {values.ndim}")
    return np.ascontiguousarray(values, np.int64)


def _doubles(values: Float) -> Float64:
    try:
        numbers: Float64 = np.ascontiguousarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"weights and masses must be numbers, found {values!r}") from error
    if numbers.ndim != 1:
        raise InputError(f"weights and masses must be in one dimension, found {numbers.ndim}")
    return numbers


def _zeros(size: int) -> npt.NDArray[np.uint8]:
    """Return zeros that begin with a cache line, and take no RAM before they are used."""
    memory = np.zeros(size + 64, np.uint8)
    first = -address_of(memory) % 64
    return memory[first : first + size]
