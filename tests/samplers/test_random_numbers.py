"""Native random numbers are numpy's, and so are the steps that native code draws by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.index.fields import ENDED, HEAD
from diskbuffer.index.index import Index
from diskbuffer.native.sampling import Philox, draw_steps
from diskbuffer.samplers import Uniform
from diskbuffer.samplers.draws import Draw

COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}


def test_a_generator_draws_what_numpy_s_philox_draws(any_seed: int) -> None:
    rng = np.random.default_rng(any_seed)
    for _ in range(50):
        key, counter = (rng.integers(0, 2**64, 2, np.uint64) for _ in range(2))
        philox = Philox(*key.tolist())
        ours = np.random.Generator(philox)  # type: ignore[arg-type]
        ours.random(int(rng.integers(9)), np.float32)  # `start` forgets these
        philox.start(*counter.tolist())
        theirs = np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, *counter], np.uint64)))
        for _ in range(4):
            below, n = int(2 ** rng.uniform(0, 62)), int(rng.integers(20))
            for draw in (
                lambda g, below=below, n=n: g.integers(0, below, n),
                lambda g, n=n: g.random(n),
                lambda g, n=n: g.random(n, np.float32),
                lambda g, n=n: g.permutation(n),
                lambda g, n=n: g.integers(np.arange(n), np.arange(n) ** 2 + 1),
            ):
                np.testing.assert_array_equal(draw(ours), draw(theirs))


def table(steps: int) -> Index:
    """Return an index of one episode of so many steps."""
    index = Index(1, 1, 0)
    index.start_episodes(0, np.array([0]))
    index.table[0, [HEAD, ENDED]] = steps, False
    return index


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 100, 4096, 99_999, 2**31, 2**31 + 12_345, 2**32 - 1, 2**32])
def test_native_code_draws_the_steps_that_numpy_draws(steps: int, any_seed: int) -> None:
    for batch in (0, 1, 2**33 + 7):
        assert_same(Uniform(any_seed), batch, steps, 301)


def test_so_it_does_of_random_counts_and_sizes(any_seed: int) -> None:
    rng = np.random.default_rng(any_seed)
    for _ in range(300):
        sampler, steps = Uniform(int(rng.integers(2**40))), int(2 ** rng.uniform(0, 32))
        assert_same(sampler, int(rng.integers(2**40)), steps, int(rng.integers(40)))


def assert_same(sampler: Uniform, batch: int, steps: int, size: int) -> None:
    located = np.empty((4, size), np.int64)
    assert draw_steps(table(steps).table, sampler._started(batch)[0], located) == steps
    theirs = np.random.Generator(np.random.Philox(key=sampler._key, counter=[0, 0, 0, batch]))
    np.testing.assert_array_equal(located[1], theirs.integers(0, steps, size))


@pytest.mark.parametrize("steps", [0, 2**32 + 1, 2**40])
def test_native_code_draws_nothing_of_too_many_steps_or_of_none(steps: int) -> None:
    located = np.full((4, 7), -5, np.int64)
    assert draw_steps(table(steps).table, Philox(1, 2), located) == steps
    assert (located == -5).all()


def test_more_steps_than_native_code_draws_of_are_drawn_all_the_same() -> None:
    sampler = Uniform(3)
    positions = sampler.next(table(2**40), 50).drawn.positions
    np.testing.assert_array_equal(positions, sampler.generator(0).integers(0, 2**40, 50))


def test_a_subclass_that_draws_in_its_own_way_is_asked(tmp_path: Path) -> None:
    class Oldest(Uniform):
        def draw(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
            return super().draw(index, size, rng)._replace(positions=np.zeros(size, np.int64))

    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer:
        buffer.extend(obs=np.arange(101), action=np.zeros(100), reward=np.zeros(100))
        assert buffer.sample(32, Oldest(0))["obs"].tolist() == [0] * 32
        assert len(set(buffer.sample(32, Uniform(0))["obs"].tolist())) > 1
