"""Rows copied to addresses, and memory compared with what it was, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.native import blocks
from diskbuffer.native.arrays import address_of
from tests.amounts import examples


@examples(50, 1000)
@given(st.integers(0, 20), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_rows_are_copied_to_their_addresses(n: int, row_bytes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, places = random.integers(0, 256, (n, row_bytes), np.uint8), random.permutation(30)[:n]
    expected = random.integers(0, 256, (30, row_bytes), np.uint8)
    copied = expected.copy()
    expected[places] = rows
    blocks.scatter(address_of(rows), row_bytes, address_of(copied) + row_bytes * places)
    np.testing.assert_array_equal(copied, expected)


@examples(50, 1000)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=8),
    st.sampled_from([0, 0.02, 0.5]),
    st.integers(0, 2**32),
)
def test_bytes_that_are_not_zero_are_found(runs: list[tuple[int, int]], share: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = np.where(random.random(80) < share, random.integers(1, 256, 80), 0).astype(np.uint8)
    expected = [(n, at) for n, (first, count) in enumerate(runs) for at in range(count) if values[first + at]]
    firsts, counts = np.array(runs, np.int64).reshape(-1, 2).T
    which, places = blocks.find_set(address_of(values) + firsts, np.ascontiguousarray(counts))
    assert [*zip(which.tolist(), places.tolist(), strict=True)] == expected


@examples(100, 2000)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.booleans()), max_size=8), st.integers(0, 2**32 - 1))
def test_the_groups_of_changed_memory_are_noted(sizes: list[tuple[int, int, bool]], seed: int) -> None:
    random = np.random.default_rng(seed)
    before = [random.integers(0, 256, size, np.uint8) for size, _, _ in sizes]
    now, expected = [array.copy() for array in before], np.zeros(4, np.bool_)
    for array, (size, group, changes) in zip(now, sizes, strict=True):
        if changes and size:
            array[random.integers(size)] ^= 1 << random.integers(8)
            expected[group] = True
    pairs = zip(now, before, strict=True)
    watched = np.array([(address_of(one), address_of(other), one.nbytes) for one, other in pairs], np.int64).reshape(-1, 3)
    changed = np.zeros(4, np.bool_)
    blocks.note_changes(watched, np.array([group for _, group, _ in sizes], np.int64), changed)
    assert changed.tolist() == expected.tolist()


def test_groups_that_there_are_not_are_refused() -> None:
    with pytest.raises(ValueError, match="numbers below 1, found 1"):
        blocks.note_changes(np.zeros((1, 3), np.int64), np.ones(1, np.int64), np.zeros(1, np.bool_))
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        blocks.note_changes(np.zeros((1, 3), np.int64), np.zeros(2, np.int64), np.zeros(1, np.bool_))
