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
_HELD = 4  # observations that are looked at again after each step: some environments take several arrays in turn
_MOST_BYTES = 128 * 1024**2  # of observations that are kept


def same(one: Any, other: Any) -> bool:
    """Return whether two arrays are the same, bit for bit."""
    a, b = np.asarray(one), np.asarray(other)
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()


def _agree(one: Any, other: Any, envs: Any) -> bool:
    """Return whether observations of some environments are the same."""
    parts = flatten({"": other})
    return all(same(np.asarray(part)[envs], np.asarray(parts[path])[envs]) for path, part in flatten({"": one}).items())


def _parts(space: Any) -> Any:
    """Return the parts of a Dict space in dicts."""
    inner = getattr(space, "spaces", None)
    return {key: _parts(part) for key, part in inner.items()} if isinstance(inner, Mapping) else space


def _mixed(action: Any, other: Any, envs: Any) -> Any:
    """Return an action with that of some environments taken from another one."""
    if isinstance(action, Mapping):
        return {name: _mixed(part, other[name], envs) for name, part in action.items()}
    mixed = np.array(action)
    mixed[envs] = np.asarray(other)[envs]
    return mixed


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
    over : list of (n_envs,) bool
        Whose episode ended with each of them.
    ended : int
        Episodes.
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
        self.rows, self.over, self.ended = list[dict[str, Any]](), list[Bools](), 0
        self.overwritten, self.changed_actions, self.reset_others = set[str](), False, False
        self._held: deque[tuple[dict[str, Any], dict[str, Any]]] = deque(maxlen=_HELD)
        self.spaces = flatten({"obs": _parts(getattr(env, "single_observation_space", env.observation_space))})

    def play(self, episodes: int, steps: int) -> None:
        """Step until so many episodes ended, or each environment made so many steps. What it raises, says at which call."""
        self._space.seed(self._seed)
        obs, kept = self._observed(self._call(self.env.reset, seed=self._seed), "reset", 2), 0
        while len(self.rows) < steps and self.ended < episodes and kept < _MOST_BYTES:
            action = self._space.sample()
            given = copy.deepcopy(action)
            returned = self._call(self.env.step, action)
            next_obs = self._observed(returned, "step", 5)
            _, reward, terminated, truncated, info = returned
            self.changed_actions |= not all(map(same, flatten({"": action}).values(), flatten({"": given}).values()))
            final = {name: info[name] for name in ("final_obs", "_final_obs") if isinstance(info, Mapping) and name in info}
            rest = {"reward": reward, "terminated": terminated, "truncated": truncated, "info": final}
            self.rows.append({"obs": obs, "action": given, "next_obs": next_obs, **copy.deepcopy(rest)})
            over = self._flag("terminated", terminated) | self._flag("truncated", truncated)
            self.over.append(over)
            self.ended += int(over.sum())
            kept += sum(np.asarray(part).nbytes for part in flatten({"obs": next_obs}).values())
            obs = self._reset(next_obs, over) if self._resets and over.any() else next_obs

    def _reset(self, next_obs: Any, over: Bools) -> Any:
        """Reset the environments whose episode ended; return what is observed then."""
        options = {"options": {"reset_mask": over.copy()}} if self.is_vector else {}
        obs = self._observed(self._call(self.env.reset, **options), "reset", 2)
        if self.is_vector:
            self.reset_others |= not _agree(next_obs, obs, ~over)
        return obs

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:
            after = ", of which the last one ended an episode" if self.over and self.over[-1].any() else ""
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
        obs = copy.deepcopy(returned[0])
        parts = flatten({"obs": obs})
        shapes, lead = {path: np.shape(part) for path, part in parts.items()}, (self.n_envs,) if self.is_vector else ()
        expected = {path: (*lead, *space.shape) for path, space in self.spaces.items()}
        if shapes != expected:
            raise InputError(f"env: expected observations of shape {expected} from {name}(), as its space has it, found {shapes}")
        self._held.append((flatten({"obs": returned[0]}), parts))
        return obs

    def _flag(self, name: str, value: Any) -> Bools:
        array = np.asarray(value)
        if array.size != self.n_envs or array.dtype.kind not in "biuf":
            raise InputError(f"env: expected {self.n_envs} flags as {name} from step(), found {_kind(value)}")
        return array.astype(bool).reshape(self.n_envs)

    def is_reset_after_an_end(self) -> bool | None:
        """Return whether the step after an end does the same whatever its action, as resets do; None where that cannot be told.

        Plays the same once more, up to the first end, and then another action. Where the first action after a reset shows in the
        next observation, another action after the end does, too, unless that step is a reset.
        """
        end = next((step for step, over in enumerate(self.over[:-1]) if over.any()), None)
        if end is None:
            return None
        envs = np.flatnonzero(self.over[end])
        control = self._replay(0, envs)
        return None if control is not False else self._replay(end + 1, envs)

    def _replay(self, step: int, envs: npt.NDArray[np.int64]) -> bool | None:
        """Return whether another action at a step leads to the same observations; None if all before differ already."""
        other = self._another(self.rows[step]["action"], envs)
        if other is None:
            return None
        self._call(self.env.reset, seed=self._seed)
        for row in self.rows[:step]:
            if not _agree(self._call(self.env.step, copy.deepcopy(row["action"]))[0], row["next_obs"], slice(None)):
                return None
        return _agree(self._call(self.env.step, other)[0], self.rows[step]["next_obs"], envs)

    def _another(self, action: Any, envs: npt.NDArray[np.int64]) -> Any:
        """Return an action that is another one for some environments, and the same for all others; None if none is found."""
        for _ in range(50):
            other = _mixed(action, self._space.sample(), envs)
            pairs = zip(flatten({"": other}).values(), flatten({"": action}).values(), strict=True)
            differ = [np.reshape(np.asarray(one)[envs] != np.asarray(two)[envs], (len(envs), -1)).any(1) for one, two in pairs]
            if np.any(differ, axis=0).all():
                return other
        return None

    # What was seen, by path, with axes of steps and of environments

    def stacked(self, name: str) -> dict[str, Array]:
        """Return all values of a name, (steps, n_envs, ...), by path."""
        parts = [flatten({name: row[name]}) for row in self.rows]
        lead = (len(parts),) if self.is_vector else (len(parts), 1)
        found = {}
        for path in parts[0]:
            array = np.stack([np.asarray(part[path]) for part in parts])
            found[path] = array.reshape(*lead, *array.shape[1:])
        return found

    def rewards(self) -> npt.NDArray[np.float64]:
        """Return the rewards, (steps, n_envs); NaN for what is none."""
        found = np.full((len(self.rows), self.n_envs), np.nan)
        for step, row in enumerate(self.rows):
            array = np.asarray(row["reward"])
            if array.size == self.n_envs and array.dtype.kind in "biuf":
                found[step] = array.reshape(-1)
        return found

    def flags(self, name: str) -> Bools:
        """Return flags, (steps, n_envs)."""
        return np.stack([self._flag(name, row[name]) for row in self.rows])

    def finals(self) -> dict[tuple[int, int], dict[str, Any] | None]:
        """Return the last observations in the infos of steps with an end, by step and environment; None where there is none."""
        found: dict[tuple[int, int], dict[str, Any] | None] = {}
        for step, env in np.argwhere(np.stack(self.over)).tolist():
            info = self.rows[step]["info"]
            is_there = info.get("final_obs") is not None and np.asarray(info.get("_final_obs", self.over[step]))[env]
            last = one_of(info["final_obs"], env) if is_there else None
            parts = {} if last is None else flatten({"obs": last})
            found[step, env] = {path: parts[path] for path in self.spaces} if self.spaces.keys() <= parts.keys() else None
        return found


def _kind(value: Any) -> str:
    if isinstance(value, tuple | Mapping):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{np.asarray(value).dtype} of shape {np.shape(value)}"
