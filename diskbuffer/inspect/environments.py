"""Making an environment from its name, and playing it at random."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from diskbuffer.errors import InputError
from diskbuffer.plugin import require


def make(name: str, n_envs: int = 1) -> Any:
    """Make an environment, or a vector of them; an InputError where it cannot be made.

    Parameters
    ----------
    name : str
        A Gymnasium id, or ``MODULE:FUNCTION``: a function without arguments that returns an environment, or a vector of them.
        Atari games are made as Gymnasium's AtariPreprocessing has them: 84x84, grey, each action four times.
    n_envs : int
        How many side by side; a vector that a function returned has its own number.
    """
    gymnasium = require("gymnasium", "gymnasium", "gym", "an environment")
    first = _one(name)
    if hasattr(first, "single_observation_space"):  # a vector already
        return first
    if not isinstance(first, gymnasium.Env):
        raise InputError(f"{name} made a {type(first).__name__}, and a gymnasium.Env or a gymnasium.vector.VectorEnv is needed")
    if n_envs == 1:
        return first
    kept = [first]  # so that it is not made for nothing
    return gymnasium.vector.SyncVectorEnv([lambda: kept.pop() if kept else _one(name)] * n_envs)


def play(env: Any, seed: int) -> Iterator[dict[str, Any]]:
    """Yield steps at random, without an end: what `ReplayBuffer.add` takes."""
    vector = hasattr(env, "num_envs")
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    resets = vector and str(getattr(mode, "value", mode)) == "Disabled"
    env.action_space.seed(seed)
    obs = copy.deepcopy(env.reset(seed=seed)[0])  # some environments write the next one to the same memory
    while True:
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, info = env.step(action)
        following = next_obs = copy.deepcopy(next_obs)
        if not vector and (terminated or truncated):
            following = copy.deepcopy(env.reset()[0])
        elif resets and (over := np.asarray(terminated) | np.asarray(truncated)).any():
            following = copy.deepcopy(env.reset(options={"reset_mask": over})[0])
        step = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        yield step | {"terminated": terminated, "truncated": truncated, "info": info}
        obs = following


def _one(name: str) -> Any:
    from gymnasium import error, make, register_envs, wrappers

    module, _, function = name.rpartition(":")
    try:
        if module and function.isidentifier():
            return getattr(importlib.import_module(module), function)()
        if name.startswith("ALE/"):
            register_envs(require("ale_py", "ale-py", "demo", name))
            return wrappers.AtariPreprocessing(make(name, frameskip=1))
        return make(name)
    except (error.Error, ImportError, AttributeError, AssertionError, ValueError) as problem:
        raise InputError(f"{name} cannot be made: {problem}") from problem
