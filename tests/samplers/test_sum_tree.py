"""The sum tree against a plain list of weights."""

from __future__ import annotations

import ctypes
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.errors import InputError
from diskbuffer.samplers.sum_tree import LARGEST, TINY, SumTree
from tests.amounts import examples
from tests.chi_square import assert_uniform

Weights = npt.NDArray[np.float64]
SIZES = [0, 1, 2, 15, 16, 17, 31, 33, 255, 256, 257, 1000, 4095, 4096, 4097, 5000]


def some_weights(kind: str, n: int, rng: np.random.Generator) -> Weights:
    """Return weights, a third of them zero: whole numbers, whose sums are exact, or of many magnitudes."""
    weights = rng.integers(1, 100, n).astype(float) if kind == "whole" else 10 ** rng.uniform(-6, 3, n)
    weights[rng.random(n) < rng.choice([0, 1 / 3, 0.99])] = 0
    return weights.astype(np.float32).astype(float)


def adversarial(weights: Weights, total: float, rng: np.random.Generator) -> Weights:
    """Return masses at the ends, outside, and right at, below and above where items begin."""
    begin = np.append(0, np.cumsum(weights))[rng.integers(0, len(weights) + 1, 50)]
    beside = [begin, np.nextafter(begin, np.inf), np.nextafter(begin, -np.inf), rng.random(50) * total]
    ends = [-0.0, 0, 5e-324, np.nextafter(total, 0), total, np.nextafter(total, np.inf)]
    outside = [-1, 2 * total, np.inf, -np.inf, np.nan]
    return np.concatenate([ends, outside, *beside])


def check(tree: SumTree, weights: Weights, kind: str, rng: np.random.Generator) -> None:
    """Compare the tree with a plain list."""
    n, exact = len(weights), math.fsum(weights)
    assert tree.size == n
    np.testing.assert_array_equal(tree.get(np.arange(n)), weights)
    assert tree.total == (exact if kind == "whole" else pytest.approx(exact, rel=1e-14))
    assert tree.least == min((weight for weight in weights.tolist() if weight), default=np.inf)
    rebuilt = SumTree(n)
    rebuilt.fill(0, weights)
    assert rebuilt.nodes.tobytes() == tree.nodes.tobytes()
    if not exact:
        with pytest.raises(InputError, match="above zero"):
            tree.find(np.zeros(1))
        return
    masses = adversarial(weights, tree.total, rng)
    found, theirs = tree.draw(masses)
    np.testing.assert_array_equal(found, tree.find(masses))
    assert found.min() >= 0
    assert found.max() < n
    assert (weights[found] > 0).all()
    np.testing.assert_array_equal(theirs, weights[found])
    within = (masses >= 0) & (masses < tree.total)
    ends = np.cumsum(weights)
    positive = np.flatnonzero(weights)
    assert (found[masses < ends[positive[0]]] == positive[0]).all()
    if kind == "whole":
        np.testing.assert_array_equal(found[within], np.searchsorted(ends, masses[within], side="right"))
        assert (tree.find(np.array([np.nextafter(tree.total, 0), tree.total, np.inf])) == positive[-1]).all()
    else:
        slack = 1e-13 * exact
        assert (ends[found] - weights[found] <= masses + slack)[within].all()
        assert (masses < ends[found] + slack)[within].all()


STEPS = st.tuples(st.sampled_from(["set", "fill", "clear", "grow"]), st.integers(0, 2**32))


@examples(25, 1000)
@given(kind=st.sampled_from(["whole", "wide"]), size=st.sampled_from(SIZES), steps=st.lists(STEPS, max_size=12))
def test_a_tree_is_a_list_of_weights(kind: str, size: int, steps: list[tuple[str, int]]) -> None:
    tree, weights = SumTree(size), np.zeros(size)
    check(tree, weights, kind, np.random.default_rng(0))
    for step, seed in steps:
        rng = np.random.default_rng(seed)
        first = int(rng.integers(0, len(weights) + 1))
        count = int(rng.integers(0, rng.choice([2, 40, 6000]))) % (len(weights) - first + 1)
        if step == "grow":
            weights = np.append(weights, np.zeros(rng.choice([0, 1, 16, 300, 5000])))
            tree.grow(len(weights))
        elif step == "clear":
            weights[first : first + count] = 0
            tree.clear(first, count)
        elif step == "fill":
            weights[first : first + count] = some_weights(kind, count, rng)
            tree.fill(first, weights[first : first + count])
        elif len(weights):
            items = rng.integers(first % len(weights), len(weights), count)  # many come twice
            given_ = some_weights(kind, count, rng)
            for item, weight in zip(items, given_, strict=True):
                weights[item] = weight
            tree.set(items, given_)
        check(tree, weights, kind, rng)


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("alone", [0, 0.5, 1])
def test_one_item_above_zero_takes_every_mass(size: int, alone: float) -> None:
    tree, item = SumTree(size), int((size - 1) * alone)
    for weight in (TINY, 1e-6, 1.0, 1e3, LARGEST):
        tree.set(np.array([item]), np.array([weight]))
        assert (tree.total, tree.least) == (float(np.float32(weight)),) * 2
        masses = adversarial(np.ones(1), tree.total, np.random.default_rng(0))
        np.testing.assert_array_equal(tree.find(masses), item)


def test_weights_of_all_magnitudes_are_found_in_proportion_whatever_rounding_does() -> None:
    rng = np.random.default_rng(1)
    weights = (10 ** rng.uniform(-6, 3, 300_000)).astype(np.float32).astype(float)
    weights[rng.random(len(weights)) < 0.5] = 0
    tree = SumTree(len(weights))
    tree.fill(0, weights)
    items = rng.permutation(np.flatnonzero(weights))[:2000]
    edges = []
    for after in (items, items + 1):  # bisect for the first mass that falls on one of these, or behind
        low, high = np.full(len(items), -1.0), np.full(len(items), 2 * tree.total)
        for _ in range(120):
            middle = (low + high) / 2
            behind = tree.find(middle) >= after
            low, high = np.where(behind, low, middle), np.where(behind, middle, high)
        edges.append(high)
    last = items == np.flatnonzero(weights)[-1]
    wrong = np.abs(edges[1] - edges[0] - weights[items])[~last]
    assert wrong.max() < 1e-15 * tree.total  # as far apart as masses of that size are
    assert wrong.sum() / weights[items].sum() < 1e-10


def test_draws_are_in_proportion() -> None:
    rng = np.random.default_rng(2)
    weights = rng.integers(0, 6, 700)
    tree = SumTree(len(weights))
    tree.fill(0, weights / 1000)
    found = tree.find(rng.random(200_000) * tree.total)
    # An item of weight 3 is three units of one: as even as chance makes it, if each is drawn in proportion.
    units = (np.cumsum(weights) - weights)[found] + rng.integers(0, weights[found])
    assert_uniform(units, np.arange(weights.sum()))


def test_strata_fall_on_their_shares() -> None:
    rng = np.random.default_rng(3)
    weights = rng.random(5000)
    tree = SumTree(len(weights))
    tree.fill(0, weights)
    n = 1_000_000
    found = tree.find((np.arange(n) + rng.random(n)) * (tree.total / n))
    counts = np.bincount(found, minlength=len(weights))
    assert np.abs(counts - n * weights / weights.sum()).max() < 2  # but for the strata at both ends
    assert (np.diff(found) >= 0).all()


def test_weights_too_small_for_float32_do_not_vanish() -> None:
    tree = SumTree(40)
    tree.set(np.array([7, 8]), np.array([5e-324, -0.0]))
    assert tree.total == tree.least == TINY
    assert math.copysign(1, tree.get(np.array([8])).item()) == 1
    assert tree.find(np.array([0.0])).tolist() == [7]


def ram_of(tree: SumTree) -> int:
    """Return how many bytes of a tree are in memory, as the system tells."""
    first = tree.nodes.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    there = np.zeros(-(-(tree.nodes.ctypes.data + tree.nbytes - first) // mmap.PAGESIZE), np.uint8)
    places = (first, len(there) * mmap.PAGESIZE, there.ctypes.data)
    assert ctypes.CDLL(None).mincore(*map(ctypes.c_void_p, places)) == 0
    return mmap.PAGESIZE * int((there & 1).sum())


def test_a_huge_tree_takes_ram_where_it_was_used() -> None:
    tree = SumTree(50_000_000)
    tree.set(np.array([3, 49_999_999]), np.array([1.0, 2.0]))
    tree.grow(100_000_000)
    tree.set(np.array([99_999_999]), np.array([4.0]))
    assert tree.find(np.array([0.5, 2.5, 6.5])).tolist() == [3, 49_999_999, 99_999_999]
    assert 0 < ram_of(tree) < 20e6
    assert tree.nbytes == pytest.approx(4.8 * tree.size, rel=1e-5)


def test_any_integers_floats_and_strides_will_do() -> None:
    tree = SumTree(100)
    frozen: Any = np.arange(10, dtype=np.uint8)
    frozen.flags.writeable = False
    tree.set(frozen, np.arange(20, dtype=np.float32)[::2])
    tree.set(np.array([], np.int64), np.array([]))
    tree.fill(20, np.arange(1, 4, dtype=np.float16))
    tree.clear(100, 0)
    assert tree.get(np.arange(24)[::-2]).tolist() == [0, 2, 0, 0, 0, 0, 0, 18, 14, 10, 6, 2]
    assert tree.total == 96
    assert tree.find(np.zeros(0)).shape == (0,)


WRONG: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "item below": ("set", ([3, -1], [1.0, 1.0]), "from 0 to 99, found -1"),
    "item above": ("set", ([100, 3], [1.0, 1.0]), "from 0 to 99, found 100"),
    "item beyond int64": ("set", (np.array([2**63], np.uint64), [1.0]), "from 0 to 99"),
    "item asked for": ("get", ([100],), "from 0 to 99, found 100"),
    "items of floats": ("set", ([1.0], [1.0]), "integers in one dimension, found float64"),
    "items of bool": ("get", ([True],), "integers in one dimension, found bool"),
    "items in rows": ("get", ([[1]],), "one dimension, found int64 in 2"),
    "lengths": ("set", ([1, 2], [1.0]), "one length, found 2 and 1"),
    "negative": ("set", ([1, 2], [1.0, -1e-9]), "from 0 to 3.4e+38, found -1e-09"),
    "nan": ("set", ([1, 2], [1.0, np.nan]), "found nan"),
    "infinite": ("set", ([1, 2], [1.0, np.inf]), "found inf"),
    "beyond float32": ("set", ([1, 2], [1.0, 1e39]), "found 1e+39"),
    "words": ("set", ([1], ["much"]), "must be numbers"),
    "weights in rows": ("fill", (0, [[1.0]]), "one dimension, found 2"),
    "fill of nan": ("fill", (5, [1.0, np.nan]), "found nan"),
    "fill of negatives": ("fill", (5, [1.0, -1.0]), "found -1.0"),
    "fill too far": ("fill", (99, [1.0, 1.0]), "end at 100, the number of items, or before, found 99 to 101"),
    "fill before": ("fill", (-1, [1.0]), "first must be an integer of at least 0, found -1"),
    "clear too far": ("clear", (50, 51), "found 50 to 101"),
    "clear less than none": ("clear", (50, -1), "count must be an integer of at least 0, found -1"),
    "clear halves": ("clear", (0.5, 1), "first must be an integer of at least 0, found 0.5"),
    "shrink": ("grow", (99,), "size must be an integer of at least 100, found 99"),
    "grow by a word": ("grow", ("more",), "size must be an integer of at least 100, found 'more'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_before_anything_changes(case: str) -> None:
    tree = SumTree(100)
    tree.set(np.array([1, 50, 99]), np.array([3.0, 4.0, 5.0]))
    before = tree.nodes.tobytes()
    method, given_, message = WRONG[case]
    with pytest.raises(InputError) as caught:
        getattr(tree, method)(*given_)
    assert message in str(caught.value)
    assert tree.nodes.tobytes() == before
    assert tree.size == 100


def test_a_tree_of_less_than_nothing() -> None:
    with pytest.raises(InputError, match="size must be an integer of at least 0, found -1"):
        SumTree(-1)
