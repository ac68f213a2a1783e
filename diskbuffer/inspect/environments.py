"""Where the steps of a trial come from: an environment, played at random, or noise in the shape of one."""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from diskbuffer import Column
from diskbuffer.errors import InputError

_ATARI = "ALE/"
_PIXELS = (84, 84)  # as AtariPreprocessing makes them by default


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """How an environment is made.

    Attributes
    ----------
    env : str
        A Gymnasium id, or ``MODULE:FUNCTION``: a function without arguments that returns an environment, or a vector of them.
    n_envs : int
        How many side by side; a vector that a function returned has its own number.
    grey : bool or None
        Whether pictures become grey; None for Atari alone.
    resize : (int, int), () or None
        Height and width that pictures are brought to; () leaves them as they are, None makes it 84 and 84 for Atari.
    """

    env: str
    n_envs: int = 1
    grey: bool | None = None
    resize: tuple[int, ...] | None = None


class Source(Protocol):
    """Steps, one after the other, as `ReplayBuffer.add` takes them."""

    options: Mapping[str, Any]  # for `ReplayBuffer`: where columns and the number of environments come from
    stepping: float  # seconds that the environment itself took

    def step(self) -> dict[str, Any]:
        """Return what to give to `ReplayBuffer.add` for the next step."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class Environment:
    """An environment that is played at random."""

    def __init__(self, options: EnvironmentOptions, seed: int) -> None:
        self._env = make(options)
        self._n = int(getattr(self._env, "num_envs", 0))
        self.options: Mapping[str, Any] = {"env": self._env}
        self.stepping = 0.0
        mode = (getattr(self._env, "metadata", None) or {}).get("autoreset_mode")
        self._resets = self._n > 0 and str(getattr(mode, "value", mode)) == "Disabled"
        self._env.action_space.seed(seed)
        self._obs, _ = self._env.reset(seed=seed)
        self._obs = copy.deepcopy(self._obs)

    def step(self) -> dict[str, Any]:
        """Take one step at random."""
        action, obs = self._env.action_space.sample(), self._obs
        begun = time.perf_counter()
        next_obs, reward, terminated, truncated, info = self._env.step(action)
        next_obs = copy.deepcopy(next_obs)  # some environments write the next one to the same memory
        self._obs = next_obs
        if self._n == 0 and (terminated or truncated):
            self._obs = copy.deepcopy(self._env.reset()[0])
        elif self._resets and (over := np.asarray(terminated) | np.asarray(truncated)).any():
            self._obs = copy.deepcopy(self._env.reset(options={"reset_mask": over})[0])
        self.stepping += time.perf_counter() - begun
        found = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        return found | {"terminated": terminated, "truncated": truncated, "info": info}

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class Noise:
    """Random numbers of a shape, which nothing compresses: the worst that a disk can get."""

    def __init__(self, shape: tuple[int, ...], dtype: str, n_envs: int, seed: int) -> None:
        columns = {"obs": Column(shape, dtype), "action": Column((), "int64")}
        self.options: Mapping[str, Any] = {"columns": columns, "n_envs": n_envs}
        self.stepping = 0.0
        self._column, self._n = columns["obs"], n_envs
        self._rng = np.random.default_rng(seed)
        self._obs = self._draw()

    def _draw(self) -> Any:
        shape, dtype = (self._n, *self._column.shape), self._column.np_dtype
        if dtype.kind == "b":
            return self._rng.integers(0, 2, shape).astype(dtype)
        if dtype.kind in "iu":
            whole = np.iinfo(dtype)
            return self._rng.integers(whole.min, whole.max, shape, dtype, endpoint=True)
        return self._rng.normal(size=shape).astype(dtype)

    def step(self) -> dict[str, Any]:
        """Return one step of each environment."""
        begun = time.perf_counter()
        obs, self._obs = self._obs, self._draw()
        self.stepping += time.perf_counter() - begun
        none, zeros = np.zeros(self._n, np.bool_), np.zeros(self._n)
        found = {"obs": obs, "action": zeros.astype(np.int64), "reward": zeros, "next_obs": self._obs}
        return found | {"terminated": none, "truncated": none, "new_episode": False}

    def close(self) -> None:
        """Hold nothing."""


def make(options: EnvironmentOptions) -> Any:
    """Make an environment, or a vector of them; an InputError where it cannot be made."""
    try:
        import gymnasium
    except ImportError as error:
        raise InputError('environments need Gymnasium; install it with pip install "diskbuffer[gym]", or give a shape') from error
    one = _maker(options)
    first = one()
    if hasattr(first, "single_observation_space"):  # a vector already
        return first
    if not isinstance(first, gymnasium.Env):
        raise InputError(
            f"{options.env} made a {type(first).__name__}, and a gymnasium.Env or a gymnasium.vector.VectorEnv is needed"
        )
    if options.n_envs == 1:
        return first
    kept = [first]  # so that it is not made for nothing
    return gymnasium.vector.SyncVectorEnv([lambda: kept.pop() if kept else one()] * options.n_envs)


def _maker(options: EnvironmentOptions) -> Callable[[], Any]:
    module, _, name = options.env.rpartition(":")
    if module and name.isidentifier():
        made = _function(module, name)
        return lambda: _pictures(made(), options)
    if options.env.startswith(_ATARI) and options.resize != ():
        return lambda: _atari(options)
    return lambda: _pictures(_made(options.env), options)


def _function(module: str, name: str) -> Callable[[], Any]:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise InputError(f"the module {module!r} cannot be imported: {error}") from error
    if not callable(found):
        raise InputError(f"the module {module!r} has no function {name!r} that makes an environment")
    function: Callable[[], Any] = found
    return function


def _made(name: str, **arguments: Any) -> Any:
    import gymnasium

    if name.startswith(_ATARI):
        try:
            import ale_py
        except ImportError as error:
            raise InputError(f"{name} needs ale-py; install it with pip install ale-py") from error
        gymnasium.register_envs(ale_py)
    try:
        return gymnasium.make(name, **arguments)
    except (gymnasium.error.Error, ImportError) as error:
        raise InputError(f"Gymnasium cannot make {name!r}: {error}") from error


def _atari(options: EnvironmentOptions) -> Any:
    """Make an Atari game as Gymnasium's AtariPreprocessing has it: 84x84, grey, each action four times."""
    from gymnasium.wrappers import AtariPreprocessing

    env = _made(options.env, frameskip=1)
    grey = True if options.grey is None else options.grey
    height, width = options.resize or _PIXELS
    return AtariPreprocessing(env, screen_size=(width, height), grayscale_obs=grey)


def _pictures(env: Any, options: EnvironmentOptions) -> Any:
    """Make an environment's pictures grey, and resize them, where that was asked for."""
    from gymnasium.wrappers import GrayscaleObservation, ResizeObservation

    try:
        if options.grey:
            env = GrayscaleObservation(env)
        if options.resize:
            height, width = options.resize
            env = ResizeObservation(env, (height, width))
    except (AssertionError, ImportError) as error:
        raise InputError(f"the observations of {options.env} cannot be made grey, or resized: {error}") from error
    return env
