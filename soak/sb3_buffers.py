"""Our buffers for Stable-Baselines3 against the library's own, drawn at random.

Observation and action spaces, dtypes, numbers of environments, stacks, endings, n-step returns, capacities that wrap; closed,
opened again and pickled in between. With the same seed, every batch must be the library's own, bit for bit. What may
differ is in one table of docs/adapters.md.
"""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers as library
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her import HerReplayBuffer

from diskbuffer.adapters import sb3
from soak.random_values import Pair, World, same_bits
from soak.table import Row, seeded
from soak.workers import failure

Array = npt.NDArray[Any]
Rng = np.random.Generator
_DTYPES = ["float32", "float32", "float64", "float16", "uint8", "uint8", "int8", "int16", "int32", "int64"]
_AWKWARD = [0.0, -0.0, np.nan, np.inf, -np.inf]


# Spaces and values


def _shape(rng: Rng, least: int, most: int, dimensions: int) -> tuple[int, ...]:
    return tuple(rng.integers(least, most + 1, rng.integers(1, dimensions + 1)).tolist())


def _box(rng: Rng) -> spaces.Box:
    dtype, shape = np.dtype(str(rng.choice(_DTYPES))), _shape(rng, 1, 6, 3)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    info = np.iinfo(dtype)
    return spaces.Box(max(info.min, -1000), min(info.max, 1000), shape, dtype.type)


def _plain_space(rng: Rng) -> spaces.Space[Any]:
    some: list[spaces.Space[Any]] = [
        spaces.Discrete(int(rng.integers(1, 20)), start=int(rng.integers(-3, 3))),
        spaces.MultiDiscrete(rng.integers(1, 9, rng.integers(1, 5))),
        spaces.MultiBinary(int(rng.integers(1, 6))),
        spaces.MultiBinary(rng.integers(1, 4, 2).tolist()),
    ]
    return some[int(rng.integers(4))] if rng.random() < 0.5 else _box(rng)


def _dict_space(rng: Rng) -> spaces.Dict:
    names = ["image", "vector", "x y", "_u", "1", "obs", "e\N{COMBINING ACUTE ACCENT}"]
    return spaces.Dict({name: _plain_space(rng) for name in rng.choice(names, rng.integers(1, 4), replace=False).tolist()})


def _stack_space(rng: Rng) -> tuple[spaces.Box, int, bool]:
    """Return a space of stacks, how many frames they have, and whether along the last axis."""
    stack, channels, last = int(rng.integers(2, 6)), int(rng.choice([1, 1, 3])), bool(rng.random() < 0.5)
    picture = tuple(int(n) for n in rng.integers(16, 20, 2))  # wider and higher than a stack has channels
    shape = (*picture, stack * channels) if last else (stack * channels, *picture)
    return spaces.Box(0, 255, shape, np.uint8), stack, last


def _goal_space(rng: Rng) -> spaces.Dict:
    goal = spaces.Box(-np.inf, np.inf, (int(rng.integers(1, 4)),), np.float32)
    return spaces.Dict({"observation": _plain_space(rng), "achieved_goal": goal, "desired_goal": goal})


def _action_space(rng: Rng) -> spaces.Space[Any]:
    some: list[spaces.Space[Any]] = [
        spaces.MultiDiscrete(rng.integers(2, 5, rng.integers(1, 4))),
        spaces.MultiBinary(int(rng.integers(1, 5))),
        spaces.Box(-1, 1, _shape(rng, 1, 3, 2), np.float64 if rng.random() < 0.3 else np.float32),
        spaces.Discrete(int(rng.integers(2, 9))),
    ]
    return some[int(rng.integers(4))]


def _values(space: Any, n: int, rng: Rng) -> Any:
    """Return n values of a space, (n, ...)."""
    if isinstance(space, spaces.Dict):
        return {name: _values(part, n, rng) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, n)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(0, space.nvec, (n, *space.nvec.shape))
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, (n, *space.shape)).astype(np.int8)
    assert isinstance(space, spaces.Box)
    dtype = np.dtype(space.dtype)
    if dtype.kind != "f":
        return rng.integers(space.low, space.high, (n, *space.shape), endpoint=True).astype(dtype)
    found = rng.normal(size=(n, *space.shape)).astype(dtype)
    if rng.random() < 0.1:
        found[rng.random(found.shape) < 0.3] = rng.choice(_AWKWARD)
    return found


class Worlds:
    """Steps of some environments; observations may be stacks of frames, along the first axis or the `last`."""

    def __init__(self, space: Any, n_envs: int, rng: Rng, stack: int = 1, last: bool = False, jumps: float = 0.0) -> None:
        self.n_envs, self._rng = n_envs, rng
        self._all = [World(rng, lambda: _value(space, rng), stack, -1 if last else 0, jumps) for _ in range(n_envs)]

    def step(self) -> tuple[Any, Any, Array, Array, list[dict[str, Any]]]:
        """Return (obs, next_obs, reward, done, infos), with a leading axis of environments."""
        rng = self._rng
        before, after, done = zip(*(world.step() for world in self._all), strict=True)
        infos: list[dict[str, Any]] = [{"n": int(rng.integers(9))} for _ in done]
        for info in (info for info, over in zip(infos, done, strict=True) if over):
            info["TimeLimit.truncated"] = bool(rng.random() < 0.5)
        reward = np.array([world.reward() for world in self._all], rng.choice(["float32", "float64"]))
        return _together(before), _together(after), reward, np.array(done), infos


def _value(space: Any, rng: Rng) -> Any:
    """Return one value of a space."""
    found = _values(space, 1, rng)
    return {name: part[0] for name, part in found.items()} if isinstance(found, dict) else found[0]


def _together(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    return np.stack(parts)


# What must be the same


def _tensors(batch: Any, where: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(batch, torch.Tensor):
        yield where, batch
    elif isinstance(batch, dict):
        for name in sorted(batch):
            yield from _tensors(batch[name], f"{where}/{name}")
    elif isinstance(batch, tuple):
        for name, part in zip(getattr(batch, "_fields", range(len(batch))), batch, strict=True):
            yield from _tensors(part, f"{where}/{name}")


def same_batch(ours: Any, theirs: Any) -> None:
    """Require the same types, names, dtypes, shapes and bits, contiguous, and that no tensor shares another's memory."""
    assert type(ours) is type(theirs), f"{type(ours)} in place of {type(theirs)}"
    mine, other = dict(_tensors(ours)), dict(_tensors(theirs))
    assert mine.keys() == other.keys(), f"{list(mine)} in place of {list(other)}"
    for name, expected in other.items():
        same_bits(expected.numpy(), mine[name].numpy(), name)
        assert mine[name].is_contiguous() == expected.is_contiguous(), f"{name}: strides {mine[name].stride()}"
        assert mine[name].device == expected.device
    memory = sorted((part.data_ptr(), part.data_ptr() + part.nbytes) for part in mine.values() if part.numel())
    for (_, end), (begin, _) in itertools.pairwise(memory):
        assert end <= begin, "two tensors of a batch share memory"


def same_steps(ours: Any, theirs: Any) -> None:
    """Require that all steps are in the same places, and the library's own."""
    places = np.divmod(np.arange(theirs.size() * theirs.n_envs), theirs.n_envs)
    found = ours._batch(*places)
    done = found["terminated"] | found["truncated"]
    for name, part in (("actions", found["action"]), ("rewards", found["reward"]), ("dones", done.float())):
        same_bits(getattr(theirs, name)[places], part.numpy(), name)
    for name, part in (("observations", found["obs"]), ("next_observations", found["next_obs"])):
        of = getattr(theirs, name)
        for key, values in part.items() if isinstance(part, dict) else [("", part)]:
            same_bits((of[key] if isinstance(of, dict) else of)[places], values.numpy(), f"{name}/{key}")


# Replay buffers


class Goals(gymnasium.Env[Any, Any]):
    """An environment with goals, of which `HerReplayBuffer` asks what rewards would have been."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def compute_reward(self, achieved: Array, desired: Array, infos: Any) -> Array:
        """Return minus the distance, and what is in infos."""
        distance: Array = np.abs(achieved - desired).sum(axis=1)
        return np.asarray(-distance + np.array([info.get("n", 0) for info in infos]))


class _Replay(Pair):
    """One replay buffer of ours beside one of the library's, for as long as a test takes."""

    def __init__(self, kind: str, path: Path, rng: Rng) -> None:
        super().__init__(path, rng)
        self.kind = kind
        self.space: Any = {"dict": _dict_space, "her": _goal_space}.get(kind, _plain_space)(rng)
        stack, last = 1, False
        if kind in ("replay", "n_step") and rng.random() < 0.4:
            self.space, stack, last = _stack_space(rng)
        self.actions, self.n_envs = _action_space(rng), int(rng.choice([1, 1, 2, 3, 64], p=[0.3, 0.3, 0.2, 0.17, 0.03]))
        self.size = int(rng.choice([1, 2, 7, 20, 50])) * self.n_envs + int(rng.integers(self.n_envs))
        timeouts = bool(rng.random() < 0.7)
        given = [self.size, self.space, self.actions]
        self.options: dict[str, Any] = {"device": "cpu", "n_envs": self.n_envs, "handle_timeout_termination": timeouts}
        if kind == "n_step":
            self.options |= {"n_steps": int(rng.integers(2, 6)), "gamma": float(rng.choice([0.9, 0.99, 1.0]))}
        if kind == "her":
            self.options |= {"n_sampled_goal": int(rng.integers(1, 6)), "copy_info_dict": bool(rng.random() < 0.3)}
            self.options |= {"goal_selection_strategy": str(rng.choice(["future", "final", "episode"]))}
            given.append(DummyVecEnv([lambda: Goals(self.space, self.actions)]))
        self.given = given
        own: dict[str, Any] = {"dict": library.DictReplayBuffer, "her": HerReplayBuffer, "n_step": library.NStepReplayBuffer}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.theirs = own.get(kind, library.ReplayBuffer)(*given, **self.options)
        jumps = 0.05 if kind in ("replay", "dict") and rng.random() < 0.3 else 0.0
        self.world = Worlds(self.space, self.n_envs, rng, stack, last, jumps)
        self.norm = self._normalized() if rng.random() < 0.2 and _is_floating(self.space) else None
        self.frame_stack = stack if rng.random() < 0.7 and self.size >= stack * self.n_envs else 1
        self.rows = int(2 ** rng.integers(3, 7))
        self.open()

    def _normalized(self) -> VecNormalize:
        env = DummyVecEnv([lambda: Goals(self.space, self.actions)] * self.n_envs)
        found = VecNormalize(env, clip_reward=1.0)
        found.ret_rms.var = np.array(0.3)
        return found

    def open(self) -> None:
        """Open ours anew."""
        of: dict[str, Any] = {"dict": sb3.DiskDictReplayBuffer, "her": sb3.DiskHerReplayBuffer}
        options = self.options | {"path": self.path, "segment_rows": self.rows, "frame_stack": self.frame_stack}
        self.ours = of.get(self.kind, sb3.DiskReplayBuffer)(*self.given, **options)

    def add(self, steps: int) -> None:
        """Add to both."""
        for _ in range(steps):
            obs, after, reward, done, infos = self.world.step()
            action = _values(self.actions, self.n_envs, self.rng)
            if self.rng.random() < 0.2:
                obs, after = self._as_given(obs, self.space), self._as_given(after, self.space)
                reward = self._as_given(reward)
                done = done if self.kind == "her" else self._as_given(done)
                action = action[0] if self.n_envs == 1 else action
            self.each("add", obs, after, action, reward, done, infos)

    def _as_given(self, value: Any, space: Any = None) -> Any:
        """Return a value as users may give it: as a list, without the axis of one environment, or in another dtype."""
        how = self.rng.integers(6)
        if isinstance(value, dict):
            return {name: self._as_given(part, self.space[name]) for name, part in value.items()}
        if how == 0 and self.n_envs == 1:
            value = value[0]
        if how == 1 and not isinstance(space, spaces.Discrete):
            return value.tolist()
        return value.astype(np.float64) if how == 2 and value.dtype == np.float32 else value

    def draw(self) -> None:
        """Draw from both, and compare."""
        where = (self.ours.pos, self.ours.full, self.ours.size())
        assert where == (self.theirs.pos, self.theirs.full, self.theirs.size()), f"{where}: place, full, size"
        if self.kind == "her" and not (self.theirs.ep_length > 0).any():
            assert not (self.ours.ep_length > 0).any()
            return
        if not self.theirs.size():
            return
        size = int(self.rng.integers(1, 40))
        same_batch(*reversed(self.each("sample", size, self.norm)))

    def look(self) -> None:
        """Compare all steps."""
        if self.theirs.size():
            same_steps(self.ours, self.theirs)

    def disturb(self) -> None:
        """Do what a user may between two steps."""
        what = self.rng.choice(["close", "reopen", "kill", "pickle", "flush", "seal", "nothing"])
        if what in ("close", "flush"):
            getattr(self.ours, str(what))()
        elif what == "seal" and self.ours.stored.writes:
            self.ours.stored.buffer.flush(recompress=True)
        elif what in ("reopen", "kill") and not self.options.get("copy_info_dict"):
            self.leave(self.ours.stored, killed=what == "kill")
            self.open()
        elif what == "pickle":
            self.go_on_with_copies()
            if self.kind == "her":
                self.each("set_env", self.given[-1])


def _is_floating(space: Any) -> bool:
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    return all(isinstance(part, spaces.Box) and np.dtype(part.dtype).kind == "f" for part in parts)


def _replay(kind: str, path: Path, rng: Rng, rounds: int) -> None:
    both = _Replay(kind, path, rng)
    try:
        for _ in range(int(rng.integers(1, rounds + 1))):
            both.add(int(rng.choice([1, 2, 5, 20, 60])))
            for _ in range(2):
                both.draw()
            if rng.random() < 0.3:
                both.look()
            both.disturb()
        both.draw()
    finally:
        both.close()


# Rollout buffers


def _rollout(kind: str, path: Path, rng: Rng, rounds: int) -> None:
    space, stack, last = (_dict_space if "dict" in kind else _plain_space)(rng), 1, False
    if "dict" not in kind and rng.random() < 0.4:
        space, stack, last = _stack_space(rng)
    actions, n_envs, length = _action_space(rng), int(rng.choice([1, 1, 2, 3])), int(rng.choice([1, 2, 5, 30]))
    more = _More(kind, n_envs, rng)
    if "maskable" in kind and isinstance(actions, spaces.Box):
        actions = spaces.Discrete(3)
    own, its = _rollout_classes(kind)
    given = [length, space, actions, *more.shape(length)]
    options: dict[str, Any] = {"device": "cpu", "gae_lambda": 0.9, "gamma": 0.95, "n_envs": n_envs}
    frame_stack, both = stack if length >= stack and rng.random() < 0.7 else 1, Pair(path, rng)
    both.ours = own(*given, **options, path=both.path, segment_rows=int(2 ** rng.integers(3, 7)), frame_stack=frame_stack)
    both.theirs = its(*given, **options)
    world, starts = Worlds(space, n_envs, rng, stack, last), np.ones(n_envs, bool)
    numbers: Callable[[], torch.Tensor] = lambda: torch.as_tensor(rng.normal(size=n_envs).astype(np.float32))  # noqa: E731
    try:
        for _ in range(int(rng.integers(1, rounds + 1))):
            both.each("reset")
            for _ in range(length):
                obs, _, reward, done, _ = world.step()
                action, beside = _values(actions, n_envs, rng), more.draw(both.theirs)
                both.each("add", obs, action, reward, starts, numbers(), numbers(), **beside)
                starts = done
                if rng.random() < 0.03:
                    both.ours.close()
                if rng.random() < 0.03 and kind in ("rollout", "dict rollout"):
                    both.go_on_with_copies()
            both.each("compute_returns_and_advantage", numbers(), starts)
            for size in (None, int(rng.integers(1, length * n_envs + 1))):
                expected, found = both.each("get", size)
                for batch, other in zip(found, expected, strict=True):
                    same_batch(batch, other)
    finally:
        both.close()


def _rollout_classes(kind: str) -> tuple[Any, Any]:
    """Return our class, and the library's."""
    if kind in ("rollout", "dict rollout"):
        dicts = "dict" in kind
        return (sb3.DiskDictRolloutBuffer, library.DictRolloutBuffer) if dicts else (sb3.DiskRolloutBuffer, library.RolloutBuffer)
    name = "".join(word.capitalize() for word in (kind.replace("dict ", "").split()[0], *["dict"] * ("dict" in kind)))
    module = importlib.import_module(f"sb3_contrib.common.{kind.split()[-2]}.buffers")
    return getattr(sb3, f"Disk{name}RolloutBuffer"), getattr(module, f"{name}RolloutBuffer")


class _More:
    """What sb3-contrib's buffers have beside those of the library."""

    def __init__(self, kind: str, n_envs: int, rng: Rng) -> None:
        self._kind, self._rng = kind, rng
        self._states = (int(rng.integers(1, 3)), n_envs, int(rng.integers(1, 5)))

    def shape(self, length: int) -> list[tuple[int, ...]]:
        """Return arguments for making one."""
        return [(length, *self._states)] if "recurrent" in self._kind else []

    def draw(self, buffer: Any) -> dict[str, Any]:
        """Return arguments of `add`."""
        if "maskable" in self._kind:
            masks = self._rng.random((buffer.n_envs, buffer.mask_dims)) < 0.7
            return {"action_masks": masks} if self._rng.random() < 0.9 else {}
        if "recurrent" in self._kind:
            from sb3_contrib.common.recurrent.type_aliases import RNNStates

            states = [torch.as_tensor(self._rng.normal(size=self._states).astype(np.float32)) for _ in range(4)]
            return {"lstm_states": RNNStates((states[0], states[1]), (states[2], states[3]))}
        return {}


# Campaign

KINDS = {
    **dict.fromkeys(("replay", "dict", "n_step", "her"), _replay),
    **dict.fromkeys(("rollout", "dict rollout", "maskable rollout", "dict maskable rollout"), _rollout),
    **dict.fromkeys(("recurrent rollout", "dict recurrent rollout"), _rollout),
}


def run(kind: str, seed: int, rounds: int = 6) -> str:
    """Run one configuration, for so many rounds at most; return what went wrong, or nothing."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    with np.errstate(invalid="ignore", over="ignore"):
        return failure(lambda path: KINDS[kind](kind, path, rng, rounds))


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Run 1,000 configurations of each buffer, times `scale`."""
    runs = ((kind, seed * 1_000_000 + n) for n in range(max(1, round(1000 * scale))) for kind in KINDS)
    return seeded("buffers for Stable-Baselines3 beside its own", "soak.sb3_buffers", runs, timeout=300)
