"""Draws without replacement: a permutation that is computed, and epochs in which every start comes once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.samplers.permutation import Permutation
from tests.amounts import examples
from tests.chi_square import assert_uniform
from tests.samplers.test_slices import starts_by_hand
from tests.support.experience import Experience, Feeder


def firsts_of(batch: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the names of a batch's steps, of sequences those of the first steps."""
    steps: np.ndarray[Any, Any] = batch["steps"].numpy()
    return steps if steps.ndim == 1 else steps[:, 0]


@examples(50, 1000)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**40))
def test_a_permutation_has_every_number_once(n: int, seed: int) -> None:
    order = Permutation(n, seed)
    middle = n // 3
    np.testing.assert_array_equal(np.concatenate([order(0, middle), order(middle, n)]), order(0, n))
    np.testing.assert_array_equal(np.sort(order(0, n)), np.arange(n))


@pytest.mark.parametrize("n", [2, 3, 7, 64, 100])
def test_every_place_of_a_permutation_may_hold_every_number(n: int) -> None:
    orders = np.stack([Permutation(n, seed)(0, n) for seed in range(40 * n)])
    for place in (0, n // 2, n - 1):
        assert_uniform(orders[:, place], np.arange(n))
    if n > 2:
        assert_uniform((orders[:, 0] - orders[:, 1]) % n, np.arange(1, n))  # and one tells nothing of the next


def test_a_huge_permutation_takes_no_memory() -> None:
    order = Permutation(346_000_000, 5)
    found = order(345_999_000, 346_000_000)
    assert len(np.unique(found)) == 1000
    assert found.min() >= 0
    assert found.max() < 346_000_000


@pytest.mark.some(1)
@pytest.mark.parametrize("length", [None, 1, 7, 20])
def test_every_start_comes_once_an_epoch_and_each_epoch_has_its_own_order(length: int | None, tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))
    with world.open(tmp_path / "store", 150, segment_rows=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(90)
        sampler = db.Uniform(1, replace=False) if length is None else db.Slices(length, 1, replace=False)
        starts = np.sort(starts_by_hand(buffer, length or 1))
        drawn = np.concatenate([firsts_of(buffer.sample(16, sampler)) for _ in range(5 * len(starts))])
        epochs = drawn[: len(drawn) // len(starts) * len(starts)].reshape(-1, len(starts))
        for epoch in epochs:
            np.testing.assert_array_equal(np.sort(epoch), starts)
        if len(starts) > 30:
            assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_what_is_evicted_drops_out_of_an_epoch_and_what_is_added_is_in_the_next(tmp_path: Path) -> None:
    world, sampler = Experience(2, 20, (9,)), db.Uniform(3, replace=False)
    with world.open(tmp_path / "store", 200, segment_rows=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(150)
        begin = buffer.steps()
        first = buffer.sample(64, sampler)["steps"].numpy()
        feed.add(30)
        there = np.intersect1d(begin, buffer.steps())
        assert 0 < len(there) < len(begin)
        drawn = np.empty(0, np.int64)
        wanted = np.setdiff1d(there, first)
        while len(np.intersect1d(drawn, wanted)) < len(wanted):
            drawn = np.concatenate([drawn, buffer.sample(8, sampler)["steps"].numpy()])
            assert len(drawn) < len(wanted) + 8
        np.testing.assert_array_equal(np.sort(drawn[: len(wanted)]), np.sort(wanted))
        again = buffer.steps()
        rest = drawn[len(wanted) :]
        while len(rest) < len(again):
            rest = np.concatenate([rest, buffer.sample(1, sampler)["steps"].numpy()])
        np.testing.assert_array_equal(np.sort(rest), np.sort(again))


def test_an_epoch_goes_on_from_its_state(tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(100)
        one, other = db.Slices(5, 9, replace=False), db.Slices(5, 9, replace=False)
        expected = [buffer.sample(24, one)["steps"].tolist() for _ in range(20)]
        found = [batch["steps"].tolist() for batch in itertools.islice(buffer.loader(24, other, prefetch=4), 7)]
        resumed = db.Slices(5, replace=False)
        resumed.load_state_dict(other.state_dict())
        found += [batch["steps"].tolist() for batch in itertools.islice(buffer.loader(24, resumed), 13)]
        assert found == expected
        for wrong in ({}, {"epoch": 0}, {"epoch": 0, "frozen": [[1]], "steps": 3, "at": 0}, 7):
            with pytest.raises(db.InputError, match="without replacement"):
                resumed.load_state_dict({**other.state_dict(), "epochs": wrong})
        assert buffer.sample(24, resumed)["steps"].tolist() == buffer.sample(24, one)["steps"].tolist()


def test_no_start_at_all_is_told(tmp_path: Path) -> None:
    world = Experience(1, 20, (9,))
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(50)
        with pytest.raises(db.errors.EmptyBufferError, match="21 steps of a sequence, the longest has 20"):
            buffer.sample(4, db.Slices(21, replace=False))
    with pytest.raises(db.InputError, match="replacement"):
        db.Slices(4, over="episodes", replace=False)


def test_a_state_of_another_buffer_or_a_strangers_reads_nothing_out_of_bounds(tmp_path: Path) -> None:
    worlds = Experience(2, 20, (9,)), Experience(1, 20, (9,))
    with worlds[0].open(tmp_path / "large") as large, worlds[1].open(tmp_path / "small") as small:
        Feeder(worlds[0], large).add(300)
        Feeder(worlds[1], small).add(25)
        for sampler in (db.Uniform(1, replace=False), db.Slices(3, 1, replace=False)):
            large.sample(16, sampler)
            drawn = np.concatenate([firsts_of(small.sample(16, sampler)) for _ in range(20)])
            assert set(drawn.tolist()) <= set(small.steps().tolist())
            state = sampler.state_dict()
            for frozen, steps in (([[0, 2**40]], 2**40), ([[2**61, 5]], 5), ([[0, 5], [0, 5]], 10), ([], 7)):
                sampler.load_state_dict({**state, "epochs": {"epoch": 0, "frozen": frozen, "steps": steps, "at": 0}})
                worlds[1].check_batch(small.sample(4, sampler) if isinstance(sampler, db.Uniform) else small.sample(4))
            with pytest.raises(db.InputError, match="damaged"):
                sampler.load_state_dict({**state, "epochs": {"epoch": 0, "frozen": [[0, 5]], "steps": 6, "at": 0}})
