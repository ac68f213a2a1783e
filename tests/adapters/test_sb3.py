"""The adapters for Stable-Baselines3: what is drawn from them is what its own buffers give, bit for bit."""

from __future__ import annotations

import copy
import importlib
import pickle
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import diskbuffer as db

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, NStepReplayBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her import HerReplayBuffer

from diskbuffer.adapters.sb3 import (
    DiskDictReplayBuffer,
    DiskDictRolloutBuffer,
    DiskHerReplayBuffer,
    DiskReplayBuffer,
    DiskRolloutBuffer,
)
from tests.bools import bytes_of_bools, disguised

Array = np.ndarray[Any, Any]


class World:
    """Steps of some environments, as a model of Stable-Baselines3 gives them to a buffer; episodes end in every way."""

    def __init__(self, space: spaces.Space[Any], n_envs: int, seed: int = 0, stack: int = 1, last: bool = False) -> None:
        self.space, self.n_envs, self._stack, self._last = space, n_envs, stack, last
        self._rng = np.random.default_rng(seed)
        self._left = self._rng.integers(1, 15, n_envs)
        self._obs = [self._first() for _ in range(n_envs)]

    def _frame(self) -> Any:
        return _random(self.space, self._rng)

    def _first(self) -> Any:
        frame = self._frame()
        if self._stack == 1:
            return frame
        axis, size = (-1 if self._last else 0), frame.shape[-1 if self._last else 0] // self._stack
        newest = np.take(frame, range(size), axis)
        return np.concatenate([np.zeros_like(newest)] * (self._stack - 1) + [newest], axis)

    def _next(self, obs: Any) -> Any:
        frame = self._frame()
        if self._stack == 1:
            return frame
        axis, size = (-1 if self._last else 0), frame.shape[-1 if self._last else 0] // self._stack
        return np.concatenate([np.take(obs, range(size, size * self._stack), axis), np.take(frame, range(size), axis)], axis)

    def step(self) -> tuple[Any, ...]:
        """Return (obs, next_obs, reward, done, infos)."""
        obs, following, infos = list(self._obs), [self._next(obs) for obs in self._obs], []
        self._left -= 1
        done = self._left == 0
        for env in range(self.n_envs):
            self._obs[env] = following[env]
            truncated = bool(done[env] and self._rng.random() < 0.5)
            infos.append({"TimeLimit.truncated": truncated} if done[env] else {})
            if done[env]:
                self._left[env], self._obs[env] = self._rng.integers(1, 15), self._first()
        return _together(obs), _together(following), self._rng.normal(size=self.n_envs).astype(np.float32), done, infos


def _random(space: spaces.Space[Any], rng: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _random(part, rng) for name, part in space.spaces.items()}
    space.seed(int(rng.integers(2**31)))
    return np.asarray(space.sample())


def _together(parts: list[Any]) -> Any:
    return (
        {name: np.stack([part[name] for part in parts]) for name in parts[0]} if isinstance(parts[0], dict) else np.stack(parts)
    )


def fill(buffers: list[Any], world: World, steps: int, actions: spaces.Space[Any]) -> None:
    rng = np.random.default_rng(7)
    for _ in range(steps):
        obs, following, reward, done, infos = world.step()
        actions.seed(int(rng.integers(2**31)))
        action = np.stack([np.asarray(actions.sample()) for _ in range(world.n_envs)])
        for buffer in buffers:
            buffer.add(obs, following, action, reward, done, infos)


def same(ours: Any, theirs: Any, where: str = "") -> None:
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            same(ours[name], theirs[name], f"{where}/{name}")
        return
    if theirs is None:
        assert ours is None
        return
    assert ours.dtype == theirs.dtype, where
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=where)
    assert (np.signbit(ours.numpy()) == np.signbit(theirs.numpy())).all() or ours.dtype.itemsize == 1, where


def draws_are_the_same(ours: Any, theirs: Any, batches: int = 5, size: int = 64, env: Any = None) -> None:
    for n in range(batches):
        found = []
        for buffer in (ours, theirs):
            np.random.seed(n)  # noqa: NPY002  which is what the library draws with
            found.append(buffer.sample(size, env))
        assert found[0]._fields == found[1]._fields
        for name in found[1]._fields:
            same(getattr(found[0], name), getattr(found[1], name), name)
    assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())


PIXELS = spaces.Box(0, 255, (4, 20, 24), np.uint8)
DICT = spaces.Dict(
    {"image": spaces.Box(0, 255, (3, 12, 12), np.uint8), "vector": spaces.Box(-1, 1, (5,)), "n": spaces.Discrete(9)}
)
SPACES: dict[str, Any] = {
    "vector": spaces.Box(-2, 2, (3,), np.float32),
    "float64": spaces.Box(-2, 2, (3,), np.float64),
    "discrete": spaces.Discrete(11),
    "binary": spaces.MultiBinary(6),
    "many": spaces.MultiDiscrete([3, 4]),
    "image": spaces.Box(0, 255, (12, 10, 3), np.uint8),
    "dict": DICT,
}
ACTIONS: dict[str, Any] = {
    "discrete": spaces.Discrete(5),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "float64": spaces.Box(-1, 1, (2,), np.float64),
}


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """Buffers to close."""
    found: list[Any] = []
    yield found
    for buffer in found:
        buffer.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_each_frame_of_stacks_is_stored_once(last: bool, channels: int, n_envs: int, tmp_path: Path, opened: list[Any]) -> None:
    shape = (20, 24, 4 * channels) if last else (4 * channels, 20, 24)
    space, actions = spaces.Box(0, 255, shape, np.uint8), ACTIONS["discrete"]
    given = (200, space, actions, "cpu", n_envs)
    ours, theirs = DiskReplayBuffer(*given, path=tmp_path / "store", segment_rows=16, frame_stack=4), ReplayBuffer(*given)
    opened.append(ours)
    world = World(space, n_envs, stack=4, last=last)
    for steps in (1, 40, 300):
        fill([ours, theirs], world, steps, actions)
        draws_are_the_same(ours, theirs)
    assert ours.stored.buffer is not None
    assert ours.stored.buffer.frame_stack == 4
    frame = (20, 24) if channels == 1 else (20, 24, 3) if last else (3, 20, 24)
    assert ours.stored.buffer.columns["obs"].shape == frame


def test_another_stack_than_the_stores_or_one_that_the_space_has_not_is_refused(tmp_path: Path, opened: list[Any]) -> None:
    given = (50, PIXELS, ACTIONS["discrete"], "cpu")
    opened.append(DiskReplayBuffer(*given, path=tmp_path / "store", frame_stack=4))
    fill(opened, World(PIXELS, 1, 0, 4), 5, ACTIONS["discrete"])
    for asked in (1, 2):
        with pytest.raises(db.errors.SchemaError, match=f"frame_stack={asked} is asked for; give frame_stack=4"):
            DiskReplayBuffer(*given, path=tmp_path / "store", frame_stack=asked)
    with pytest.raises(db.InputError, match=r"of shape \(4, 20, 24\) are not stacks of 5 frames"):
        DiskReplayBuffer(*given, path=tmp_path / "other", frame_stack=5)
    with pytest.raises(db.InputError, match=r"'n' of shape \(1,\) are not stacks of 3 frames"):
        DiskDictReplayBuffer(50, DICT, ACTIONS["discrete"], "cpu", path=tmp_path / "other", frame_stack=3)
    pictures = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    with pytest.warns(UserWarning, match="look like pictures that are stacked"):
        DiskReplayBuffer(50, pictures, ACTIONS["discrete"], "cpu", path=tmp_path / "other")


def test_n_step_returns_are_of_rewards_that_are_normalized_one_by_one(tmp_path: Path, opened: list[Any]) -> None:
    class Box(gymnasium.Env[Any, Any]):
        observation_space, action_space = SPACES["vector"], ACTIONS["box"]

    env = VecNormalize(DummyVecEnv([Box] * 2), clip_reward=1.0)
    env.ret_rms.var = np.array(0.3)
    given: dict[str, Any] = {"n_envs": 2, "n_steps": 3, "gamma": 0.97}
    ours = DiskReplayBuffer(90, Box.observation_space, Box.action_space, "cpu", path=tmp_path / "store", **given)
    theirs = NStepReplayBuffer(90, Box.observation_space, Box.action_space, "cpu", **given)
    opened.append(ours)
    fill([ours, theirs], World(Box.observation_space, 2), 130, Box.action_space)
    draws_are_the_same(ours, theirs, env=env)


def test_parts_of_observations_may_have_any_name(tmp_path: Path, opened: list[Any]) -> None:
    names = ["x y", "x-y", "_u", "1", ".", "frame"]
    space, actions = spaces.Dict({name: spaces.Box(-1, 1, (3,)) for name in names}), ACTIONS["discrete"]
    ours = DiskDictReplayBuffer(50, space, actions, "cpu", path=tmp_path / "store")
    theirs = DictReplayBuffer(50, space, actions, "cpu")
    opened.append(ours)
    fill([ours, theirs], World(space, 1), 70, actions)
    draws_are_the_same(ours, theirs)
    with pytest.raises(db.errors.SchemaError, match="too, which the environment's observations do not have"):
        DiskDictReplayBuffer(50, spaces.Dict({"frame": space["frame"]}), actions, "cpu", path=tmp_path / "store")


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("as_given", [lambda values: values[None], list, np.asarray], ids=["an axis more", "a list", "an array"])
def test_rewards_and_ends_come_as_the_library_takes_them(
    n_envs: int, as_given: Callable[[Any], Any], tmp_path: Path, opened: list[Any]
) -> None:
    space, action = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
    theirs = ReplayBuffer(10, space, action, "cpu", n_envs=n_envs)
    ours = DiskReplayBuffer(10, space, action, "cpu", n_envs=n_envs, path=tmp_path / "store")
    opened.append(ours)
    obs, reward, done = np.ones((n_envs, 2), np.float32), np.arange(1.0, n_envs + 1), np.arange(n_envs) % 2.0
    for buffer in (theirs, ours):
        buffer.add(obs, obs, np.zeros((n_envs, 1), np.int64), as_given(reward), as_given(done), [{}] * n_envs)
    draws_are_the_same(ours, theirs)


@pytest.mark.parametrize("wrong", [np.float32(1), np.array(1.0), np.zeros((1, 3)), None, {"goal": np.zeros((1, 3))}])
def test_what_is_no_dict_observation_is_refused_by_name_and_nothing_is_added(
    wrong: Any, tmp_path: Path, opened: list[Any]
) -> None:
    space, actions = spaces.Dict({"frame": spaces.Box(-1, 1, (3,))}), ACTIONS["discrete"]
    ours, right = (
        DiskDictReplayBuffer(50, space, actions, "cpu", path=tmp_path / "store"),
        {"frame": np.zeros((1, 3), np.float32)},
    )
    opened.append(ours)
    for obs, next_obs in ((wrong, right), (right, wrong)):
        with pytest.raises(db.InputError, match="expected frame, found"):
            ours.add(obs, next_obs, np.zeros((1, 1), int), np.zeros(1), np.zeros(1, bool), [{}])
    assert (ours.pos, ours.full) == (0, False)
    ours.add(right, right, np.zeros((1, 1), int), np.zeros(1), np.zeros(1, bool), [{}])
    assert ours.pos == 1


def test_a_model_that_is_killed_goes_on_with_what_was_there(tmp_path: Path, opened: list[Any]) -> None:
    space, actions = SPACES["vector"], ACTIONS["box"]
    theirs, world = ReplayBuffer(60, space, actions, "cpu", 2), World(space, 2)
    for steps in (5, 17, 40, 3):
        ours = DiskReplayBuffer(60, space, actions, "cpu", 2, path=tmp_path / "store", segment_rows=16)
        assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
        fill([ours, theirs], world, steps, actions)
        draws_are_the_same(ours, theirs)
        ours.close()
        draws_are_the_same(ours, theirs)  # which opens it again, to read
        ours.close()


def test_a_buffer_is_pickled_without_its_steps(tmp_path: Path, opened: list[Any]) -> None:
    space, actions = SPACES["image"], ACTIONS["discrete"]
    ours, theirs = (
        DiskReplayBuffer(600, space, actions, "cpu", path=tmp_path / "store"),
        ReplayBuffer(600, space, actions, "cpu"),
    )
    opened.append(ours)
    fill([ours, theirs], World(space, 1), 500, actions)
    pickled = pickle.dumps(ours)
    assert len(pickled) < 10_000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = pickle.loads(pickled)
    opened.append(copy)
    draws_are_the_same(copy, theirs)
    fill([ours, theirs], World(space, 1), 10, actions)
    with pytest.warns(UserWarning, match=r"has other steps than when this buffer was pickled"):
        copy = pickle.loads(pickled)
    opened.append(copy)
    assert copy.size() == 510
    assert repr(copy) == f"DiskReplayBuffer({str(tmp_path / 'store')!r}: 510 steps, at most 600 steps)"


def test_a_buffer_whose_store_is_gone_says_so_when_it_is_loaded(tmp_path: Path, opened: list[Any]) -> None:
    from stable_baselines3 import DQN

    def learn(model: Any) -> None:
        opened.append(model.replay_buffer)
        model.learn(20, reset_num_timesteps=False)
        model.replay_buffer.close()

    how: dict[str, Any] = {"replay_buffer_class": DiskReplayBuffer, "replay_buffer_kwargs": {"path": tmp_path / "store"}}
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=1000, device="cpu", **how)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn(model)
        model.save(tmp_path / "model")
        learn(DQN.load(tmp_path / "model", env=gymnasium.make("CartPole-v1")))
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    here = {"path": tmp_path / "elsewhere"}
    loaded = DQN.load(tmp_path / "model", env=gymnasium.make("CartPole-v1"), replay_buffer_kwargs=here)
    assert loaded.replay_buffer is not None
    assert loaded.replay_buffer.size() == 40
    pickled = pickle.dumps(loaded.replay_buffer)
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    with pytest.raises(db.errors.NotFoundError, match="is gone; put it back, or make or load the model"):
        pickle.loads(pickled)


def test_a_store_is_opened_for_reading_until_something_is_added(tmp_path: Path, opened: list[Any]) -> None:
    space, actions = SPACES["vector"], ACTIONS["box"]

    def make() -> Any:
        opened.append(DiskReplayBuffer(60, space, actions, "cpu", path=tmp_path / "store"))
        return opened[-1]

    training = make()
    assert not (tmp_path / "store").exists()
    fill([training], World(space, 1), 20, actions)
    evaluating = make()
    assert evaluating.size() == 20
    evaluating.sample(8)
    with pytest.raises(db.LockedError):
        fill([evaluating], World(space, 1), 1, actions)
    fill([training], World(space, 1), 1, actions)
    assert training.size() == 21


def test_another_environment_size_or_number_is_refused(tmp_path: Path) -> None:
    space, actions = SPACES["vector"], ACTIONS["box"]
    with_steps = DiskReplayBuffer(60, space, actions, "cpu", path=tmp_path / "store")
    fill([with_steps], World(space, 1), 20, actions)
    with_steps.close()
    for given in (
        (60, SPACES["float64"], actions, "cpu", 1),
        (60, spaces.Box(-1, 1, (4,)), actions, "cpu", 1),
        (60, space, ACTIONS["discrete"], "cpu", 1),
        (61, space, actions, "cpu", 1),
        (60, space, actions, "cpu", 2),
        (60, PIXELS, actions, "cpu", 1),
    ):
        with pytest.raises(db.errors.SchemaError):
            DiskReplayBuffer(*given, path=tmp_path / "store")
    with pytest.raises(db.InputError, match="optimize_memory_usage=True is of a buffer in memory; leave it out"):
        DiskReplayBuffer(60, space, actions, "cpu", 1, True, path=tmp_path / "other")
    with pytest.raises(db.InputError, match="n_steps=3 needs the model's gamma"):
        DiskReplayBuffer(60, space, actions, "cpu", path=tmp_path / "other", n_steps=3)
    with pytest.raises(AssertionError, match="Dict obs space"):
        DiskDictReplayBuffer(60, space, actions, "cpu", path=tmp_path / "other")
    with pytest.raises(db.InputError, match="achieved_goal"):
        DiskHerReplayBuffer(60, DICT, actions, None, path=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_arrays_of_the_library_are_on_disk(tmp_path: Path, opened: list[Any]) -> None:
    given = (60, SPACES["vector"], ACTIONS["discrete"], "cpu")
    opened += [DiskReplayBuffer(*given, path=tmp_path / "one"), DiskRolloutBuffer(*given, path=tmp_path / "other")]
    for buffer, name in ((opened[0], "rewards"), (opened[0], "next_observations"), (opened[1], "observations")):
        message = rf"{type(buffer).__name__} has its steps on disk, and no array '{name}'; read them through buffer\.stored"
        with pytest.raises(AttributeError, match=message):
            getattr(buffer, name)


# Models


def test_discounts_of_dict_observations_are_those_of_others(tmp_path: Path, opened: list[Any]) -> None:
    flat, actions, found = SPACES["vector"], ACTIONS["discrete"], []
    for name, space, of in (("flat", flat, DiskReplayBuffer), ("dict", spaces.Dict({"v": flat}), DiskDictReplayBuffer)):
        opened.append(of(100, space, actions, "cpu", path=tmp_path / name, n_steps=3, gamma=0.9))
        fill(opened[-1:], World(space, 1), 60, actions)
        np.random.seed(0)  # noqa: NPY002
        found.append(opened[-1].sample(32))
    assert found[0].discounts is not None
    same(found[1].discounts, found[0].discounts)
    same(found[1].rewards, found[0].rewards)
    with pytest.raises(db.InputError, match="one-step"):
        DiskHerReplayBuffer(60, GOALS, actions, None, path=tmp_path / "her", n_steps=3)


GOALS = spaces.Dict({name: spaces.Box(-1, 1, (3,)) for name in ("observation", "achieved_goal", "desired_goal")})


def account_is_the_same(ours: Any, theirs: Any) -> None:
    """What hindsight needs to know of episodes, and where they lie."""
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    np.testing.assert_array_equal(ours.ep_length, theirs.ep_length)
    there = theirs.ep_length > 0
    np.testing.assert_array_equal(ours.ep_start[there], theirs.ep_start[there])
    obs = ours._batch(*np.nonzero(there))["obs"] if there.any() else {}
    for name, part in obs.items():
        np.testing.assert_array_equal(part, theirs.observations[name][there])


def library_her(size: int) -> Any:
    env: Any = None
    return HerReplayBuffer(size, GOALS, ACTIONS["discrete"], env, "cpu")


def make_her(path: Path, opened: list[Any], size: int = 40) -> Any:
    opened.append(DiskHerReplayBuffer(size, GOALS, ACTIONS["discrete"], None, "cpu", path=path))
    return opened[-1]


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(4))
def test_episodes_are_known_again_when_they_are_opened(seed: int, tmp_path: Path, opened: list[Any]) -> None:
    ours, theirs = make_her(tmp_path / "store", opened), library_her(40)
    world = World(GOALS, 1, seed)
    for steps in (97, 5, 21):
        fill([ours, theirs], world, steps, ACTIONS["discrete"])
        account_is_the_same(ours, theirs)
        ours.close()
        ours = make_her(tmp_path / "store", opened)
        account_is_the_same(ours, theirs)


def test_an_interrupted_add_leaves_the_places_right(tmp_path: Path, opened: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = make_her(tmp_path / "store", opened, 60), library_her(60)
    world, known = World(GOALS, 1, 3), db.ReplayBuffer.add

    def interrupted(*args: Any, **kwargs: Any) -> None:
        known(*args, **kwargs)
        raise KeyboardInterrupt

    fill([ours, theirs], world, 25, ACTIONS["discrete"])
    fill([theirs], copy.deepcopy(world), 1, ACTIONS["discrete"])
    with monkeypatch.context() as patched:
        patched.setattr(db.ReplayBuffer, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fill([ours], world, 1, ACTIONS["discrete"])
    fill([ours, theirs], world, 30, ACTIONS["discrete"])
    account_is_the_same(ours, theirs)


def test_who_ends_episodes_first_is_where_others_left_it(tmp_path: Path, opened: list[Any]) -> None:
    world, theirs = World(GOALS, 1, 3), library_her(60)
    other = make_her(tmp_path / "store", opened, 60)
    fill([other, theirs], world, 20, ACTIONS["discrete"])
    other.close()
    ours = make_her(tmp_path / "store", opened, 60)
    fill([other, theirs], world, 8, ACTIONS["discrete"])
    other.close()
    with pytest.warns(UserWarning, match="truncated"):
        ours.truncate_last_trajectory()
    with pytest.warns(UserWarning, match="truncated"):
        theirs.truncate_last_trajectory()
    fill([ours, theirs], World(GOALS, 1, 9), 25, ACTIONS["discrete"])
    account_is_the_same(ours, theirs)


class Losses(Logger):
    """Take down every loss."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.losses: list[float] = []

    def record(self, key: str, value: Any, exclude: Any = None) -> None:
        if "loss" in key:
            self.losses.append(float(value))


def train(kind: str, path: Path | None, steps: int) -> Any:
    """Train a model with the library's own buffer, or with ours below `path`."""
    import gymnasium
    from stable_baselines3 import DQN, SAC
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.envs import BitFlippingEnv
    from stable_baselines3.common.vec_env import VecNormalize

    usual: dict[str, Any] = {
        "learning_starts": 50,
        "seed": 3,
        "device": "cpu",
        "buffer_size": 400,
        "policy_kwargs": {"net_arch": [16]},
    }
    kwargs: dict[str, Any] = {} if path is None else {"path": path, "segment_rows": 32}
    env: Any
    if kind == "HER":
        env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=True), 2, seed=1)
        of: Any = HerReplayBuffer if path is None else DiskHerReplayBuffer
        kwargs |= {"goal_selection_strategy": "future", "n_sampled_goal": 3}
        model: Any = SAC("MultiInputPolicy", env, replay_buffer_class=of, replay_buffer_kwargs=kwargs, train_freq=4, **usual)
    elif kind == "SAC, normalized":
        env = VecNormalize(make_vec_env("Pendulum-v1", 2, seed=1))
        of = ReplayBuffer if path is None else DiskReplayBuffer
        model = SAC("MlpPolicy", env, replay_buffer_class=of, replay_buffer_kwargs=kwargs, train_freq=4, **usual)
    else:
        env = gymnasium.make("CartPole-v1")
        of = (NStepReplayBuffer if "n-step" in kind else ReplayBuffer) if path is None else DiskReplayBuffer
        kwargs |= {"n_steps": 3, "gamma": 0.99} if "n-step" in kind else {}
        model = DQN("MlpPolicy", env, replay_buffer_class=of, replay_buffer_kwargs=kwargs, target_update_interval=100, **usual)
    logger = Losses(None, [])
    model.set_logger(logger)
    model.learn(steps)
    return model, logger.losses


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["DQN", "DQN, n-step", "SAC, normalized", "HER"])
def test_models_have_the_same_losses(kind: str, tmp_path: Path) -> None:
    steps = 1500 if "DQN" in kind else 500
    (theirs, expected), (ours, found) = train(kind, None, steps), train(kind, tmp_path / "store", steps)
    assert len(expected) > 20
    assert found == expected
    for one, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        assert (one == other).all()
    ours.replay_buffer.close()


def test_the_lines_for_rl_zoo_in_the_docs_make_a_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stable_baselines3 import DQN

    yaml = pytest.importorskip("yaml")
    docs = (Path(__file__).parents[2] / "docs/adapters.md").read_text()
    block = textwrap.dedent(docs.split("**RL Zoo**")[1].split("```yaml\n")[1].split("```")[0])
    hyperparams = yaml.safe_load(block)["CartPole-v1"]
    assert hyperparams.pop("n_timesteps") == 50_000
    # As rl_zoo3/exp_manager.py (2.9.2) does, with what that has imported.
    known: dict[str, Any] = {"importlib": importlib, "np": np, "gym": gymnasium}
    for key in ("policy_kwargs", "replay_buffer_class", "replay_buffer_kwargs"):
        if isinstance(hyperparams.get(key), str):
            hyperparams[key] = eval(hyperparams[key], known)
    monkeypatch.chdir(tmp_path)
    model = DQN(env="CartPole-v1", buffer_size=100, device="cpu", **hyperparams)
    assert type(model.replay_buffer) is DiskReplayBuffer
    assert model.replay_buffer.stored.path == tmp_path / "runs/cartpole"


# Rollouts


def roll(buffers: list[Any], world: World, actions: Any, steps: int, ended: Array) -> Array:
    """Add one rollout, as PPO does; return which episodes were over by its end."""
    rng = np.random.default_rng(steps + world.n_envs)
    for buffer in buffers:
        buffer.reset()
    for _ in range(steps):
        obs, _, reward, done, _ = world.step()
        action = np.stack([np.asarray(actions.sample()) for _ in range(world.n_envs)])
        value, log_prob = (torch.as_tensor(rng.normal(size=world.n_envs).astype(np.float32)) for _ in range(2))
        for buffer in buffers:
            buffer.add(obs, action, reward, ended, value, log_prob)
        ended = done
    last = torch.as_tensor(rng.normal(size=world.n_envs).astype(np.float32))
    for buffer in buffers:
        buffer.compute_returns_and_advantage(last, ended)
    return ended


@pytest.mark.some(2)
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("kind", ["vector", "image", "dict", "stacks", "one step"])
def test_minibatches_are_those_of_the_library(kind: str, n_envs: int, tmp_path: Path, opened: list[Any]) -> None:
    space = PIXELS if kind == "stacks" else SPACES["vector" if kind == "one step" else kind]
    steps, actions = 1 if kind == "one step" else 50, ACTIONS["discrete"]
    of: Any = DiskDictRolloutBuffer if kind == "dict" else DiskRolloutBuffer
    own: Any = DictRolloutBuffer if kind == "dict" else RolloutBuffer
    given: dict[str, Any] = {"device": "cpu", "gae_lambda": 0.9, "gamma": 0.95, "n_envs": n_envs}
    stack = 4 if kind == "stacks" else 1
    ours = of(steps, space, actions, path=tmp_path / "store", segment_rows=16, frame_stack=stack, **given)
    theirs = own(steps, space, actions, **given)
    opened.append(ours)
    world, ended = World(space, n_envs, stack=stack), np.ones(n_envs, bool)
    for _ in range(4):
        ended = roll([ours, theirs], world, actions, steps, ended)
        for size in (16, None):
            found = []
            for buffer in (ours, theirs):
                np.random.seed(3)  # noqa: NPY002
                found.append([{name: _copied(value) for name, value in batch._asdict().items()} for batch in buffer.get(size)])
            assert len(found[0]) == len(found[1])
            for mine, other in zip(*found, strict=True):
                same(mine, other)
    if kind == "stacks":
        assert ours.stored.buffer is not None
        assert ours.stored.buffer.frame_stack == 4
    assert 0 <= ours.waited <= ours.updating


@pytest.mark.parametrize("steps", [4, 12])
def test_rollouts_of_stacks_may_begin_anywhere(steps: int, tmp_path: Path, opened: list[Any]) -> None:
    """An episode ends with its first step, another runs on."""
    for n_envs in (1, 2):
        given: dict[str, Any] = {"device": "cpu", "gae_lambda": 0.9, "gamma": 0.95, "n_envs": n_envs}
        path = tmp_path / str(n_envs)
        ours = DiskRolloutBuffer(steps, PIXELS, ACTIONS["discrete"], path=path, frame_stack=4, **given)
        theirs = RolloutBuffer(steps, PIXELS, ACTIONS["discrete"], **given)
        opened.append(ours)
        world, ended = World(PIXELS, n_envs, stack=4), np.ones(n_envs, bool)
        world._left[0] = 1
        for _ in range(3):
            ended = roll([ours, theirs], world, ACTIONS["discrete"], steps, ended)
            found = []
            for buffer in (ours, theirs):
                np.random.seed(3)  # noqa: NPY002
                found.append([{name: _copied(value) for name, value in batch._asdict().items()} for batch in buffer.get(5)])
            for mine, other in zip(*found, strict=True):
                same(mine, other)


def _copied(value: Any) -> Any:
    return {name: part.clone() for name, part in value.items()} if isinstance(value, dict) else value.clone()


# A training from its beginning to its end


TRAINING = """
import sys
import textwrap
import gymnasium
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from diskbuffer.adapters.sb3 import DiskReplayBuffer

class Tell(BaseCallback):
    def _on_step(self):
        print(self.model.replay_buffer.size(), flush=True)  # of steps whose add has returned
        return True

model = DQN("MlpPolicy", gymnasium.make("CartPole-v1"), learning_starts=50, buffer_size=100_000, seed=0, device="cpu",
            replay_buffer_class=DiskReplayBuffer, replay_buffer_kwargs={"path": sys.argv[1]}, policy_kwargs={"net_arch": [16]})
model.save(sys.argv[2])
model.learn(100_000, callback=Tell())
"""


@pytest.mark.nightly
def test_a_training_that_is_killed_goes_on_and_can_be_evaluated_while_it_runs(tmp_path: Path) -> None:
    from stable_baselines3 import DQN

    path, saved = tmp_path / "store", tmp_path / "model.zip"
    before = 0
    for _ in range(2):
        training = subprocess.Popen([sys.executable, "-c", TRAINING, str(path), str(saved)], stdout=subprocess.PIPE, text=True)
        assert training.stdout is not None
        told = before
        while told < before + 300:
            told = int(training.stdout.readline())
        evaluating = DQN.load(saved)
        assert evaluating.replay_buffer is not None
        assert evaluating.replay_buffer.size() >= told
        evaluating.replay_buffer.sample(32)
        with pytest.raises(db.LockedError):
            fill([evaluating.replay_buffer], World(evaluating.observation_space, 1), 1, evaluating.action_space)
        training.send_signal(signal.SIGKILL)
        told = max([told, *map(int, training.stdout.read().split())])
        training.wait()
        training.stdout.close()
        evaluating.replay_buffer.close()  # type: ignore[attr-defined]
        with db.ReplayBuffer(path, mode="r") as left:
            assert len(left) >= told
            before = len(left)
    assert db.check(path, progress=False).ok


def test_true_is_one_byte_only(tmp_path: Path) -> None:
    space, actions, rng = spaces.Box(0, 1, (5,), np.bool_), spaces.Discrete(3), np.random.default_rng(0)  # type: ignore[arg-type]
    obs, done = disguised(rng.random((60, 2, 5)) < 0.3, rng), disguised(rng.random((60, 2)) < 0.1, rng)
    buffer = DiskReplayBuffer(200, space, actions, "cpu", n_envs=2, path=tmp_path / "store")
    for t in range(59):
        buffer.add(obs[t], obs[t + 1], np.zeros(2, np.int64), np.ones(2, np.float32), done[t], [{}, {}])
    buffer.close()
    assert bytes_of_bools(tmp_path / "store") == {0, 1}
