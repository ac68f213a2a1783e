"""The uniform draw: every step that can be sampled has the same probability, and a seed gives the same draws again."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import diskbuffer as db
from diskbuffer.drawing import Drawing
from tests.chi_square import assert_uniform
from tests.support.experience import Experience, Feeder


def draw(buffer: db.ReplayBuffer, sampler: db.Uniform, n: int) -> npt.NDArray[Any]:
    return np.concatenate([buffer.sample(2048, sampler)["steps"].numpy() for _ in range(-(-n // 2048))])


def steps_by_hand(world: Experience, buffer: db.ReplayBuffer, feed: Feeder) -> npt.NDArray[Any]:
    """Return the steps that can be sampled, found by trying each that was ever added."""
    found = []
    for stream in range(world.n_envs):
        for position in range(int(feed.heads[stream])):
            try:
                buffer.at([position * world.n_envs + stream])
            except db.InputError:
                continue
            found.append(position * world.n_envs + stream)
    return np.array(found)


def test_the_test_itself_finds_what_is_not_uniform() -> None:
    rng, steps = np.random.default_rng(0), np.arange(100)
    assert_uniform(rng.integers(0, 100, 10_000), steps)
    with pytest.raises(AssertionError):
        assert_uniform(np.repeat(steps, 100), steps)  # more even than chance
    with pytest.raises(AssertionError):
        assert_uniform(np.append(rng.integers(0, 100, 10_000), [7] * 120), steps)
    with pytest.raises(AssertionError):
        assert_uniform(rng.integers(0, 99, 10_000), steps)
    with pytest.raises(AssertionError, match="100"):
        assert_uniform(np.append(rng.integers(0, 100, 10_000), [100]), steps)


@pytest.mark.some(1)
@pytest.mark.parametrize(("n_envs", "episode", "stack"), [(1, 1, 1), (1, 50, 4), (3, 1, 4), (4, 2, 1), (2, 1000, 1)])
def test_every_step_is_drawn_with_the_same_probability(n_envs: int, episode: int, stack: int, tmp_path: Path) -> None:
    world = Experience(n_envs, episode, (9,))
    path, sampler = tmp_path / "store", db.Uniform(seed=n_envs + episode)
    with world.open(path, 150, segment_rows=8, frame_stack=stack) as buffer:
        feed = Feeder(world, buffer)
        feed.add(20)
        feed.extend(0, 33)  # streams of unequal lengths
        among = steps_by_hand(world, buffer, feed)
        assert len(among) == len(buffer) == 20 * n_envs + 33
        assert_uniform(draw(buffer, sampler, 60 * len(among)), among)

        feed.add(300)  # evicts
        among = steps_by_hand(world, buffer, feed)
        assert 150 <= len(among) == len(buffer)
        assert_uniform(draw(buffer, sampler, 60 * len(among)), among)
    with world.open(path, frame_stack=stack) as buffer:
        again = steps_by_hand(world, buffer, feed)
        np.testing.assert_array_equal(again, among)
        assert_uniform(draw(buffer, sampler, 60 * len(again)), again)


def test_a_loader_draws_uniformly_too(tmp_path: Path) -> None:
    world = Experience(3, 4, (9,))
    with world.open(tmp_path / "store", seed=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(50)
        drawn = []
        for batch in buffer.loader(1024):
            drawn.append(batch["steps"].numpy())
            if len(drawn) == 12:
                break
        assert_uniform(np.concatenate(drawn), steps_by_hand(world, buffer, feed))


def test_pairs_of_steps_are_drawn_independently(tmp_path: Path) -> None:
    world = Experience(1, 3, (9,))
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(10)
        steps, sampler = buffer.at(np.array([0, 1, 2]))["steps"], db.Uniform(4)
        assert steps.tolist() == [0, 1, 2]
        batches = np.stack([buffer.sample(20, sampler)["steps"].numpy() for _ in range(1000)])
        numbers = np.searchsorted(np.unique(batches), batches)
        assert_uniform((numbers[:, :-1] * 10 + numbers[:, 1:]).ravel(), np.arange(100))  # one and the next of a batch
        assert_uniform((numbers[:-1] * 10 + numbers[1:]).ravel(), np.arange(100))  # one and that of the next batch


def test_a_seed_gives_the_same_draws_again_and_another_seed_others(tmp_path: Path) -> None:
    def drawn(seed: int | None) -> list[list[int]]:
        with db.ReplayBuffer(tmp_path / "store", mode="r", seed=seed) as buffer:
            return [buffer.sample(16)["steps"].tolist() for _ in range(5)]

    world = Experience(2)
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(100)
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(None) != drawn(None)
    assert len({tuple(batch) for batch in drawn(1)}) == 5


def test_samplers_of_one_seed_draw_the_same_and_a_state_goes_on(tmp_path: Path) -> None:
    world = Experience(2)
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(100)
        one, other = db.Uniform(5), db.Uniform(5)
        first = [buffer.sample(16, one)["steps"].tolist() for _ in range(6)]
        assert [buffer.sample(16, other)["steps"].tolist() for _ in range(2)] == first[:2]
        resumed = db.Uniform()
        resumed.load_state_dict(other.state_dict())
        assert [buffer.sample(16, resumed)["steps"].tolist() for _ in range(4)] == first[2:]


def test_the_draw_does_not_depend_on_numpys_global_state(tmp_path: Path) -> None:
    world = Experience()
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(100)
        np.random.seed(0)  # noqa: NPY002
        before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
        a = buffer.sample(16, db.Uniform(3))["steps"]
        np.testing.assert_array_equal(np.random.get_state()[1], before)  # type: ignore[index]  # noqa: NPY002
        np.random.seed(1)  # noqa: NPY002
        assert a.tolist() == buffer.sample(16, db.Uniform(3))["steps"].tolist()


def test_a_batch_has_the_size_that_was_asked_for_whatever_another_thread_asks_for_meanwhile(tmp_path: Path) -> None:
    columns = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}
    others = list[int]()
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend(obs=np.zeros((65, 2)), action=np.zeros(64), reward=np.zeros(64))

        def at_each_line(frame: FrameType, event: str, _: Any) -> Any:
            """Sample as another thread would that came in between two lines of `sample`."""
            if frame.f_code in (db.ReplayBuffer.sample.__code__, Drawing.source.__code__) and event == "line":
                sys.settrace(None)
                others.append(len(buffer.sample(7)["reward"]))
                sys.settrace(at_each_line)
            return at_each_line

        before = sys.gettrace()
        try:
            sys.settrace(at_each_line)
            sizes = [len(buffer.sample(size)["reward"]) for size in (30, 30, 1, 7, 30)]
        finally:
            sys.settrace(before)
    assert sizes == [30, 30, 1, 7, 30]
    assert len(others) > 15
    assert set(others) == {7}


def test_another_buffers_episodes_are_refused(tmp_path: Path) -> None:
    columns = {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}
    with (
        db.ReplayBuffer(tmp_path / "one", columns=columns) as one,
        db.ReplayBuffer(tmp_path / "other", columns=columns) as other,
    ):
        for buffer in (one, other):
            for _ in range(3):
                buffer.extend(obs=np.zeros((11, 4)), action=np.zeros(10, int), reward=np.ones(10), terminated=np.arange(10) == 9)
        some = db.Uniform(episodes=other.episodes[1:])
        with db.ReplayBuffer(tmp_path / "other", mode="r") as reader:
            assert set(reader.sample(50, some)["steps"].tolist()) <= set(range(11, 33))  # of the same store
        for use in (
            lambda: one.sample(4, some),
            lambda: one.sample(4, pickle.loads(pickle.dumps(some))),
            lambda: one.batches(4, sampler=db.Slices(3, episodes=other.episodes[1:])),
            lambda: db.Mixture([(one, 1, some), (other, 1)]).sample(4),
            lambda: one.episode(other.episodes[1]),
        ):
            with pytest.raises(db.InputError, match="of another buffer"):
                use()
