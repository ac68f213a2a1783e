"""The compiled random numbers are numpy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.draws import Draw
from diskbuffer.index.index import Index
from diskbuffer.samplers import Uniform
from diskbuffer.samplers.random_numbers import MOST, integers


@pytest.mark.parametrize("below", [1, 2, 3, 5, 100, 4096, 99_999, 2**31, 2**31 + 12_345, MOST - 1, MOST])
def test_compiled_numbers_are_those_that_numpy_draws(below: int, any_seed: int) -> None:
    for batch in (0, 1, 2**33 + 7):
        assert_same(Uniform(any_seed), batch, below, 301)


def test_so_are_those_of_random_bounds_and_sizes(any_seed: int) -> None:
    rng = np.random.default_rng(any_seed)
    for _ in range(300):
        sampler, below = Uniform(int(rng.integers(2**40))), int(2 ** rng.uniform(0, 32))
        assert_same(sampler, int(rng.integers(2**40)), below, int(rng.integers(40)))


def assert_same(sampler: Uniform, batch: int, below: int, size: int) -> None:
    for again in (False, True):
        found = np.empty(size, np.int64)
        integers(sampler._key, int(again), batch, below, found)
        np.testing.assert_array_equal(found, sampler.generator(batch, again=again).integers(0, below, size))


def test_a_subclass_that_draws_in_its_own_way_is_asked(tmp_path: Path) -> None:
    class Oldest(Uniform):
        def draw(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
            return super().draw(index, size, rng)._replace(positions=np.zeros(size, np.int64))

    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend(obs=np.arange(101), action=np.zeros(100), reward=np.zeros(100))
        assert buffer.sample(32, Oldest(0))["obs"].tolist() == [0] * 32
        assert len(set(buffer.sample(32, Uniform(0))["obs"].tolist())) > 1
