"""Sequences: what is in them, and that every valid start, or every episode, has the same probability."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.index.index import Index
from tests.amounts import examples
from tests.chi_square import assert_uniform
from tests.support.experience import Experience, Feeder, heads_of


def starts_by_hand(buffer: db.ReplayBuffer, length: int) -> np.ndarray[Any, Any]:
    """Return the steps that start a whole sequence, from the episodes as listed."""
    found = [np.empty(0, np.int64)]
    for n in range(len(buffer.episodes)):
        episode = buffer.episodes[n]
        found.append(episode.start + buffer.n_envs * np.arange(max(0, episode.length - length + 1)))
    return np.concatenate(found)


def draw(buffer: db.ReplayBuffer, sampler: db.Slices, n: int) -> np.ndarray[Any, Any]:
    return np.concatenate([buffer.sample(1024, sampler)["steps"][:, 0].numpy() for _ in range(-(-n // 1024))])


@pytest.mark.some(1)
@pytest.mark.parametrize("length", [1, 7, 20, 23])
def test_every_valid_start_has_the_same_probability(length: int, tmp_path: Path) -> None:
    world, sampler = Experience(2, 20, (9,)), db.Slices(length, seed=length)
    with world.open(tmp_path / "store", 150, segment_rows=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(70)
        assert_uniform(draw(buffer, sampler, 6000), starts_by_hand(buffer, length))
        feed.add(300)  # evicts
        assert_uniform(draw(buffer, sampler, 6000), starts_by_hand(buffer, length))
    with world.open(tmp_path / "store") as buffer:
        assert_uniform(draw(buffer, sampler, 6000), starts_by_hand(buffer, length))


@pytest.mark.parametrize("length", [3, 21])
def test_every_episode_that_is_long_enough_has_the_same_probability(length: int, tmp_path: Path) -> None:
    world, sampler = Experience(2, 20, (9,)), db.Slices(length, seed=1, over="episodes")
    with world.open(tmp_path / "store", segment_rows=64) as buffer:
        feed = Feeder(world, buffer)
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


@pytest.mark.some(1)
@pytest.mark.parametrize(("stack", "padding"), [(1, "first"), (3, "first"), (3, "zeros")])
@pytest.mark.parametrize("over", ["starts", "episodes"])
def test_a_sequence_is_what_its_steps_are_one_by_one(
    stack: int,
    padding: Literal["first", "zeros"],
    over: Literal["starts", "episodes"],
    tmp_path: Path,
) -> None:
    world = Experience(2, 20)
    with world.open(tmp_path / "store", 200, segment_rows=16, frame_stack=stack, padding=padding) as buffer:
        Feeder(world, buffer).add(230)
        for strict in (True, False):
            batch = buffer.sample(300, db.Slices(12, seed=3, strict=strict, over=over))
            mask = np.ones((300, 12), np.bool_) if strict else batch["mask"].numpy()
            assert mask[:, 0].all()
            assert strict == bool(mask.all())
            steps = batch["steps"].numpy()
            np.testing.assert_array_equal(steps, np.where(mask, steps[:, :1] + 2 * np.arange(12), -1))
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


def test_a_loader_brings_the_sequences_that_sample_brings_and_a_state_goes_on(tmp_path: Path) -> None:
    world = Experience(2, 20)
    with world.open(tmp_path / "store", frame_stack=2) as buffer:
        Feeder(world, buffer).add(100)
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


def test_a_length_that_no_episode_has_is_told(tmp_path: Path) -> None:
    world = Experience(1, 20)
    with world.open(tmp_path / "store") as buffer:
        with pytest.raises(db.errors.EmptyBufferError, match="no complete step"):
            buffer.sample(4, db.Slices(2))
        with pytest.raises(db.errors.EmptyBufferError, match="no complete step"):
            buffer.sample(4, db.Slices(2, over="episodes"))
        Feeder(world, buffer).add(50)
        for over in ("starts", "episodes"):
            with pytest.raises(db.errors.EmptyBufferError, match="21 steps of a sequence, the longest has 20"):
                buffer.sample(4, db.Slices(21, over=over))
        assert buffer.sample(4, db.Slices(21, strict=False))["mask"].shape == (4, 21)
    for wrong in (0, -1, 2.5, True, "4"):
        with pytest.raises(db.InputError, match="length"):
            db.Slices(wrong)  # type: ignore[arg-type]
    with pytest.raises(db.InputError, match="over"):
        db.Slices(4, over="steps")  # type: ignore[arg-type]


@examples(20, 1000)
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
        with pytest.raises(db.errors.EmptyBufferError):
            sampler.draw(index, 4, sampler.generator(0))
        return
    drawn = {tuple(place) for place in np.stack(sampler.draw(index, 40 * len(valid) * 6, sampler.generator(0))[:4]).T.tolist()}
    assert drawn == valid


@pytest.mark.some(1)
@pytest.mark.parametrize(("stack", "padding"), [(1, "first"), (3, "first"), (3, "zeros")])
@pytest.mark.parametrize("strict", [True, False])
def test_burn_in_is_what_came_before_as_far_as_the_episode_goes(
    stack: int,
    padding: Literal["first", "zeros"],
    strict: bool,
    tmp_path: Path,
) -> None:
    world = Experience(2, 20)
    with world.open(tmp_path / "store", 150, segment_rows=16, frame_stack=stack, padding=padding) as buffer:
        Feeder(world, buffer).add(230)
        sampler = db.Slices(6, seed=3, burn_in=4, strict=strict)
        batch, plain = buffer.sample(400, sampler), buffer.sample(400, db.Slices(6, seed=3, strict=strict))
        assert (batch["steps"][:, 4:] == plain["steps"]).all()
        first = {int(s) % 2: int(s) for s in buffer.episodes.start[::-1]}  # the oldest step of each stream
        positions, streams = batch["steps"][:, 4].numpy() // 2, batch["steps"][:, 4].numpy() % 2
        starts = np.where(streams == 0, world.starts(0, positions), world.starts(1, positions))
        oldest = np.maximum(starts, np.where(streams == 0, first[0] // 2, first[1] // 2))
        rows = positions[:, None] + np.arange(-4, 6)
        mask = batch["mask"].numpy()
        np.testing.assert_array_equal(mask[:, :4], rows[:, :4] >= oldest[:, None])
        np.testing.assert_array_equal(mask[:, 4:], np.ones((400, 6)) if strict else plain["mask"].numpy())
        assert not mask[:, :4].all()
        names = rows * 2 + streams[:, None]
        np.testing.assert_array_equal(batch["steps"].numpy(), np.where(mask, names, -1))
        single = buffer.at(names[mask])
        for name in ("obs", "next_obs", "action", "reward", "terminated", "truncated"):
            values = batch[name].numpy()
            np.testing.assert_array_equal(values[mask], single[name].numpy(), err_msg=name)
            if "obs" not in name:
                assert not values[~mask].any()


@pytest.mark.some(1)
@pytest.mark.parametrize(("stack", "padding"), [(1, "first"), (3, "first"), (3, "zeros")])
@pytest.mark.parametrize("replace", [True, False])
def test_a_crossing_sequence_is_the_rows_of_a_stream(
    stack: int,
    padding: Literal["first", "zeros"],
    replace: bool,
    tmp_path: Path,
) -> None:
    world, length = Experience(2, 20), 30
    with world.open(tmp_path / "store", 300, segment_rows=16, frame_stack=stack, padding=padding) as buffer:
        Feeder(world, buffer).add(230)
        batch = buffer.sample(200, db.Slices(length, seed=3, crossing=True, replace=replace))
        assert "next_obs" not in batch
        for i, step in enumerate(batch["steps"][:, 0].tolist()):
            rows = step // 2 + np.arange(length)
            last, starts = world.is_last(step % 2, rows), world.starts(step % 2, rows)
            np.testing.assert_array_equal(batch["is_first"][i].numpy(), rows == starts)
            np.testing.assert_array_equal(batch["is_last"][i].numpy(), last)
            np.testing.assert_array_equal(batch["steps"][i].numpy(), np.where(last, -1, rows * 2 + step % 2))
            np.testing.assert_array_equal(batch["action"][i].numpy(), np.where(last, 0, world.actions(step % 2, rows)))
            np.testing.assert_array_equal(batch["reward"][i].numpy(), np.where(last, 0, world.rewards(step % 2, rows)))
            frames = world.stacks(step % 2, rows, stack)
            if padding == "zeros" and stack > 1:
                frames[rows[:, None] - np.arange(stack - 1, -1, -1) < starts[:, None]] = 0
            np.testing.assert_array_equal(batch["obs"][i].numpy(), frames)


def test_a_crossing_sequence_of_one_row_is_any_step(tmp_path: Path) -> None:
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, n_envs=2, autoreset="disabled") as buffer:
        for env, ends in ((0, True), (1, False)):
            obs = np.arange(11) + 100 * env
            buffer.extend(obs=obs, action=obs[:-1], reward=np.ones(10), terminated=ends & (np.arange(10) == 9), env=env)
        sampler = db.Slices(1, seed=1, crossing=True)
        drawn = np.concatenate([buffer.sample(200, sampler, numpy=True)["action"].ravel() for _ in range(20)])
        assert_uniform(drawn, np.array([*range(10), *range(100, 110)]))


def test_every_start_of_a_crossing_sequence_has_the_same_probability(tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))
    with world.open(tmp_path / "store", 150, segment_rows=16) as buffer:
        Feeder(world, buffer).add(131)
        sampler, steps = db.Slices(25, seed=1, crossing=True), buffer.steps()
        streams, positions = steps % 2, steps // 2
        heads = heads_of(buffer)
        over = np.array([bool(world.is_last(s, heads[s])) for s in (0, 1)])
        valid = steps[positions + 25 <= heads[streams] + over[streams]]
        assert_uniform(draw(buffer, sampler, 8000), valid)
        epoch = np.concatenate(
            [
                buffer.sample(1, db_)["steps"][:, 0].numpy()
                for db_ in [db.Slices(25, 1, crossing=True, replace=False)] * len(valid)
            ]
        )
        np.testing.assert_array_equal(np.sort(epoch), np.sort(valid))
        with pytest.raises(db.errors.EmptyBufferError, match="environment has the 200 rows"):
            buffer.sample(1, db.Slices(200, crossing=True))
    for wrong in ({"strict": False}, {"burn_in": 3}, {"over": "episodes"}):
        with pytest.raises(db.InputError, match="crossing"):
            db.Slices(4, crossing=True, **wrong)


@pytest.mark.parametrize("sampler", [db.Slices(2), db.Prioritized(length=2)])
def test_where_every_step_is_an_episode_of_its_own_more_steps_are_no_advice(sampler: db.Sampler, tmp_path: Path) -> None:
    columns = {"obs": db.Column(()), "action": db.Column(())}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        for n in range(10):
            if n < 2:
                with pytest.raises(db.errors.EmptyBufferError, match="add more steps" if n else "no "):
                    buffer.sample(4, sampler)
            buffer.add(n, 0, 0, n + 0.5, False, False)
        with pytest.raises(db.errors.EmptyBufferError, match=r"almost all of the 10 steps.*ndim=2.*new_episode=") as raised:
            buffer.sample(4, sampler)
        assert "more steps" not in str(raised.value)


def test_where_valid_starts_are_rare_they_are_drawn_all_the_same_and_evenly() -> None:
    lengths = np.full(20_000, 20)
    lengths[[5, 9_000, 19_999]] = 23, 40, 25
    firsts = np.concatenate([[0], np.cumsum(lengths + 1)])
    index = Index(1, 2**20, 0)
    index.restore(0, np.array([0]), firsts[:-1], int(firsts[-1]) - 1, True, 0)
    sampler = db.Slices(22, seed=0)
    drawn = np.concatenate([sampler.draw(index, 64, sampler.generator(n)).positions for n in range(30)])
    valid = [firsts[e] + k for e in (5, 9_000, 19_999) for k in range(lengths[e] - 21)]
    assert_uniform(drawn, np.array(valid))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "make",
    [
        lambda: db.Slices(6, 1),
        lambda: db.Slices(6, 1, strict=False),
        lambda: db.Slices(4, 1, burn_in=3),
        lambda: db.Slices(9, 1, crossing=True),
        lambda: db.Prioritized(seed=1, length=4, burn_in=2),
    ],
    ids=["slices", "padded", "burn-in", "crossing", "prioritized"],
)
def test_what_is_computed_of_sequences_can_be_written_back(make: Any, tmp_path: Path) -> None:
    """Every element is named, so that a value of each, (n, length), finds its step; -1 has none."""
    world = Experience(2, 12, (9,))
    with world.open(tmp_path / "a", segment_rows=16) as a, world.open(tmp_path / "b", segment_rows=16) as b:
        for buffer in (a, b):
            Feeder(world, buffer).add(60)
        mixture = db.Mixture([(a, 1, make()), (b, 1, make())])
        for batch, of in ((a.sample(50, make()), (a,)), (mixture.sample(40), (a, b))):
            names = batch["steps"]
            for n, buffer in enumerate(of):
                mine = names[:20] if n == 0 and len(of) == 2 else names[-20:] if n else names
                written = buffer.columns.write("seen", mine, mine.float().unsqueeze(-1) + 0.5)
                assert written == (mine >= 0).sum()
                steps = mine[mine >= 0].unique()
                np.testing.assert_array_equal(buffer.at(steps)["seen"][:, 0].numpy(), steps.numpy() + 0.5)
                tagged = buffer.episodes.of(mine).set_tag("seen")
                assert tagged == (buffer.episodes.tag == "seen").sum()
        with pytest.raises(db.InputError, match="a value for each"):
            a.columns.write("seen", names, np.zeros(len(names)))
