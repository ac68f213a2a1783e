"""The kernels of samplers against plain Python."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from diskbuffer.index.fields import ENDED, HEAD
from diskbuffer.index.index import Index
from diskbuffer.native import sampling
from diskbuffer.samplers.sum_tree import SumTree

Int64 = npt.NDArray[np.int64]
SEGMENT_ROWS = 16


def some_index(rng: np.random.Generator) -> Index:
    """Return an index of three streams, whose segments lie in any order, and some of which were dropped."""
    index = Index(3, SEGMENT_ROWS, 0)
    slots = iter(rng.permutation(60).tolist())
    for stream in range(3):
        head = int(rng.integers(0, 200))
        starts = np.unique(np.append(0, rng.integers(0, head + 1, head // 9)))
        for _ in range(head // SEGMENT_ROWS + 1):
            index.add_slot(stream, next(slots))
        index.start_episodes(stream, starts)
        index.table[stream, [HEAD, ENDED]] = head, bool(rng.random() < 0.5)
        for _ in range(int(rng.integers(0, head // SEGMENT_ROWS + 1))):
            index.drop_segment(stream)
    return index


def row_of(index: Index, stream: int, position: int) -> int:
    low = int(index.table[stream, 2])
    return int(index.slots(stream)[(position - low) // SEGMENT_ROWS]) * SEGMENT_ROWS + position % SEGMENT_ROWS


def steps_of(index: Index, stream: int) -> list[int]:
    """Return the positions of all steps that can be sampled."""
    head, floor = (int(index.table[stream, field]) for field in (0, 3))
    starts = set(index.starts(stream).tolist())
    return [position for position in range(floor, head) if position + 1 not in starts]


@pytest.mark.parametrize(("steps", "period"), [(1, 1), (4, 1), (4, 2), (5, 3), (30, 7)])
def test_starts_of_sequences_are_those_that_a_plain_search_finds(steps: int, period: int, any_seed: int) -> None:
    rng = np.random.default_rng(any_seed)
    for _ in range(20):
        index = some_index(rng)
        for stream in range(3):
            head, ended, floor = (int(index.table[stream, field]) for field in (0, 1, 3))
            is_start = np.empty(max(head - floor, 0), np.bool_)
            sampling.find_starts(index.table, stream, floor, steps, period, is_start)
            starts = index.starts(stream).tolist()
            for position, answer in zip(range(floor, head), is_start.tolist(), strict=True):
                first = max(start for start in starts if start <= position)
                last = min([start - 1 for start in starts if start > position], default=head)
                over = last < head or ended
                fits = position + steps <= last
                on_grid = (position - first) % period == 0
                assert answer == bool(fits and (on_grid or (over and position + steps == last)))


def test_rows_are_drawn_in_proportion_and_located(any_seed: int) -> None:
    rng = np.random.default_rng(any_seed)
    for _ in range(50):
        index = some_index(rng)
        tree, segments = SumTree(60 * SEGMENT_ROWS), np.full((60, 2), -1, np.int64)
        places = [(stream, position) for stream in range(3) for position in steps_of(index, stream)]
        if not places:
            continue
        rows = np.array([row_of(index, *place) for place in places])
        for (stream, position), row in zip(places, rows.tolist(), strict=True):
            segments[row // SEGMENT_ROWS] = stream, position // SEGMENT_ROWS * SEGMENT_ROWS
        weights = rng.random(len(rows)).astype(np.float32).astype(float)
        tree.set(rows, weights)
        n = int(rng.integers(1, 40))
        random, located, ratios = rng.random(n), np.empty((4, n), np.int64), np.empty(n)
        sampling.draw_rows(tree.nodes, tree.size, index.table, segments, SEGMENT_ROWS, random, located, ratios)
        drawn, theirs = tree.draw((np.arange(n) + random) * (tree.total / n))
        assert [row_of(index, *place) for place in located[:2].T.tolist()] == drawn.tolist()
        np.testing.assert_array_equal(located[2:], index.episodes_of(located[0], located[1]))
        np.testing.assert_array_equal(ratios, tree.least / theirs)


def test_steps_are_found_where_they_are_and_weigh_something(any_seed: int) -> None:
    rng = np.random.default_rng(any_seed)
    for _ in range(30):
        index = some_index(rng)
        tree = SumTree(60 * SEGMENT_ROWS)
        there = {
            position * 3 + stream: row_of(index, stream, position) for stream in range(3) for position in steps_of(index, stream)
        }
        known = {step: row for step, row in there.items() if rng.random() < 0.7}
        tree.set(np.array(list(known.values()), np.int64), np.ones(len(known)))
        ids = rng.integers(-5, 650, 300)
        rows = np.empty(len(ids), np.int64)
        found = sampling.find_weighted(tree.nodes, tree.size, index.table, SEGMENT_ROWS, ids, rows)
        assert rows.tolist() == [known.get(step, -1) for step in ids.tolist()]
        assert found == (rows >= 0).sum()
        values, column = rng.random(found).astype(np.float32), np.zeros((60, SEGMENT_ROWS), np.float32)
        addresses = np.array([segment.ctypes.data for segment in column], np.int64)
        largest = sampling.write_rows(addresses, SEGMENT_ROWS, rows[rows >= 0], values, 0.5)
        assert largest == max([0.5, *values.tolist()])
        expected = np.zeros(column.size, np.float32)
        for row, value in zip(rows[rows >= 0].tolist(), values.tolist(), strict=True):
            expected[row] = value
        np.testing.assert_array_equal(column.ravel(), expected)


@pytest.mark.parametrize("field", range(5))
def test_a_stream_has_changed_where_one_of_four_numbers_has(field: int, any_seed: int) -> None:
    index = some_index(np.random.default_rng(any_seed))
    seen = np.ascontiguousarray(index.table[:, [0, 1, 2, 3]])
    assert not sampling.has_changed(index.table, seen)
    index.table[2, field] += 1
    assert sampling.has_changed(index.table, seen) == (field < 4)


@pytest.mark.parametrize("wrong", [None, -5e-324, -1.0, 1e30, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 64])
def test_numbers_are_within_limits_where_each_is(wrong: float | None, n: int) -> None:
    for place in range(n):
        numbers = np.resize([0.0, -0.0, 1.0, np.nextafter(1e30, 0)], n)
        if wrong is not None:
            numbers[place] = wrong
        assert sampling.all_within(numbers, 1e30) == (wrong is None)
    assert sampling.all_within(np.empty(0), 1e30)
