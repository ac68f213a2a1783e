"""A sum tree: weights of items, their sum, and which item a mass falls on (Schaul et al., 2016, "Prioritized experience replay").

Weights are float32, sums float64, sixteen children a node. Every node is computed from all its children in a fixed order,
never by adding a difference: the tree depends on its weights alone, to the bit, and rounding does not add up. Beside each sum
lies the smallest weight above zero. Zeros are the empty tree, so that a huge one's pages take no RAM before they are used.

Batches go through level by level, not item by item, so that the CPU waits for many nodes at a time: half the time for 256 finds
in a million items, a sixth in a hundred million.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.integers import integer
from diskbuffer.native.compiling import compiled
from diskbuffer.native.memory import prefetch
from diskbuffer.samplers.vectors import FAN, pick_f32, pick_f64, store_least, store_sum_f32, store_sum_f64

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Float = npt.NDArray[np.floating[Any]]

# Fields of a level, leaves first, for compiled code: one row of int64 each.
SUMS = 0  # where its sums start in `nodes`, in bytes; at the leaves, where its weights do
LEAST = 1  # where its smallest weights start, float32; at the leaves, the weights themselves
GROUPS = 2  # nodes of the level above, each over sixteen of this one
WIDTH = 3  # bytes of a sum

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
    levels : numpy.ndarray
        What lies where in it, (levels, 4) int64.

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
        self.levels, self.nodes = _lay_out(self.size)
        self._note()

    def _note(self) -> None:
        sums, least = self.levels[-1, :2].tolist()
        self._total, self._least = self.nodes[sums : sums + 8].view(np.float64), self.nodes[least : least + 4].view(np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of the tree; RAM, once they were written to."""
        return self.nodes.nbytes

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._total.item())

    @property
    def least(self) -> float:
        """Smallest weight above zero; infinity where there is none."""
        return float(self._least.item()) or np.inf

    def grow(self, size: int) -> None:
        """Make room for more items, of weight zero. Copies what was written to."""
        size = integer("size", size, self.size)
        levels, nodes = _lay_out(size)
        _copy(self.nodes, self.levels, nodes, levels)
        self.size, self.levels, self.nodes = size, levels, nodes
        self._note()

    def set(self, items: Int64, weights: Float) -> None:
        """Set the weights of items, (n,) each; of an item that is named twice, the last counts."""
        items, weights = _integers(items), _doubles(weights)
        if items.shape != weights.shape:
            raise InputError(f"items and weights must be of one length, found {len(items)} and {len(weights)}")
        wrong = _set(self.nodes, self.levels, self.size, items, weights)
        if wrong >= 0:
            self._refuse(items, wrong)
            _refuse_weight(weights[wrong])

    def get(self, items: Int64) -> Float64:
        """Return the weights of items, (n,)."""
        items = _integers(items)
        weights = np.empty(len(items))
        wrong = _get(self.nodes, self.size, items, weights)
        if wrong >= 0:
            self._refuse(items, wrong)
        return weights

    def fill(self, first: int, weights: Float) -> None:
        """Set the weights of a range, (n,); 1.5 ms a million."""
        weights = _doubles(weights)
        wrong = _fill(self.nodes, self.levels, self._check_range(first, len(weights)), weights)
        if wrong >= 0:
            _refuse_weight(weights[wrong])

    def clear(self, first: int, count: int) -> None:
        """Set the weights of a range to zero; as fast as memory."""
        first = self._check_range(first, integer("count", count, 0))
        if count:
            _clear(self.nodes, self.levels, first, count)

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
        _find(self.nodes, self.levels, masses, items, weights)
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


def _lay_out(size: int) -> tuple[Int64, npt.NDArray[np.uint8]]:
    """Return what lies where, and zeros for it all. The last level is one node, of all items."""
    groups = max(-(-size // FAN), 1)
    levels, at = [(0, 0, groups, 4)], groups * FAN * 4
    while len(levels) == 1 or size > FAN ** (len(levels) - 1):
        groups = -(-levels[-1][GROUPS] // FAN)
        levels.append((at, at + groups * FAN * 8, groups, 8))
        at += groups * FAN * 12
    room = np.zeros(at + 64, np.uint8)
    from_ = -room.ctypes.data % 64  # cache lines
    return np.array(levels, np.int64), room[from_ : from_ + at]


# Compiled. What is given is right, but where -1 is returned for "all is well".


@compiled
def _compute(base: int, levels: Any, level: int, group: int) -> None:
    """Compute a node from its children: sixteen nodes of `level`."""
    sums, to = base + levels[level, SUMS], base + levels[level + 1, SUMS] + group * 8
    if level == 0:
        store_sum_f32(sums + group * FAN * 4, to)
    else:
        store_sum_f64(sums + group * FAN * 8, to)
    store_least(base + levels[level, LEAST] + group * FAN * 4, base + levels[level + 1, LEAST] + group * 4)


@compiled
def _rounded(weight: float) -> Any:
    return np.float32(max(weight, TINY) if weight > 0.0 else 0.0)  # no -0.0 either


@compiled
def _set(nodes: Any, levels: Any, size: int, items: Any, weights: Any) -> int:
    """Set weights; or nothing, and return the place of the first that is wrong."""
    for i in range(items.shape[0]):
        if not (0 <= items[i] < size and 0.0 <= weights[i] <= LARGEST):
            return i
    base, leaves = nodes.ctypes.data, nodes.view(np.float32)
    changed, n, last = np.empty(items.shape[0], np.int64), 0, np.int64(-1)  # nodes of a level
    for i in range(items.shape[0]):
        leaves[items[i]] = _rounded(weights[i])
        changed[n] = items[i] // FAN
        n += changed[n] != last
        last = items[i] // FAN
    for level in range(levels.shape[0] - 1):
        groups = levels[level, GROUPS]
        if n >= groups:  # there are no more: all, so that none is computed twice
            for group in range(groups):
                _compute(base, levels, level, group)
            n = groups
            continue
        if level:
            before, n, last = n, 0, np.int64(-1)
            for i in range(before):
                group = changed[i] // FAN
                changed[n] = group
                n += group != last
                last = group
        for i in range(n):
            _compute(base, levels, level, changed[i])
    return -1


@compiled
def _get(nodes: Any, size: int, items: Any, weights: Any) -> int:
    leaves = nodes.view(np.float32)
    for i in range(items.shape[0]):
        if not 0 <= items[i] < size:
            return i
        weights[i] = leaves[items[i]]
    return -1


@compiled
def _fill(nodes: Any, levels: Any, first: int, weights: Any) -> int:
    for i in range(weights.shape[0]):
        if not 0.0 <= weights[i] <= LARGEST:
            return i
    base, leaves = nodes.ctypes.data, nodes.view(np.float32)
    for i in range(weights.shape[0]):
        leaves[first + i] = _rounded(weights[i])
    last = first + weights.shape[0] - 1
    for level in range(levels.shape[0] - 1):
        first, last = first // FAN, last // FAN
        for group in range(first, last + 1):
            _compute(base, levels, level, group)
    return -1


@compiled
def _clear(nodes: Any, levels: Any, first: int, count: int) -> None:
    base, last = nodes.ctypes.data, first + count - 1
    nodes[first * 4 : (last + 1) * 4] = 0
    for level in range(levels.shape[0] - 1):
        first, last = first // FAN, last // FAN
        if last - first > 1:  # all below the nodes between these two is zero
            sums, least = levels[level + 1, SUMS], levels[level + 1, LEAST]
            nodes[sums + (first + 1) * 8 : sums + last * 8] = 0
            nodes[least + (first + 1) * 4 : least + last * 4] = 0
        _compute(base, levels, level, first)
        _compute(base, levels, level, last)


@compiled
def _find(nodes: Any, levels: Any, masses: Any, items: Any, weights: Any) -> None:
    """Find items, and their weights."""
    base, leaves, rest = nodes.ctypes.data, nodes.view(np.float32), masses.copy()
    items[:] = 0
    for level in range(levels.shape[0] - 2, 0, -1):
        sums, below, width = base + levels[level, SUMS], base + levels[level - 1, SUMS], FAN * levels[level - 1, WIDTH]
        for i in range(items.shape[0]):
            lane, rest[i] = pick_f64(sums + items[i] * FAN * 8, rest[i])
            items[i] = items[i] * FAN + lane
            prefetch(below + items[i] * width)
            prefetch(below + items[i] * width + width - 1)
    for i in range(items.shape[0]):
        lane, _ = pick_f32(base + items[i] * FAN * 4, rest[i])
        items[i] = items[i] * FAN + lane
        weights[i] = leaves[items[i]]


@compiled
def _copy(nodes: Any, levels: Any, to_nodes: Any, to_levels: Any) -> None:
    """Copy a tree into a larger one, but for pages of zeros, which so go on taking no RAM; compute the levels above."""
    for level in range(levels.shape[0]):
        for field, width in ((SUMS, levels[level, WIDTH]), (LEAST, 4)):
            at, to, size = levels[level, field], to_levels[level, field], levels[level, GROUPS] * FAN * width
            for first in range(0, size, 4096):
                part = nodes[at + first : at + min(first + 4096, size)]
                if part.any():
                    to_nodes[to + first : to + first + part.shape[0]] = part
    for level in range(levels.shape[0] - 1, to_levels.shape[0] - 1):
        _compute(to_nodes.ctypes.data, to_levels, level, 0)
