"""Making an environment from its name, and playing it at random."""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from diskbuffer.errors import InputError
from diskbuffer.plugin import require

_PIXELS = (84, 84)  # of Atari games, as AtariPreprocessing makes them by default


def make(name: str, n_envs: int = 1, grey: bool | None = None, resize: tuple[int, int] | tuple[()] | None = None) -> Any:
    """Make an environment, or a vector of them; an InputError where it cannot be made.

    Parameters
    ----------
    name : str
        A Gymnasium id, or ``MODULE:FUNCTION``: a function without arguments that returns an environment, or a vector of them.
        Atari games are made as Gymnasium's AtariPreprocessing has them: 84x84, grey, each action four times.
    n_envs : int
        How many side by side; a vector that a function returned has its own number.
    grey : bool, optional
        Whether pictures become grey: of Atari games alone, by default.
    resize : (int, int) or (), optional
        Height and width that pictures are brought to. An Atari game with () is played as it is.
    """
    gymnasium = require("gymnasium", "gymnasium", "gym", "an environment")
    first = _one(name, grey, resize)
    if hasattr(first, "single_observation_space"):  # a vector already
        return first
    if not isinstance(first, gymnasium.Env):
        raise InputError(f"{name} made a {type(first).__name__}, and a gymnasium.Env or a gymnasium.vector.VectorEnv is needed")
    if n_envs == 1:
        return first
    kept = [first]  # so that it is not made for nothing
    return gymnasium.vector.SyncVectorEnv([lambda: kept.pop() if kept else _one(name, grey, resize)] * n_envs)


def play(env: Any, seed: int) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield steps at random, without an end: what `ReplayBuffer.add` takes, and the seconds that the environment took."""
    vector = hasattr(env, "num_envs")
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    resets = vector and str(getattr(mode, "value", mode)) == "Disabled"
    env.action_space.seed(seed)
    obs = copy.deepcopy(env.reset(seed=seed)[0])  # some environments write the next one to the same memory
    while True:
        action, begun = env.action_space.sample(), time.perf_counter()
        next_obs, reward, terminated, truncated, info = env.step(action)
        following = next_obs = copy.deepcopy(next_obs)
        if not vector and (terminated or truncated):
            following = copy.deepcopy(env.reset()[0])
        elif resets and (over := np.asarray(terminated) | np.asarray(truncated)).any():
            following = copy.deepcopy(env.reset(options={"reset_mask": over})[0])
        took = time.perf_counter() - begun
        step = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        yield step | {"terminated": terminated, "truncated": truncated, "info": info}, took
        obs = following


def _one(name: str, grey: bool | None, resize: tuple[int, int] | tuple[()] | None) -> Any:
    from gymnasium import error, make, register_envs, wrappers

    module, _, function = name.rpartition(":")
    try:
        if module and function.isidentifier():
            env = getattr(importlib.import_module(module), function)()
        elif name.startswith("ALE/"):
            register_envs(require("ale_py", "ale-py", "demo", name))
            if resize != ():
                (height, width), pictures = resize or _PIXELS, grey is not False
                game = make(name, frameskip=1)
                return wrappers.AtariPreprocessing(game, screen_size=(width, height), grayscale_obs=pictures)
            env = make(name)
        else:
            env = make(name)
        env = wrappers.GrayscaleObservation(env) if grey else env
        return wrappers.ResizeObservation(env, resize) if resize else env
    except (error.Error, ImportError, AttributeError, AssertionError, ValueError) as problem:
        raise InputError(f"{name} cannot be made: {problem}") from problem
