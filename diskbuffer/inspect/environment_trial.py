"""An environment that is stepped at random, and all that it returned, kept as copies: what `check_env` looks at."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.plugin import counted, flatten, one_of, spaces_of

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
_FIGURES = ("reward", "terminated", "truncated")
_HELD = 4  # observations that are looked at again after each step: some environments take several arrays in turn
_MOST_BYTES = 128 * 1024**2  # of observations that are kept


def same(one: Any, other: Any) -> bool:
    """Return whether two arrays are the same, bit for bit."""
    a, b = np.asarray(one), np.asarray(other)
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()


def _agree(one: Any, other: Any, env: Any = ...) -> bool:
    """Return whether all parts of an observation or action are the same, in one environment or in those of a mask."""
    parts = flatten({"": other})
    return all(same(np.asarray(part)[env], np.asarray(parts[path])[env]) for path, part in flatten({"": one}).items())


def _copied(obs: Any) -> Any:
    """Return an observation as arrays of numpy of its own, whichever library's they are."""
    return {key: _copied(part) for key, part in obs.items()} if isinstance(obs, Mapping) else np.array(obs)


class Trial:
    """Play an environment, and keep what it returned.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
    seed : int

    Attributes
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
    is_vector : bool
    n_envs : int
    claimed : str or None
        How a vector resets, as it says itself.
    spaces : dict of str to gymnasium.Space
        Of the parts of one environment's observations, by path.
    rows : list of dict
        What `ReplayBuffer.add` takes, of each call of ``step``; infos have ``final_obs`` alone.
    seen : dict of str to (steps, n_envs, ...) array
        The same by path, once it was played; where infos have an episode's last observation, next observations are that.
    over : (steps, n_envs) bool
        Whose episode ended with each of them.
    ended : int
        Episodes.
    finals : list of bool or None
        Of each end in a vector, whether the last observation in infos is just what the environment was reset to; None for none.
    overwritten : set of str
        Observations that had changed after a later step.
    changed_actions, reset_others : bool
        Whether ``step`` wrote to its action, and ``reset`` of some environments changed the observations of others.
    """

    def __init__(self, env: Any, seed: int) -> None:
        _, _, self.n_envs, self.claimed = spaces_of(env)
        self.is_vector = hasattr(env, "single_observation_space")
        if hasattr(env, "num_envs") and not self.is_vector:
            raise InputError(
                f"env: expected a gymnasium.Env or a gymnasium.vector.VectorEnv, found {type(env).__name__}; of a VecEnv of "
                "Stable-Baselines3, check one of the environments that it is made from"
            )
        self._space = copy.deepcopy(env.action_space)
        self.env, self._seed, self._resets = env, seed, not self.is_vector or self.claimed == "disabled"
        self.rows, self.seen, self.finals = list[dict[str, Any]](), dict[str, Array](), list[bool | None]()
        self.overwritten, self.changed_actions, self.reset_others = set[str](), False, False
        self._held: deque[tuple[dict[str, Any], dict[str, Any]]] = deque(maxlen=_HELD)
        self.spaces = flatten({"obs": getattr(env, "single_observation_space", env.observation_space)})

    def play(self, episodes: int, steps: int) -> None:
        """Step until so many episodes ended, or each environment made so many steps. What it raises, says at which call."""
        self._space.seed(self._seed)
        seen = list[dict[str, Array]]()
        self._over, self.ended, kept = np.zeros(self.n_envs, np.bool_), 0, 0
        obs = self._observed(self._call(self.env.reset, seed=self._seed), "reset", 2)
        while len(seen) < steps and self.ended < episodes and kept < _MOST_BYTES:
            action = self._space.sample()
            given = copy.deepcopy(action)
            returned = self._call(self.env.step, action)
            next_obs, info = self._observed(returned, "step", 5), returned[4]
            self.changed_actions |= not _agree(action, given)
            figures = dict(zip(_FIGURES, copy.deepcopy(returned[1:4]), strict=True))
            infos = {name: info[name] for name in ("final_obs", "_final_obs") if isinstance(info, Mapping) and name in info}
            row = {"obs": obs, "action": given, "next_obs": next_obs, **figures, "info": copy.deepcopy(infos)}
            self.rows.append(row)
            seen.append(self._by_path(row))
            self._over = seen[-1]["terminated"] | seen[-1]["truncated"]
            self.ended += int(self._over.sum())
            kept += sum(seen[-1][f"next_{path}"].nbytes for path in self.spaces)
            obs = self._reset(next_obs) if self._resets and self._over.any() else next_obs
        self.seen = {path: np.stack([each[path] for each in seen]) for path in seen[0]}
        self.over = self.seen["terminated"] | self.seen["truncated"]

    def _by_path(self, row: Mapping[str, Any]) -> dict[str, Array]:
        """Return the parts of a row, (n_envs, ...) each."""
        nested = flatten({name: row[name] for name in ("obs", "action", "next_obs")})
        parts = {path: np.asarray(part)[... if self.is_vector else None] for path, part in nested.items()}
        for name in _FIGURES:
            array = np.asarray(row[name])
            if array.size != self.n_envs or array.dtype.kind not in "biuf":
                raise InputError(f"env: expected {self.n_envs} numbers or flags as {name} from step(), found {_kind(row[name])}")
            parts[name] = array.astype(np.float64 if name == "reward" else np.bool_).reshape(self.n_envs)
        over = parts["terminated"] | parts["truncated"]
        for env in np.flatnonzero(over).tolist() if self.is_vector else ():
            last, is_reset = self._last(row["info"], over, env), True
            for path in last:
                is_reset &= same(last[path], parts[path][env])
                parts[path] = parts[path].copy()
                parts[path][env] = last[path]
            self.finals.append(is_reset if last else None)
        return parts

    def _last(self, info: Mapping[str, Any], over: Bools, env: int) -> dict[str, Any]:
        """Return the last observation of an episode in infos, by path; nothing where there is none."""
        every = info.get("final_obs")
        if every is None or not np.asarray(info.get("_final_obs", over))[env] or one_of(every, env) is None:
            return {}
        parts = flatten({"obs": one_of(every, env)})
        fits = all(path in parts and np.shape(parts[path]) == space.shape for path, space in self.spaces.items())
        return {f"next_{path}": parts[path] for path in self.spaces} if fits else {}

    def _reset(self, next_obs: Any) -> Any:
        """Reset the environments whose episode ended; return what is observed then."""
        options = {"options": {"reset_mask": self._over.copy()}} if self.is_vector else {}
        obs = self._observed(self._call(self.env.reset, **options), "reset", 2)
        if self.is_vector:
            self.reset_others |= not _agree(next_obs, obs, ~self._over)
        return obs

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:
            after = ", of which the last one ended an episode" if self._over.any() else ""
            error.add_note(
                f"the environment raised this in {function.__name__}(), after {counted(len(self.rows), 'step')}{after}"
            )
            raise

    def _observed(self, returned: Any, name: str, length: int) -> Any:
        """Return a copy of the observation in what a call returned, and note which of the last ones have changed since."""
        if not isinstance(returned, tuple) or len(returned) != length:
            raise InputError(f"env: expected a tuple of {length} from {name}(), as Gymnasium has it, found {_kind(returned)}")
        for now, then in self._held:
            self.overwritten |= {path for path, part in now.items() if not same(part, then[path])}
        obs = _copied(returned[0])
        parts, lead = flatten({"obs": obs}), (self.n_envs,) if self.is_vector else ()
        shapes = {path: part.shape for path, part in parts.items()}
        expected = {path: (*lead, *space.shape) for path, space in self.spaces.items()}
        if shapes != expected:
            raise InputError(f"env: expected observations of shape {expected} from {name}(), as its space has it, found {shapes}")
        self._held.append((flatten({"obs": returned[0]}), parts))
        return obs

    def is_reset_after_an_end(self) -> bool | None:
        """Return whether the step after an end does the same whatever its action, as resets do; None where that cannot be told.

        Plays the same once more, up to the first end, and then another action. Where the first action after a reset shows in the
        next observation, another action after the end does, too, unless that step is a reset.
        """
        ends = np.argwhere(self.over[:-1]).tolist()
        if not ends or self._replay(0, ends[0][1]) is not False:
            return None
        return self._replay(ends[0][0] + 1, ends[0][1])

    def _replay(self, step: int, env: int) -> bool | None:
        """Return whether another action at a step leads to the same observation; None if one before differs already."""
        now = self.rows[step]
        samples = (self._space.sample() for _ in range(50))
        other = next((action for action in samples if not _agree(action, now["action"], env)), None)
        self._call(self.env.reset, seed=self._seed)
        for row in self.rows[:step]:
            if not _agree(self._call(self.env.step, copy.deepcopy(row["action"]))[0], row["next_obs"]):
                return None
        return None if other is None else _agree(self._call(self.env.step, other)[0], now["next_obs"], env)


def _kind(value: Any) -> str:
    if isinstance(value, tuple | Mapping):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{np.asarray(value).dtype} of shape {np.shape(value)}"
