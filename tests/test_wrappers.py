"""What wrappers normalise with, kept with a mark and put back: a run that goes back to it goes on as if it had not stopped."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import diskbuffer as db

COLUMNS = {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}


def normalized(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    return gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(env))


def step_randomly(env: Any, seed: int, steps: int) -> list[Any]:
    """Step an environment, or a vector of them, and return what it gave."""
    random, (obs, _) = np.random.default_rng(seed), env.reset(seed=seed)
    given = [np.array(obs)]
    vector = hasattr(env, "num_envs")
    for _ in range(steps):
        action = random.integers(2, size=env.num_envs if vector else None)
        obs, reward, terminated, truncated, _ = env.step(action if vector else int(action))
        given += [np.array(obs), np.array(reward)]
        if not vector and (terminated or truncated):
            given.append(np.array(env.reset()[0]))
    return given


MAKERS: dict[str, Any] = {
    "alone": lambda: normalized(gym.make("CartPole-v1")),
    "inside of a vector": lambda: gym.vector.SyncVectorEnv([lambda: normalized(gym.make("CartPole-v1"))] * 3),
    "around a vector": lambda: gym.wrappers.vector.NormalizeReward(
        gym.wrappers.vector.NormalizeObservation(gym.make_vec("CartPole-v1", 3))
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_run_goes_on_from_a_mark_as_if_it_had_not_stopped(kind: str, tmp_path: Path) -> None:
    env = MAKERS[kind]()
    step_randomly(env, 1, 50)
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer:
        buffer.copies.mark("here", arrays=db.wrapper_arrays(env))
    expected = step_randomly(env, 2, 50)
    another = MAKERS[kind]()
    step_randomly(another, 3, 7)
    with db.ReplayBuffer(tmp_path / "store", mark="here") as buffer:
        db.restore_wrapper_arrays(another, buffer.copies.arrays())
    for ours, theirs in zip(step_randomly(another, 2, 50), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("nested", [False, True])
def test_vec_normalize_of_sb3(nested: bool, tmp_path: Path) -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env", reason="needs Stable-Baselines3")

    class Parts(gym.ObservationWrapper[Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__(gym.make("CartPole-v1"))
            space = self.env.observation_space
            self.observation_space = gym.spaces.Dict({"a": space, "b": space}) if nested else space

        def observation(self, observation: Any) -> Any:
            return {"a": observation, "b": -observation} if nested else observation

    def made() -> Any:
        return vec_env.VecNormalize(vec_env.DummyVecEnv([Parts] * 2))

    def stepped(env: Any, seed: int) -> list[Any]:
        env.seed(seed)
        random, given = np.random.default_rng(seed), [env.reset()]
        for _ in range(40):
            given += env.step(random.integers(2, size=2))[:2]
        return [part for each in given for part in (each.values() if isinstance(each, dict) else [each])]

    env, another = made(), made()
    stepped(env, 1)
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer:
        buffer.copies.mark("here", arrays=db.wrapper_arrays(env))
        arrays = buffer.copies.arrays("here")
    assert set(arrays) >= {f"0/VecNormalize/obs_rms{'/a' if nested else ''}/mean", "0/VecNormalize/returns"}
    db.restore_wrapper_arrays(another, arrays)
    for ours, theirs in zip(stepped(another, 2), stepped(env, 2), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_other_wrappers_are_refused_and_stay_as_they_are() -> None:
    env = normalized(gym.make("CartPole-v1"))
    step_randomly(env, 1, 10)
    arrays = db.wrapper_arrays(env)
    with pytest.raises(db.InputError, match="expected wrappers with running statistics, such as VecNormalize, found none"):
        db.wrapper_arrays(gym.make("CartPole-v1"))
    with pytest.raises(db.InputError, match="arrays: expected 0/NormalizeReward/"):
        db.restore_wrapper_arrays(env, {})
    pendulum = normalized(gym.make("Pendulum-v1"))
    before = db.wrapper_arrays(pendulum)
    with pytest.raises(db.InputError, match=r"expected shape \(3,\), found \(4,\); is it another environment"):
        db.restore_wrapper_arrays(pendulum, {name: arrays.get(name, value) for name, value in before.items()})
    for name, value in db.wrapper_arrays(pendulum).items():
        np.testing.assert_array_equal(value, before[name])


def train(env: Any, buffer: db.ReplayBuffer, model: torch.nn.Linear, seed: int, steps: int) -> list[float]:
    """Train a model to tell normalised rewards from observations that a buffer has; return the losses."""
    optimizer, sampler, losses = torch.optim.SGD(model.parameters(), 0.01), db.Uniform(seed), list[float]()
    env.seed(seed)
    env.reset()
    obs, random = env.get_original_obs(), np.random.default_rng(seed)
    for _ in range(steps):
        action = random.integers(2, size=2)
        _, _, done, _ = env.step(action)
        before, obs = obs, env.get_original_obs()
        buffer.add(before, action, env.get_original_reward(), obs, done, np.zeros(2, bool))
        batch = buffer.sample(16, sampler, numpy=True)
        told = model(torch.from_numpy(env.normalize_obs(batch["obs"])))[:, 0]
        loss = ((told - torch.from_numpy(env.normalize_reward(batch["reward"]))) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_training_with_vec_normalize_goes_back_to_a_mark(tmp_path: Path) -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env", reason="needs Stable-Baselines3")

    def made() -> Any:
        return vec_env.VecNormalize(vec_env.DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2))

    def opened(**options: Any) -> db.ReplayBuffer:
        return db.ReplayBuffer(tmp_path / "store", 150, columns=COLUMNS, n_envs=2, autoreset="disabled", **options)

    env, model = made(), torch.nn.Linear(4, 1)
    with opened() as buffer:
        train(env, buffer, model, 1, 100)
        weights = copy.deepcopy(model.state_dict())
        buffer.copies.mark("here", arrays=db.wrapper_arrays(env))
        expected = train(env, buffer, model, 2, 60)
    again, fresh = made(), torch.nn.Linear(4, 1)
    fresh.load_state_dict(weights)
    with db.ReplayBuffer(tmp_path / "other", columns=COLUMNS, n_envs=2, autoreset="disabled") as another:
        train(again, another, torch.nn.Linear(4, 1), 3, 9)
    with opened(mark="here") as buffer:
        db.restore_wrapper_arrays(again, buffer.copies.arrays())
        assert train(again, buffer, fresh, 2, 60) == expected
    for ours, theirs in zip(fresh.parameters(), model.parameters(), strict=True):
        assert (ours == theirs).all()
