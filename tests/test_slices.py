"""Sequences: what is in them, and that every valid start, or every episode, has the same probability."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.index import Index
from tests.chi_square import assert_uniform

if TYPE_CHECKING:
    from tests.conftest import Experience, Feeder


def starts_by_hand(buffer: db.ReplayBuffer, length: int) -> np.ndarray[Any, Any]:
    """Return the steps that start a whole sequence, from the episodes as listed."""
    found = [np.empty(0, np.int64)]
    for n in range(len(buffer.episodes)):
        episode = buffer.episodes[n]
        found.append(episode.start + buffer.n_envs * np.arange(max(0, episode.length - length + 1)))
    return np.concatenate(found)


def draw(buffer: db.ReplayBuffer, sampler: db.Slices, n: int) -> np.ndarray[Any, Any]:
    return np.concatenate([buffer.sample(1024, sampler)["steps"].numpy() for _ in range(-(-n // 1024))])


@pytest.mark.parametrize("length", [1, 7, 20, 23])
def test_every_valid_start_has_the_same_probability(
    length: int, tmp_path: Path, experience: type[Experience], feeder: type[Feeder]
) -> None:
    world, sampler = experience(2, 20, (9,)), db.Slices(length, seed=length)
    with world.open(tmp_path / "store", 150, segment_rows=8) as buffer:
        feed = feeder(world, buffer)
        feed.add(70)
        assert_uniform(draw(buffer, sampler, 6000), starts_by_hand(buffer, length))
        feed.add(300)  # evicts
        assert_uniform(draw(buffer, sampler, 6000), starts_by_hand(buffer, length))
    with world.open(tmp_path / "store") as buffer:
        assert_uniform(draw(buffer, sampler, 6000), starts_by_hand(buffer, length))


@pytest.mark.parametrize("length", [3, 21])
def test_every_episode_that_is_long_enough_has_the_same_probability(
    length: int, tmp_path: Path, experience: type[Experience], feeder: type[Feeder]
) -> None:
    world, sampler = experience(2, 20, (9,)), db.Slices(length, seed=1, over="episodes")
    with world.open(tmp_path / "store", segment_rows=64) as buffer:
        feed = feeder(world, buffer)
        feed.add(110)
        feed.extend(1, 190)
        steps = draw(buffer, sampler, 8000)
        episodes = buffer.episodes
        enough = np.flatnonzero(episodes.length >= length)
        ends = episodes.start + 2 * episodes.length
        drawn = [[n for n in enough if episodes.start[n] <= s < ends[n] and (s - episodes.start[n]) % 2 == 0] for s in steps]
        assert all(len(some) == 1 for some in drawn)
        assert_uniform(np.array(drawn)[:, 0], enough)
        within = steps[np.array(drawn)[:, 0] == enough[0]]
        assert_uniform(within, episodes.start[enough[0]] + 2 * np.arange(episodes.length[enough[0]] - length + 1))


@pytest.mark.parametrize(("stack", "padding"), [(1, "first"), (3, "first"), (3, "zeros")])
@pytest.mark.parametrize("over", ["starts", "episodes"])
def test_a_sequence_is_what_its_steps_are_one_by_one(
    stack: int,
    padding: Literal["first", "zeros"],
    over: Literal["starts", "episodes"],
    tmp_path: Path,
    experience: type[Experience],
    feeder: type[Feeder],
) -> None:
    world = experience(2, 20)
    with world.open(tmp_path / "store", 200, segment_rows=16, frame_stack=stack, padding=padding) as buffer:
        feeder(world, buffer).add(230)
        for strict in (True, False):
            batch = buffer.sample(300, db.Slices(12, seed=3, strict=strict, over=over))
            mask = np.ones((300, 12), np.bool_) if strict else batch["mask"].numpy()
            assert mask[:, 0].all()
            assert strict == bool(mask.all())
            steps = batch["steps"].numpy()[:, None] + 2 * np.arange(12)
            single = buffer.at(steps[mask])
            for name in ("obs", "next_obs", "action", "reward", "terminated", "truncated"):
                values = batch[name].numpy()
                np.testing.assert_array_equal(values[mask], single[name].numpy())
                if not strict:
                    past = ~mask.copy()
                    past[:, 1:] &= ~mask[:, :-1]  # stacks behind the end may hold frames of before it
                    assert not values[past if stack == 1 or name not in ("obs", "next_obs") else np.zeros_like(past)].any()
            if not strict:  # a sequence is only cut short where its episode ends, or has not come further
                last = buffer.at(steps[np.arange(300), mask.sum(axis=1) - 1])
                short = ~mask.all(axis=1)
                over_ = (last["terminated"] | last["truncated"]).numpy()
                newest = {
                    max(s for s in np.r_[buffer.episodes.start + 2 * (buffer.episodes.length - 1)] if s % 2 == p) for p in (0, 1)
                }
                assert all(o or int(s) in newest for o, s in zip(over_[short], last["steps"].numpy()[short], strict=True))


def test_a_loader_brings_the_sequences_that_sample_brings_and_a_state_goes_on(
    tmp_path: Path, experience: type[Experience], feeder: type[Feeder]
) -> None:
    world = experience(2, 20)
    with world.open(tmp_path / "store", frame_stack=2) as buffer:
        feeder(world, buffer).add(100)
        one, other = db.Slices(9, seed=5, strict=False), db.Slices(9, seed=5, strict=False)
        expected = [buffer.sample(16, one) for _ in range(8)]
        found: list[dict[str, Any]] = []
        for batch in buffer.loader(16, other, threads=2):
            found.append(batch)
            if len(found) == 5:
                break
        resumed = db.Slices(9, strict=False)
        resumed.load_state_dict(other.state_dict())
        found += [buffer.sample(16, resumed) for _ in range(3)]
        for a, b in zip(expected, found, strict=True):
            assert a.keys() == b.keys()
            assert all((a[name] == b[name]).all() for name in a)


def test_a_length_that_no_episode_has_is_told(tmp_path: Path, experience: type[Experience], feeder: type[Feeder]) -> None:
    world = experience(1, 20)
    with world.open(tmp_path / "store") as buffer:
        with pytest.raises(db.EmptyBufferError, match="no complete step"):
            buffer.sample(4, db.Slices(2))
        with pytest.raises(db.EmptyBufferError, match="no complete step"):
            buffer.sample(4, db.Slices(2, over="episodes"))
        feeder(world, buffer).add(50)
        for over in ("starts", "episodes"):
            with pytest.raises(db.EmptyBufferError, match="21 steps of a sequence, the longest has 20"):
                buffer.sample(4, db.Slices(21, over=over))
        assert buffer.sample(4, db.Slices(21, strict=False))["mask"].shape == (4, 21)
    for wrong in (0, -1, 2.5, True, "4"):
        with pytest.raises(db.InputError, match="length"):
            db.Slices(wrong)  # type: ignore[arg-type]
    with pytest.raises(db.InputError, match="over"):
        db.Slices(4, over="steps")  # type: ignore[arg-type]


@settings(deadline=None, max_examples=100)
@given(
    lengths=st.lists(st.lists(st.integers(1, 12), max_size=30), min_size=1, max_size=3),
    length=st.integers(1, 13),
    over=st.sampled_from(["starts", "episodes"]),
    running=st.booleans(),
)
def test_draws_are_all_valid_and_all_that_is_valid_is_drawn(
    lengths: list[list[int]], length: int, over: Literal["starts", "episodes"], running: bool
) -> None:
    index, valid = Index(len(lengths), 1024, 0), set()
    for stream, some in enumerate(lengths):
        firsts = np.cumsum([0, *(n + 1 for n in some)])
        if some:
            index.restore(stream, np.array([stream]), firsts[:-1], int(firsts[-1]) - 1, not running, 0)
        for first, n in zip(firsts, some, strict=False):
            valid |= {(stream, int(first) + k, int(first), int(first) + n) for k in range(n - length + 1)}
    sampler = db.Slices(length, seed=0, over=over)
    if not valid:
        with pytest.raises(db.EmptyBufferError):
            sampler.draw(index, 4, sampler.generator(0))
        return
    drawn = {tuple(place) for place in np.stack(sampler.draw(index, 40 * len(valid) * 6, sampler.generator(0))[:4]).T.tolist()}
    assert drawn == valid
