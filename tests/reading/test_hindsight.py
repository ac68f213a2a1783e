"""Relabelled goals: where they come from, their rewards, and that everything else stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from gymnasium import spaces

import diskbuffer as db

Array = np.ndarray[Any, Any]


def reward_of(achieved: Array, desired: Array) -> Array:
    return np.asarray(-np.abs(achieved[..., 0] - desired[..., 0]), np.float32)


def rewards(batch: dict[str, Any]) -> Array:
    achieved, desired = batch["next_obs"]["achieved_goal"], batch["next_obs"]["desired_goal"]
    if achieved.ndim == 3:  # stacks
        achieved, desired = achieved[:, -1], desired[:, -1]
    return reward_of(achieved, desired)


@pytest.fixture
def buffer(tmp_path: Path) -> Any:
    """Two environments; what a row achieved tells its environment, its episode, and its place there."""
    with make(tmp_path, 1) as buffer:
        yield buffer


def make(tmp_path: Path, stack: int) -> db.ReplayBuffer:
    goal = spaces.Box(-1e6, 1e6, (2,), np.float32)
    space = spaces.Dict({"observation": spaces.Box(-1e6, 1e6, (3,), np.float32), "achieved_goal": goal, "desired_goal": goal})
    buffer = db.ReplayBuffer(
        tmp_path / "store",
        200,
        observation_space=space,
        action_space=spaces.Discrete(3),
        n_envs=2,
        autoreset="next_step",
        frame_stack=stack,
        segment_rows=8,
    )
    for env in range(2):
        for episode in range(12):
            length = 5 + (episode * 7 + env) % 11
            rows = 10_000 * env + 100.0 * episode + np.arange(length + 1)
            obs = {
                "observation": np.tile(rows[:, None], (1, 3)),
                "achieved_goal": np.tile(rows[:, None], (1, 2)),
                "desired_goal": np.full((length + 1, 2), -episode),
            }
            reward = reward_of(obs["achieved_goal"][1:], obs["desired_goal"][1:])
            buffer.extend(obs, np.zeros(length, int), reward, truncated=np.arange(length) == length - 1, env=env)
    return buffer


@pytest.mark.some(3)
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("stack", [1, 3])
def test_goals_are_those_that_were_reached(strategy: Literal["future", "final", "episode"], stack: int, tmp_path: Path) -> None:
    with make(tmp_path, stack) as buffer:
        assert buffer.stats()["segments"] < 40, "some were evicted"
        sampler = db.Hindsight(rewards, strategy, 0.8, seed=1)
        batch = buffer.sample(4000, sampler)
        which = batch["relabelled"].numpy()
        assert abs(which.mean() - 0.8) < 4 * np.sqrt(0.8 * 0.2 / 4000)
        plain = buffer.at(batch["steps"].numpy())
        obs, next_obs = batch["obs"], batch["next_obs"]
        for name in ("observation", "achieved_goal"):
            assert (obs[name] == plain["obs"][name]).all()
            assert (next_obs[name] == plain["next_obs"][name]).all()
        assert (batch["action"] == plain["action"]).all()
        assert (batch["truncated"] == plain["truncated"]).all()
        for part, other in ((obs, plain["obs"]), (next_obs, plain["next_obs"])):
            assert (part["desired_goal"][~which] == other["desired_goal"][~which]).all()
            flat = part["desired_goal"].numpy().reshape(4000, -1)
            assert (flat[which] == flat[which, :1]).all()
        assert (batch["reward"][~which] == plain["reward"][~which]).all()
        goal = obs["desired_goal"].numpy().reshape(4000, -1)[:, 0]
        now = obs["achieved_goal"].numpy().reshape(4000, stack, 2)[:, -1, 0]
        np.testing.assert_array_equal(batch["reward"].numpy()[which], -np.abs(now + 1 - goal)[which])
        assert (now[which] // 100 == goal[which] // 100).all(), "of the same episode"
        ends = {float(v) for v in now[plain["truncated"].numpy()] + 1}
        if strategy == "future":
            assert (goal > now)[which].all()
            ahead = (goal - now)[which]
            assert (ahead == 1).any()
            assert (ahead > 5).any()
        elif strategy == "final":
            assert ends <= set(goal[which].tolist())
            by_episode: dict[int, set[float]] = {}
            for episode, value in zip(now[which] // 100, goal[which], strict=True):
                by_episode.setdefault(int(episode), set()).add(float(value))
            assert all(len(goals) == 1 for goals in by_episode.values())
        else:
            assert (goal <= now)[which].any()
            assert (goal > now)[which].any()


def test_a_future_goal_is_uniform_over_what_came_later(buffer: db.ReplayBuffer) -> None:
    from tests.chi_square import assert_uniform

    episodes = buffer.episodes
    longest = int(np.argmax(episodes.length))
    sampler = db.Hindsight(rewards, "future", 1.0, seed=3)
    goals, start, length = [], int(episodes.start[longest]), int(episodes.length[longest])
    for _ in range(40):
        batch = buffer.sample(2000, sampler)
        mine = batch["steps"].numpy() == start
        goals += (batch["obs"]["desired_goal"][mine, 0] - batch["obs"]["achieved_goal"][mine, 0]).int().tolist()
    assert_uniform(np.array(goals), np.arange(1, length + 1))


def test_a_loader_brings_the_same_and_a_state_goes_on(buffer: db.ReplayBuffer) -> None:
    one, other = db.Hindsight(rewards, seed=5), db.Hindsight(rewards, seed=5)
    expected = [buffer.sample(32, one) for _ in range(6)]
    found = [batch for batch, _ in zip(buffer.loader(32, other, threads=2), range(3), strict=False)][:3]
    state = db.Hindsight(rewards)
    state.load_state_dict({**other.state_dict()})
    for a, b in zip(expected[:3], found, strict=True):
        assert (a["reward"] == b["reward"]).all()
        assert (a["obs"]["desired_goal"] == b["obs"]["desired_goal"]).all()
    later = buffer.sample(32, state)
    assert (later["reward"] == expected[state.batches - 1]["reward"]).all()


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda b: rewards(b)[1:], r"shape \(32,\), found float32 of shape \(31,\)"),
        (lambda b: rewards(b)[:, None], r"shape \(32, 1\)"),
        (lambda b: None, "found object"),
        (lambda b: rewards(b) * np.nan, "NaN"),
        (lambda b: "reward", "found <U6"),
    ],
)
def test_a_reward_function_of_the_wrong_shape_is_told(wrong: Any, message: str, buffer: db.ReplayBuffer) -> None:
    with pytest.raises(db.InputError, match=message):
        buffer.sample(32, db.Hindsight(wrong))
    with pytest.raises(db.InputError, match=message):
        next(iter(buffer.loader(32, db.Hindsight(wrong))))
    buffer.sample(32)


def test_what_has_no_goals_and_bad_arguments_are_refused(tmp_path: Path) -> None:
    columns = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "plain", columns=columns) as plain:
        plain.extend(np.zeros((5, 3)), np.zeros(4, int), np.zeros(4))
        with pytest.raises(db.InputError, match="achieved_goal"):
            plain.sample(4, db.Hindsight(rewards))
    for options in ({"ratio": 1.5}, {"strategy": "past"}, {"reward": 3}):
        with pytest.raises(db.InputError, match=next(iter(options))):
            db.Hindsight(**{"reward": rewards, **options})  # type: ignore[arg-type]
