"""The store behind a buffer of Stable-Baselines3: opened late, and written to only by a process that adds."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from diskbuffer import Column, ReplayBuffer
from diskbuffer.adapters.frame_stacks import STORED_WHOLE, Frames, look_stacked, padding
from diskbuffer.adapters.sb3.advice import advising
from diskbuffer.errors import InputError, SchemaError, StackError
from diskbuffer.plugin import Batch, SharedStore, describe_spaces, escape_key, integer, is_store

Array = npt.NDArray[Any]
Part = str | None  # the name of a part of dict observations; None where an observation is one array
Obs = Array | dict[Part, Array]
Tensors = torch.Tensor | dict[str, torch.Tensor]
_READ_AHEAD = 64 * 1024  # bytes of observations in a minibatch from which threads are worth their work


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
    frame_stack : int
        Frames in an observation.
    action_space : gymnasium.Space
    **options
        Of `ReplayBuffer`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity: int,
        space: spaces.Space[Any],
        shapes: Any,
        columns: Mapping[str, Column],
        n_envs: int,
        frame_stack: int,
        action_space: spaces.Space[Any],
        **options: Any,
    ) -> None:
        environment = describe_spaces(space, action_space)
        super().__init__(path, n_envs=n_envs, autoreset="disabled", environment=environment, **options)
        self._capacity, self.n_envs, self._stack = capacity, n_envs, integer("frame_stack", frame_stack)
        parts: dict[Part, Any] = dict(space.spaces.items()) if isinstance(space, spaces.Dict) else {None: space}
        shapes = shapes if isinstance(shapes, dict) else {None: shapes}
        self._frames = {
            name: _stacked(name, shapes[name], np.dtype(part.dtype or np.float32), self._stack) for name, part in parts.items()
        }
        self._columns = {obs_path(name): frames.column for name, frames in self._frames.items()} | dict(columns)
        self._obs_paths = tuple(map(obs_path, parts))
        as_given = None in parts and self._frames[None].are_side_by_side
        self._stored_shape = (n_envs, *self._frames[None].shape) if as_given else None  # of what the store takes as it is
        self.open_to_read()

    # Opening

    def accept(self, opened: ReplayBuffer) -> None:
        """Raise a SchemaError where the store is another environment's."""
        other = "give another path, or the environment that the store was written with"
        if opened.frame_stack != self._stack:
            raise SchemaError(
                f"{self.path} holds {opened.frame_stack} frames an observation, and frame_stack={self._stack} is asked for; give "
                f"frame_stack={opened.frame_stack}, or another path"
            )
        for path, column in self._columns.items():
            stored = opened.columns.get(path)
            if stored is None or (stored.shape, stored.dtype) != (column.shape, column.dtype):
                raise SchemaError(f"{self.path} holds {path} as {stored}, and the environment's spaces make it {column}; {other}")
        more = sorted(path for path in opened.columns if path.split("/")[0] == "obs" and path not in self._obs_paths)
        if more:
            raise SchemaError(f"{self.path} holds {more}, too, which the environment's observations do not have; {other}")
        if opened.capacity != self._capacity:
            raise SchemaError(
                f"{self.path} keeps {opened.capacity} steps, and {self._capacity} are asked for; give "
                f"buffer_size={opened.capacity} (for rollouts, as many steps of all environments together), or another path"
            )

    def open_to_write(self, **how: Any) -> ReplayBuffer:
        """Open it for writing, as a store of this capacity."""
        if self.writes:
            return super().open_to_write()
        with advising():
            return super().open_to_write(capacity=self._capacity, **how)

    def open_to_read(self) -> ReplayBuffer | None:
        """Open it where it is there and not open yet."""
        if self.buffer is not None:
            return self.buffer
        with advising():
            return super().open_to_read()

    def _writer(self, stacks: Any) -> ReplayBuffer:
        """Return the store, opened for writing, or made by the first stacks of observations."""
        if self.buffer is not None and self.writes:
            return self.buffer
        if self.buffer is not None or is_store(self.path):
            return self.open_to_write()
        begins = "first" if self._stack == 1 else padding(next(iter(parts_of(stacks).values())))
        return self.open_to_write(columns=self._columns, frame_stack=self._stack, padding=begins)

    # Steps

    def add(self, obs: Obs, action: Array, reward: Array, next_obs: Obs, terminated: Array, truncated: Array) -> None:
        """Add a step of every environment.

        Of a terminal step nothing but the reward is learned, and scripts give the next episode's first stack with it: where
        `next_obs` is not `obs` moved on by a frame, its newest frame is stored as what came next.
        """
        before, after = self._stacks("obs", obs), self._stacks("next_obs", next_obs)
        buffer = self._writer(before)
        try:
            buffer.add(before, action, reward, after, terminated, truncated)
        except StackError:
            if not terminated.any():
                raise
            buffer.add(before, action, reward, self._moved_on(before, after, terminated.astype(np.bool_)), terminated, truncated)

    def add_of_rollout(self, obs: Obs, action: Array, reward: Array, next_obs: Obs, terminated: Array, truncated: Array) -> None:
        """Add a step of every environment; where an episode ends, only the newest frame of `next_obs` is taken."""
        before, after = self._stacks("obs", obs), self._stacks("next_obs", next_obs)
        after = self._moved_on(before, after, terminated | truncated)
        self._writer(before).add(before, action, reward, after, terminated, truncated)

    def _moved_on(self, before: Any, after: Any, where: Array) -> Any:
        """Return what came after stacks: of some environments, these moved on to the newest frame after them."""
        if self._stack == 1 or not where.any():
            return after
        moved = {name: part.copy() for name, part in parts_of(after).items()}
        for name, part in moved.items():
            part[where, :-1] = parts_of(before)[name][where, 1:]
        return moved if isinstance(after, dict) else moved[None]

    def shaped(self, what: str, obs: Any) -> Obs:
        """Return observations as arrays with a leading axis of environments, and those parts that the space has."""
        parts = obs if isinstance(obs, dict) else {None: obs}
        missing = [name for name in self._frames if name not in parts]
        if missing:
            raise InputError(f"{what}: expected {_listed(self._frames)}, found {_listed(parts)}")
        arrays = {
            name: shaped(what if name is None else f"{what}[{name!r}]", parts[name], (self.n_envs, *frames.shape))
            for name, frames in self._frames.items()
        }
        return arrays.get(None, arrays)

    def _stacks(self, what: str, obs: Any) -> Any:
        """Return observations as the store takes them."""
        if obs.__class__ is np.ndarray and obs.shape == self._stored_shape:
            return obs
        obs = self.shaped(what, obs)
        if not isinstance(obs, dict):
            return self._frames[None].split(obs)
        return {name: frames.split(obs[name]) for name, frames in self._frames.items()}

    # Reading

    def join(self, obs: Any) -> Any:
        """Turn observations of a batch into those of the environment, contiguous as the library's are."""
        if not isinstance(obs, dict):
            return self._frames[None].copied(obs)
        return {name: frames.copied(obs[name]) for name, frames in self._frames.items() if name in obs}

    def batch(
        self, ages: Array, envs: Array, *, n_step: int = 1, gamma: float = 1.0, columns: Sequence[str] | None = None
    ) -> Batch:
        """Return steps by age, with the environment's own observations, in memory of their own; all columns, or some."""
        apart = columns is None  # and so in memory that may be written to
        batch = self.opened.at(ages=ages, envs=envs, n_step=n_step, gamma=gamma, copy=apart, columns=columns)
        for name in ("obs", "next_obs"):
            if name in batch:
                batch[name] = self.join(batch[name])
        return batch

    def in_order(self, ages: Array, envs: Array, size: int) -> Iterator[tuple[Tensors, float]]:
        """Yield observations of steps by age, read ahead where that is worth it, and the seconds that each was waited for."""
        opened = self.opened
        if len(ages) <= size or size * sum(self._columns[path].row_bytes for path in self._obs_paths) < _READ_AHEAD:
            for first in range(0, len(ages), size):
                some, begun = slice(first, first + size), time.perf_counter()
                batch = opened.at(ages=ages[some], envs=envs[some], columns=self._obs_paths)
                yield self.join(batch["obs"]), time.perf_counter() - begun
            return
        loader = opened.batches(size, merge_last=False, steps=opened.steps(ages, envs), rank=0, world_size=1)
        before = 0.0
        for batch in loader:
            waited, before = loader.waited - before, loader.waited
            yield self.join(batch["obs"]), waited

    def counts(self) -> tuple[int, int]:
        """Return how many steps each environment has, and has ever had; the fewest, where a kill came between them."""
        if self.buffer is None:
            return 0, 0
        stored, ever = self.buffer.counts()
        return int(stored.min()), int(ever.min())


def _stacked(name: Part, shape: tuple[int, ...], dtype: np.dtype[Any], stack: int) -> Frames:
    """Return how observations are stacks: along the axis of as many frames, or else the shorter that can hold them.

    There `VecFrameStack` and `FrameStackObservation` put frames, where pictures are wider and higher than stacks have channels.
    """
    if stack == 1:
        if look_stacked(shape, dtype):
            warnings.warn(STORED_WHOLE.format(shape=shape), stacklevel=5)
        return Frames(shape, dtype)
    sizes = {last: size for last, size in ((False, shape[0]), (True, shape[-1])) if size % stack == 0}
    if not sizes:
        raise InputError(
            f"frame_stack={stack}: observations{f' {name!r}' if name else ''} of shape {shape} are not stacks of {stack} frames "
            "along their first or last axis; leave it out to store them as they are"
        )
    return Frames(shape, dtype, stack, min(sizes, key=lambda last: (sizes[last] != stack, sizes[last])))


def shaped(what: str, value: Any, shape: tuple[int, ...]) -> Array:
    """Return a value as an array of a shape, whatever its axes are, where it holds as many numbers."""
    if value.__class__ is np.ndarray and value.shape == shape:
        return value
    try:
        return np.asarray(value).reshape(shape)
    except ValueError as error:
        raise InputError(f"{what}: expected shape {shape}, with an axis of environments: {error}") from None


def obs_path(name: Part) -> str:
    """Return the path of the column for a part of observations."""
    return "obs" if name is None else f"obs/{escape_key(name)}"


def _listed(parts: Iterable[Part]) -> str:
    return ", ".join(repr(name)[1:-1] for name in parts if name is not None) or "an array"


def parts_of(obs: Obs) -> dict[Part, Array]:
    """Return parts of dict observations by name; others as one without a name."""
    return obs if isinstance(obs, dict) else {None: obs}
