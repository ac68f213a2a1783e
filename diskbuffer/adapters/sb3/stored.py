"""The store behind a buffer of Stable-Baselines3: opened late, and written to only by a process that adds."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from diskbuffer import Column, ReplayBuffer
from diskbuffer.adapters.frame_stacks import Frames, guess, padding, recognise, ways_to_stack
from diskbuffer.adapters.sb3.advice import advising
from diskbuffer.errors import InputError, SchemaError, StackError
from diskbuffer.plugin import CUT_OFF, Batch, SharedStore, describe_spaces, escape_key, integer_or_none, is_store

Array = npt.NDArray[Any]
Part = str | None  # the name of a part of dict observations; None where an observation is one array
Obs = Array | dict[Part, Array]
Tensors = torch.Tensor | dict[str, torch.Tensor]


class Stored(SharedStore):
    """Steps in the terms of Stable-Baselines3, in a store that is opened read-only until the first `add`.

    Parameters
    ----------
    path : path-like
    capacity : int
        Steps of all environments together.
    space : gymnasium.Space
        Of observations.
    shapes : tuple of int, or dict of str to tuple of int
        Of an observation, or of each part of one, as Stable-Baselines3 has them.
    columns : mapping of str to Column
        All others.
    n_envs : int
    frame_stack : int, optional
        Of observations; recognised where it is missing.
    action_space : gymnasium.Space
    **options
        Of `ReplayBuffer`.

    Attributes
    ----------
    obs_bytes : int
        Of an observation of every environment.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity: int,
        space: spaces.Space[Any],
        shapes: Any,
        columns: Mapping[str, Column],
        n_envs: int,
        frame_stack: int | None,
        action_space: spaces.Space[Any],
        **options: Any,
    ) -> None:
        environment = describe_spaces(space, action_space)
        super().__init__(path, n_envs=n_envs, autoreset="disabled", environment=environment, **options)
        self._capacity, self._columns, self.n_envs = capacity, dict(columns), n_envs
        self._frame_stack = integer_or_none("frame_stack", frame_stack)
        parts: dict[Part, Any] = dict(space.spaces.items()) if isinstance(space, spaces.Dict) else {None: space}
        shapes = shapes if isinstance(shapes, dict) else {None: shapes}
        self._plain_shape = None if isinstance(space, spaces.Dict) else (n_envs, *shapes[None])
        self._shapes = {name: (shapes[name], np.dtype(parts[name].dtype or np.float32)) for name in parts}
        self._whole = {
            name: Column((n_envs, *shape), dtype.name, allow_nan=True) for name, (shape, dtype) in self._shapes.items()
        }
        self.obs_bytes = sum(column.row_bytes for column in self._whole.values())
        self._obs_paths = tuple(map(obs_path, parts))
        self._frames: dict[Part, Frames] = {}
        self._takes_as_given = False  # observations, as the store does
        self.open_to_read()

    # Opening

    def accept(self, opened: ReplayBuffer) -> None:
        """Find out how it holds observations; a SchemaError where it is another environment's."""
        frames = self._frames_of(opened)
        self._refuse_another(opened)
        self._frames = frames
        self._takes_as_given = self._plain_shape is not None and frames[None].are_side_by_side

    def _frames_of(self, opened: ReplayBuffer) -> dict[Part, Frames]:
        """Find out how the store's frames make up observations; a SchemaError where they cannot."""
        found = {}
        for name, (shape, dtype) in self._shapes.items():
            path = obs_path(name)
            column = opened.columns.get(path)
            stack = opened.frame_stack
            if self._frame_stack and stack not in (1, self._frame_stack):
                raise SchemaError(
                    f"{self.path} holds single frames, {stack} of them an observation, and frame_stack={self._frame_stack} asks "
                    "for something else; leave it out, or give another path"
                )
            ways = [Frames(shape, dtype)] if stack == 1 else ways_to_stack(shape, dtype, stack)
            fitting = [way for way in ways if _is(way, column)]
            if not fitting:
                raise SchemaError(
                    f"{self.path} holds {path} as {column}, {stack} of them an observation, and the environment's observations "
                    f"are {shape} of {dtype}; give another path, or the environment that the store was written with"
                )
            found[name] = fitting[0]
        paths = set(map(obs_path, found))
        more = sorted(path for path in opened.columns if path.split("/")[0] == "obs" and path not in paths)
        if more:
            raise SchemaError(
                f"{self.path} holds {more}, too, which the environment's observations do not have; give another path, or the "
                "environment that the store was written with"
            )
        return found

    def _refuse_another(self, opened: ReplayBuffer) -> None:
        for path, column in self._columns.items():
            if opened.columns.get(path) != column:
                raise SchemaError(
                    f"{self.path} holds {path} as {opened.columns.get(path)}, and the environment's spaces make it {column}. "
                    "Give another path, or the environment that the store was written with"
                )
        if opened.capacity != self._capacity:
            raise SchemaError(
                f"{self.path} keeps {opened.capacity} steps, and {self._capacity} are asked for; give "
                f"buffer_size={opened.capacity} (for rollouts, as many steps of all environments together), or another path"
            )

    def open_to_write(self, **how: Any) -> ReplayBuffer:
        """Open it for writing, as a store of this capacity."""
        if self._writes:
            return super().open_to_write()
        with advising():
            return super().open_to_write(capacity=self._capacity, **how)

    def open_to_read(self) -> ReplayBuffer | None:
        """Open it where it is there and not open yet."""
        if self._buffer is not None:
            return self._buffer
        with advising():
            return super().open_to_read()

    def _make(self, obs: Obs, next_obs: Obs, known: Array) -> None:
        """Open the store for writing, or make it, by the first step; ``next_obs`` is what came after where it is `known`."""
        if self._buffer is not None or is_store(self.path):
            self.open_to_write()
            return
        befores, afters = ({name: part[known] for name, part in parts_of(given).items()} for given in (obs, next_obs))
        found = {
            name: recognise(shape, dtype, befores[name], afters[name], self._frame_stack)
            if known.any() or not self._frame_stack or self._frame_stack == 1
            else guess(shape, dtype, parts_of(obs)[name], self._frame_stack)
            for name, (shape, dtype) in self._shapes.items()
        }
        stacks = {frames.stack for frames in found.values()}
        if len(stacks) > 1 or max(stacks) > self._capacity:  # a store has the same for all, and holds one stack at least
            found = {name: Frames(*self._shapes[name]) for name in found}
        self._frames = found
        first = next(iter(found.values()))
        how = {
            "columns": {obs_path(name): frames.column for name, frames in found.items()} | self._columns,
            "frame_stack": first.stack,
            "padding": "first" if first.stack == 1 else padding(first.split(next(iter(parts_of(obs).values())))),
        }
        self.open_to_write(**how)

    def cut_off(self) -> None:
        """End the running episodes."""
        self.open_to_write().cut_off()

    # Steps

    def add_as_given(self, obs: Any, next_obs: Any, action: Any, reward: Any, terminated: Any, truncated: Any) -> bool:
        """Do as `add`, with an action that may lack its axis, if nothing else is to be converted; return whether it was done."""
        if not self._takes_as_given or not self._writes:
            return False
        if self._frames[None].stack > 1 and not (self._fits(obs) and self._fits(next_obs)):  # single frames mean something else
            return False
        if action.__class__ is np.ndarray and action.ndim == 1:
            action = action[:, None]
        assert self._buffer is not None
        try:
            self._buffer.add(obs, action, reward, next_obs, terminated, truncated)
        except InputError:  # which `add` tells of, where it cannot do it either
            return False
        return True

    def add(self, obs: Obs, next_obs: Obs, **columns: Array) -> None:
        """Add a step of every environment."""
        if not self._fits(obs) or not self._fits(next_obs):
            obs, next_obs = self._batched("obs", obs), self._batched("next_obs", next_obs)
        if not self._writes:
            ended = columns["terminated"] | columns["truncated"]  # then any observation may come, such as the next episode's
            self._make(obs, next_obs, ~ended if self._frame_stack or not ended.all() else np.ones(self.n_envs, bool))
        self._add(obs, next_obs, columns)

    def add_held(self, obs: Obs, next_obs: Obs, unknown: Array, **columns: Array) -> None:
        """Add a step of every environment, from what `held` returned. What came after is made up where it is `unknown`."""
        if not self._writes:
            self._make(obs, next_obs, ~unknown)
        self._add(obs, self._after(obs, next_obs, unknown) if True in unknown.tolist() else next_obs, columns)

    def _add(self, obs: Obs, next_obs: Obs, columns: dict[str, Array]) -> None:
        assert self._buffer is not None
        before, after = self._split(obs), self._split(next_obs)
        try:
            self._buffer.add(obs=before, next_obs=after, **columns)
        except StackError:
            over = columns["terminated"].reshape(-1)
            if not over.any():
                raise
            self._buffer.add(obs=before, next_obs=self._rolled(before, after, over), **columns)

    def _rolled(self, before: Any, after: Any, where: Array) -> Any:
        """Return what came after stacks: of some environments, these moved on to the newest frame after them.

        Of terminal steps, of which nothing but the reward is learned, scripts give the next episode's first stack.
        """
        found = {}
        for name, part in parts_of(after).items():
            found[name] = part.copy()
            if self._frames[name].stack > 1:
                found[name][where, :-1] = parts_of(before)[name][where, 1:]
        return found if isinstance(after, dict) else found[None]

    def _after(self, obs: Obs, next_obs: Obs, unknown: Array) -> Obs:
        """Return what comes after a step of every environment, made up where it is `unknown`."""
        if self.n_envs == 1:
            made_up = {name: self._frames[name].moved_on(before) for name, before in parts_of(obs).items()}
            return made_up if isinstance(obs, dict) else made_up[None]
        found = {}
        befores, afters = parts_of(obs), parts_of(next_obs)
        for name, before in befores.items():
            moved = self._frames[name].moved_on(before)
            where = unknown.reshape(-1, *(1,) * (before.ndim - 1))
            found[name] = np.where(where, moved, afters[name])
        return found if isinstance(obs, dict) else found[None]

    def observations(self, ages: Array, envs: Array) -> Obs:
        """Return observations of steps by age, read in this thread, in memory of their own."""
        found = self.join(self.opened.at(ages=ages, envs=envs, columns=self._obs_paths)["obs"])
        return {name: part.numpy() for name, part in found.items()} if isinstance(found, dict) else found.numpy()

    def in_order(self, ages: Array, envs: Array, size: int) -> Iterator[tuple[Tensors, float]]:
        """Yield observations of steps by age, read ahead, and the seconds that each batch was waited for."""
        opened, begun = self.opened, time.perf_counter()
        if len(ages) <= size:  # there is nothing to read ahead, and threads would have to start
            found = opened.at(ages=ages, envs=envs, columns=self._obs_paths)["obs"]
            yield self.join(found), time.perf_counter() - begun
            return
        loader = opened.batches(size, merge_last=False, steps=opened.steps(ages, envs), rank=0, world_size=1)
        before = 0.0
        for batch in loader:
            waited, before = loader.waited - before, loader.waited
            yield self.join(batch["obs"]), waited

    def _fits(self, obs: Any) -> bool:
        """Tell at once whether observations are an array as `_batched` returns it."""
        return obs.__class__ is np.ndarray and obs.shape == self._plain_shape

    def _batched(self, what: str, obs: Any) -> Obs:
        """Return observations as arrays with a leading axis of environments, and those parts that the space has."""
        parts = obs if isinstance(obs, dict) else {None: obs}
        missing = [name for name in self._shapes if name not in parts]
        if missing:
            raise InputError(f"{what}: expected {_listed(self._shapes)}, found {_listed(parts)}")
        found = {
            name: batched(f"{what}[{name!r}]" if name is not None else what, parts[name], (self.n_envs, *shape))
            for name, (shape, _) in self._shapes.items()
        }
        return found.get(None, found)

    def held(self, what: str, obs: Any) -> Obs:
        """Return a copy of observations of a step of every environment, in the space's dtypes."""
        if self._fits(obs) and obs.dtype == self._whole[None].np_dtype and self._whole[None].allow_nan:
            return obs.copy()  # type: ignore[no-any-return]
        parts = self._batched(what, obs)
        found = {}
        for name, part in parts_of(parts).items():
            found[name] = np.array(part)
        return found if isinstance(parts, dict) else found[None]

    def _split(self, obs: Obs) -> Any:
        if not isinstance(obs, dict):
            frames = self._frames[None]
            return obs if frames.stack == 1 else frames.split(obs)
        return {name: frames.split(obs[name]) for name, frames in self._frames.items()}

    def join(self, obs: Any) -> Any:
        """Turn observations of a batch into those of the environment, contiguous as the library's are."""
        if not isinstance(obs, dict):
            frames = self._frames[None]
            return obs if frames.stack == 1 and obs.is_contiguous() else frames.copied(obs)
        return {name: frames.copied(obs[name]) for name, frames in self._frames.items() if name in obs}

    def batch(
        self, ages: Array, envs: Array, *, n_step: int = 1, gamma: float = 0.99, columns: Sequence[str] | None = None
    ) -> Batch:
        """Return steps by age, with the environment's own observations, in memory of their own; all columns, or some."""
        buffer = self.open_to_read()
        if buffer is None:
            return self._zeros(len(ages))
        apart = columns is None  # and so in memory that may be written to
        return self._joined(buffer.at(ages=ages, envs=envs, n_step=n_step, gamma=gamma, copy=apart, columns=columns))

    def _joined(self, batch: Batch) -> Batch:
        for name in ("obs", "next_obs"):
            if name in batch:
                batch[name] = self.join(batch[name])
        return batch

    def _zeros(self, size: int) -> Batch:
        """Return what the library has in places where nothing was added yet."""
        batch: Batch = {}
        for path in ("obs", "next_obs"):
            obs = {name: torch.from_numpy(np.zeros((size, *shape), dtype)) for name, (shape, dtype) in self._shapes.items()}
            batch[path] = obs.get(None, obs)
        batch |= {path: torch.from_numpy(np.zeros((size, *c.shape), c.np_dtype)) for path, c in self._columns.items()}
        flags = {path: torch.zeros(size, dtype=torch.bool) for path in ("terminated", "truncated")}
        return batch | flags | {"steps": torch.full((size,), -1)}

    def ends_cut_off(self) -> npt.NDArray[np.int64]:
        """Return the last steps of episodes that were cut off."""
        if self._buffer is None:
            return np.zeros(0, np.int64)
        episodes = self._buffer.episodes
        cut = episodes.ending == CUT_OFF
        return np.asarray(episodes.start[cut] + (episodes.length[cut] - 1) * self.n_envs)

    def remaining(self, steps: Any) -> npt.NDArray[np.int64]:
        """Count the steps of its episode from each step on."""
        return np.ones(len(steps), np.int64) if self._buffer is None else self._buffer.episodes.remaining(steps)

    def counts(self) -> tuple[int, int]:
        """Return how many steps each environment has, and has ever had; the fewest, where a kill came between them."""
        if self._buffer is None:
            return 0, 0
        there, ever = self._buffer.counts()
        return int(there.min()), int(ever.min())


def batched(what: str, value: Any, shape: tuple[int, ...]) -> Array:
    """Return a value as an array of a shape, as numpy would assign it to one: the leading axis may be missing, or be of one.

    Those with other axes are taken where they hold as many numbers: numbers of environments, with an axis for each or without.
    """
    if value.__class__ is np.ndarray:
        if value.shape == shape:
            return value
        if value.shape == shape[:1] and shape[1:] == (1,):
            return value[:, None]
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{what}: expected an array of shape {shape}, found something ragged: {error}") from error
    if found.shape == shape:
        return found
    if found.size == math.prod(shape):
        return found.reshape(shape)
    try:
        return np.broadcast_to(found, shape)
    except ValueError:
        raise InputError(
            f"{what}: expected shape {shape}, one for each environment, or {shape[1:]}, found {found.shape}"
        ) from None


def obs_path(name: Part) -> str:
    """Return the path of the column for a part of observations."""
    return "obs" if name is None else f"obs/{escape_key(name)}"


def _is(frames: Frames, column: Column | None) -> bool:
    return column is not None and (column.shape, column.dtype) == (frames.column.shape, frames.column.dtype)


def _listed(parts: Iterable[Part]) -> str:
    return ", ".join(repr(name)[1:-1] for name in parts if name is not None) or "an array"


def parts_of(obs: Obs) -> dict[Part, Array]:
    """Return parts of dict observations by name; others as one without a name."""
    return obs if isinstance(obs, dict) else {None: obs}
