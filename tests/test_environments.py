"""What an environment is taken for: stacks of frames, vectors of Stable-Baselines3, and dicts with any keys."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import zarr
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, TransformObservation
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

import diskbuffer as db


class Counting(gym.Env[Any, Any]):
    """An environment whose observations count, from another thousand on in each episode; episodes are of other lengths."""

    def __init__(self, number: int = 0, keys: tuple[str, ...] = ()) -> None:
        frame = spaces.Box(0, np.inf, (3, 2), np.float32)
        self.keys, self.count, self.episode = keys, 0, 10 * number
        self.observation_space = spaces.Dict(dict.fromkeys(keys, frame)) if keys else frame
        self.action_space = spaces.Discrete(3)

    def look(self) -> Any:
        frame = np.full((3, 2), self.episode * 1000 + self.count, np.float32)
        return {key: frame + n * 0.125 for n, key in enumerate(self.keys)} if self.keys else frame

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count, self.episode = 0, self.episode + 1
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        over = self.count == 2 + self.episode % 5
        return self.look(), float(self.count), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}


def play(env: Any, buffer: db.ReplayBuffer, steps: int) -> list[tuple[Any, Any]]:
    """Record an environment; return its observations, before and after each step."""
    seen, (obs, _) = [], env.reset()
    for _ in range(steps):
        following, reward, terminated, truncated, _ = env.step(0)
        buffer.add(obs, 0, reward, following, terminated, truncated)
        seen.append((obs, following))
        obs = env.reset()[0] if terminated or truncated else following
    return seen


# Stacks


@pytest.mark.some(2)
@pytest.mark.parametrize("padding", ["reset", "zero", "custom"])
@pytest.mark.parametrize("keys", [(), ("a", "b")])
def test_a_wrapper_that_stacks_frames_is_recognised(padding: str, keys: tuple[str, ...], tmp_path: Path) -> None:
    inner = Counting(keys=keys)
    given: Any = {key: np.ones((3, 2), np.float32) for key in keys} if keys else np.ones((3, 2), np.float32)
    env = FrameStackObservation(inner, 4, padding_type=given if padding == "custom" else padding)
    with db.ReplayBuffer(tmp_path / "store", env=env) as buffer:
        assert buffer.frame_stack == 4
        assert {column.shape for path, column in buffer.columns.items() if path.startswith("obs")} == {(3, 2)}
        seen = play(env, buffer, 40)
        assert buffer.stats()["cut_off"] == 0
        batch = buffer.at(buffer.steps())
        for n, (obs, following) in enumerate(seen):
            for name, expected in (("obs", obs), ("next_obs", following)):
                for key in keys or ("",):
                    found = batch[name][key] if key else batch[name]
                    np.testing.assert_array_equal(found[n], expected[key] if key else expected)
    with db.ReplayBuffer(tmp_path / "store", env=env) as buffer:
        assert (buffer.frame_stack, len(buffer)) == (4, 40)
    with db.ReplayBuffer(tmp_path / "whole", env=env, frame_stack=1) as buffer:  # who says so has whole stacks stored
        assert buffer.columns["obs/a" if keys else "obs"].shape == (4, 3, 2)


def test_stacks_of_a_vector_are_recognised_and_what_is_no_stack_any_more_is_not(tmp_path: Path) -> None:
    vector = gym.vector.SyncVectorEnv([lambda: FrameStackObservation(Counting(), 3, padding_type="zero")] * 2)
    with db.ReplayBuffer(tmp_path / "vector", env=vector) as buffer:
        assert (buffer.frame_stack, buffer.n_envs, buffer.columns["obs"].shape) == (3, 2, (3, 2))
    for name, env in (
        ("flat", FlattenObservation(FrameStackObservation(Counting(), 4))),
        ("last", TransformObservation(FrameStackObservation(Counting(), 4), lambda obs: obs[-1], Counting().observation_space)),
        ("plain", Counting()),
    ):
        with db.ReplayBuffer(tmp_path / name, env=env) as buffer:
            assert buffer.frame_stack == 1
            assert buffer.columns["obs"].shape == env.observation_space.shape


# Vectors of Stable-Baselines3


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("keys", [(), ("a", "b")])
def test_a_vector_of_stable_baselines_is_taken_for_what_it_is(keys: tuple[str, ...], n_envs: int, tmp_path: Path) -> None:
    env = DummyVecEnv([lambda n=n: Counting(n, keys) for n in range(n_envs)])  # type: ignore[misc]
    with db.ReplayBuffer(tmp_path / "store", env=env) as buffer:
        assert (buffer.n_envs, buffer.frame_stack) == (n_envs, 1)
        obs: Any = env.reset()
        for _ in range(50):
            following, rewards, dones, infos = env.step(np.zeros(n_envs, np.int64))
            cut = np.array([info.get("TimeLimit.truncated", False) for info in infos])
            added = buffer.add(obs, np.zeros(n_envs, np.int64), rewards, following, dones & ~cut, dones & cut, info=infos)
            assert added == n_envs
            obs = following
        assert buffer.stats()["cut_off"] == 0
        batch = buffer.at(buffer.steps())
        for key in keys or ("",):
            now, then = (batch[name][key] if key else batch[name] for name in ("obs", "next_obs"))
            np.testing.assert_array_equal(then, now + 1)  # the last ones are the episodes' own, not the next ones' first
        over = dones.copy()
        while not over.any():
            following, rewards, dones, infos = env.step(np.zeros(n_envs, np.int64))
            over = dones
        with pytest.raises(db.InputError, match="info="):
            buffer.add(obs, np.zeros(n_envs, np.int64), rewards, following, over, ~over & False)
        with pytest.raises(db.InputError, match="info="):
            buffer.add(obs, np.zeros(n_envs, np.int64), rewards, following, over, ~over & False, info=[{}] * n_envs)
    stacked = VecFrameStack(DummyVecEnv([Counting]), 2)
    with db.ReplayBuffer(tmp_path / "stacked", env=stacked) as buffer:  # along the last axis: whole observations
        assert buffer.columns["obs"].shape == stacked.observation_space.shape


def test_what_is_no_environment_is_refused(tmp_path: Path) -> None:
    for wrong in (3, "CartPole-v1", spaces.Discrete(3)):
        with pytest.raises(db.InputError, match=r"gymnasium\.Env"):
            db.ReplayBuffer(tmp_path / "store", env=wrong)


# Keys

KEYS = ("a/b", "front camera", "1st", "front-camera", "agent.pos", "_hidden", "%2F", "..", "ü x", "class", "next_obs", "a\x00b")


def test_keys_of_dicts_stay_what_they_are(tmp_path: Path) -> None:
    env = Counting(keys=KEYS)
    with db.ReplayBuffer(tmp_path / "store", env=env) as buffer:
        seen = play(env, buffer, 30)
        buffer.flush(recompress=True)
        assert sum(path.startswith("obs/") for path in buffer.columns) == len(KEYS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    with db.ReplayBuffer(tmp_path / "store", env=env) as buffer:
        for batch in (buffer.at(buffer.steps()), next(iter(buffer.batches(100)))):
            assert set(batch["obs"]) == set(batch["next_obs"]) == set(KEYS)
            for n, (obs, following) in enumerate(seen):
                for key in KEYS:
                    np.testing.assert_array_equal(batch["obs"][key][n], obs[key])
                    np.testing.assert_array_equal(batch["next_obs"][key][n], following[key])
        assert set(buffer.episode(0, columns=["obs/front%20camera"])["obs"]) == {"front camera"}
        assert buffer.check(progress=False).ok
        group: Any = zarr.open_group(buffer.path, mode="r")["obs"]
        assert isinstance(group, zarr.Group)
        assert set(group.array_keys()) == {path[4:] for path in buffer.columns if path.startswith("obs/")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vector = gym.vector.SyncVectorEnv([lambda: Counting(keys=KEYS)] * 2, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    with db.ReplayBuffer(tmp_path / "vector", env=vector) as buffer:
        obs, _ = vector.reset()
        for _ in range(30):
            following, rewards, terminated, truncated, info = vector.step(np.zeros(2, np.int64))
            buffer.add(obs, np.zeros(2, np.int64), rewards, following, terminated, truncated, info=info)
            obs = following
        batch = buffer.at(buffer.steps())
        for key in KEYS:
            np.testing.assert_array_equal(batch["next_obs"][key], batch["obs"][key] + 1)


def test_any_key_is_taken_and_a_column_that_is_not_escaped_is_refused(tmp_path: Path) -> None:
    for n, keys in enumerate((("", "a"), ("\ud800", "a"))):
        with db.ReplayBuffer(tmp_path / f"{n}", env=Counting(keys=keys)) as buffer:
            play(Counting(keys=keys), buffer, 5)
            assert set(buffer.sample(1)["obs"]) == set(keys)
    for wrong in ("obs/a b", "obs/a%2f", "obs/a%61", "obs/%%"):
        with pytest.raises(db.errors.SchemaError, match="%20"):
            db.ReplayBuffer(tmp_path / "store", columns={wrong: db.Column(), "action": db.Column()})


def test_a_vector_that_does_not_say_how_it_resets_is_refused(tmp_path: Path) -> None:
    vector = gym.vector.SyncVectorEnv([Counting] * 2, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    vector.metadata = {}
    with pytest.raises(db.InputError, match=r"how its environments reset: give autoreset='next_step'"):
        db.ReplayBuffer(tmp_path / "store", env=vector)
    with db.ReplayBuffer(tmp_path / "store", env=vector, autoreset="same_step") as buffer:
        assert buffer.environment is not None
        assert buffer.environment["autoreset"] == "same_step"
