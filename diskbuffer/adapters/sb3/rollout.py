"""Rollout buffers for PPO and A2C whose observations are on disk: a rollout may be larger than the memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples

from diskbuffer import Column
from diskbuffer.adapters.sb3.ring import observations_of
from diskbuffer.adapters.sb3.stored import Stored, batched, parts_of
from diskbuffer.plugin import integer, integer_or_none

Array = npt.NDArray[Any]
_NUMBERS = ("rewards", "returns", "episode_starts", "values", "log_probs", "advantages")
_READ_WHOLE = 32 * 1024**2  # bytes of observations that are read once for all minibatches, not anew for each


class DiskRolloutBuffer(RolloutBuffer):
    """Stable-Baselines3's `RolloutBuffer`, its observations in a store on disk.

    Minibatches are the library's own, bit for bit, and are read ahead by threads while the policy is updated; observations of up
    to 32 MB are read once instead, by the first minibatch, and stay in memory until the next rollout begins. Actions and numbers
    always do: some 28 bytes a step, where a stack of four 84x84 frames has 28,224. A rollout takes the place of the one before.

    Parameters
    ----------
    buffer_size, observation_space, action_space, device, gae_lambda, gamma, n_envs
        As of Stable-Baselines3; the model gives them.
    path : path-like
        Where the store is, or will be. It holds one rollout.
    frame_stack : int, optional
        As of `DiskReplayBuffer`.
    threads, segment_rows
        Of `diskbuffer.ReplayBuffer`.

    Attributes
    ----------
    waited, updating : float
        Seconds that the learner has waited for minibatches, and that all its passes over them took, waiting included.

    Examples
    --------
    >>> model = PPO("CnnPolicy", env, n_steps=100_000, rollout_buffer_class=DiskRolloutBuffer,
    ...             rollout_buffer_kwargs={"path": "runs/rollout"})  # doctest: +SKIP
    """

    obs_shape: Any
    _flattened: tuple[str, ...] = ("actions", "values", "log_probs", "advantages", "returns")

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        *,
        path: str | os.PathLike[str],
        frame_stack: int | None = None,
        threads: int | None = None,
        segment_rows: int | None = None,
    ) -> None:
        buffer_size, n_envs = integer("buffer_size", buffer_size), integer("n_envs", n_envs)
        # Not RolloutBuffer's own, which takes the memory.
        super(RolloutBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.gae_lambda, self.gamma, self.generator_ready = gae_lambda, gamma, False
        self.stored = Stored(
            path,
            buffer_size * n_envs,
            observation_space,
            self.obs_shape,
            {"action": Column((), "int8"), "reward": Column((), allow_nan=True)},
            n_envs,
            frame_stack,
            action_space,
            threads=threads,
            segment_rows=segment_rows,
        )
        self.waited = self.updating = 0.0
        self._newest: Any = None  # observations of the last step: what comes after it is not known yet
        self._rewards = np.zeros(n_envs, np.float32)
        self._no_action, self._not_truncated = np.zeros(n_envs, np.int8), np.zeros(n_envs, np.bool_)
        self._is_small = buffer_size == 1 or self.stored.obs_bytes * buffer_size <= _READ_WHOLE
        self.reset()

    def reset(self) -> None:
        """Begin a rollout, in place of the last."""
        shape = (self.buffer_size, self.n_envs)
        self.actions = np.zeros((*shape, self.action_dim), self.action_space.dtype)
        for name in _NUMBERS:
            setattr(self, name, np.zeros(shape, np.float32))
        self.generator_ready = False
        self._whole: Any = None  # observations of a small rollout, environment after environment, once they were read
        super(RolloutBuffer, self).reset()

    def add(self, obs: Any, action: Any, reward: Any, episode_start: Any, value: torch.Tensor, log_prob: torch.Tensor) -> None:
        """Add a step of every environment, as Stable-Baselines3 does."""
        each = (self.n_envs,)
        given = batched("episode_start", episode_start, each)
        starts = given.astype(np.bool_)
        obs = self.stored.held("obs", obs)
        if self._newest is not None:
            self._record(obs, starts)
        self._newest, self._rewards = obs, batched("reward", reward, each).astype(np.float32)
        at = self.pos
        self.actions[at] = batched("action", action, (self.n_envs, self.action_dim))
        self.rewards[at], self.episode_starts[at] = self._rewards, given
        self.values[at] = value.cpu().numpy().reshape(-1)
        self.log_probs[at] = log_prob.cpu().numpy().reshape(-1)
        self.pos += 1
        self.full = self.pos == self.buffer_size

    def _record(self, obs: Any, starts: Array) -> None:
        """Record the last step: what came after it is known by now, but where an episode ended."""
        self.stored.add_held(
            self._newest,
            obs,
            starts,
            action=self._no_action,
            reward=self._rewards,
            terminated=starts,
            truncated=self._not_truncated,
        )

    def get(self, batch_size: int | None = None) -> Any:
        """Yield minibatches of the rollout, in the order in which Stable-Baselines3 shuffles it."""
        assert self.full, ""
        if self._newest is None:  # as the library has it where nothing was added
            self._newest = self._nothing()
        total = self.buffer_size * self.n_envs
        indices = self._order(total)
        if not self.generator_ready:
            self._flatten()
            self.generator_ready = True
        size = integer_or_none("batch_size", batch_size) or total
        begun = time.perf_counter()
        try:
            for n, (obs, waited) in enumerate((self._out_of_whole if self._is_small else self._read_ahead)(indices, size)):
                self.waited += waited
                yield self._minibatch(obs, indices[n * size : (n + 1) * size])
        finally:  # the learner may leave before the end
            self.updating += time.perf_counter() - begun

    def _out_of_whole(self, indices: Array, size: int) -> Iterator[tuple[Any, float]]:
        """Yield observations of minibatches out of memory, and the seconds that the first waits until all were read."""
        begun = time.perf_counter()
        if self._whole is None:
            self._whole = self._read_whole()
        waited = time.perf_counter() - begun
        for first in range(0, len(indices), size):
            some = indices[first : first + size]
            yield _rows(self._whole, some), waited
            waited = 0.0

    def _read_whole(self) -> Any:
        """Return all observations, (n_envs * buffer_size, ...), environment after environment."""
        if self.buffer_size == 1:  # which is not recorded yet
            return self._newest
        envs, steps = np.divmod(np.arange(self.n_envs * self.buffer_size), self.buffer_size)
        whole = self.stored.observations(self._ages(steps), envs)
        for name, newest in parts_of(self._newest).items():
            parts_of(whole)[name][self.buffer_size - 1 :: self.buffer_size] = newest
        return whole

    def _ages(self, steps: Array) -> Array:
        """Return how many steps came after each; of the newest, which are not recorded yet, any other is read."""
        return np.asarray(np.maximum(self.buffer_size - 2 - steps, 0))

    def _read_ahead(self, indices: Array, size: int) -> Iterator[tuple[Any, float]]:
        """Yield observations of minibatches as threads read them, and the seconds that each was waited for."""
        envs, steps = np.divmod(indices, self.buffer_size)
        batches = self.stored.in_order(self._ages(steps), envs, size)
        for n, (obs, waited) in enumerate(batches):
            some = slice(n * size, (n + 1) * size)
            for at in np.flatnonzero(steps[some] == self.buffer_size - 1).tolist():
                _put(obs, at, self._newest, int(envs[some][at]))
            yield obs, waited

    def _order(self, total: int) -> Array:
        """Draw the order of steps, environment after environment."""
        return np.random.permutation(total)  # noqa: NPY002  as it does

    def _flatten(self) -> None:
        """Put the steps of environments, which lie side by side, one after the other."""
        for name in self._flattened:
            setattr(self, name, self.swap_and_flatten(getattr(self, name)))

    def _nothing(self) -> Any:
        if not isinstance(self.observation_space, spaces.Dict):
            return np.zeros((self.n_envs, *self.obs_shape), self.observation_space.dtype)
        parts = self.observation_space.spaces.items()
        return {name: np.zeros((self.n_envs, *self.obs_shape[name]), space.dtype) for name, space in parts}

    def _minibatch(self, obs: Any, indices: Array) -> Any:
        numbers = [getattr(self, name)[indices].reshape(-1) for name in ("values", "log_probs", "advantages", "returns")]
        actions = self.actions[indices].astype(np.float32, copy=False)
        rest = [torch.from_numpy(array).to(self.device) for array in (actions, *numbers)]  # none of which anybody else has
        if isinstance(obs, dict):
            return DictRolloutBufferSamples({name: part.to(self.device) for name, part in obs.items()}, *rest)
        return RolloutBufferSamples(obs.to(self.device), *rest)

    def _batch(self, steps: Any, envs: Any, *, columns: Sequence[str] | None = None) -> Any:
        """Return observations by their place in the rollout."""
        steps, envs = np.asarray(steps), np.asarray(envs)
        batch = self.stored.batch(np.maximum(self.pos - 2 - steps, 0), envs, columns=columns)
        for at in np.flatnonzero(steps == self.pos - 1).tolist():
            _put(batch["obs"], at, self._newest, int(envs[at]))
        return batch

    @property
    def observations(self) -> Any:
        """Those of the rollout, (buffer_size, n_envs, ...), read from the disk when they are indexed."""
        return observations_of(self, "obs", self.observation_space, self.obs_shape)

    def close(self) -> None:
        """Close the store."""
        self.stored.close()


def _rows(whole: Any, indices: Array) -> Any:
    """Return a copy of some observations, as tensors."""
    if isinstance(whole, dict):
        return {name: torch.from_numpy(part[indices]) for name, part in whole.items()}
    return torch.from_numpy(whole[indices])


def _put(obs: Any, at: int, newest: Any, env: int) -> None:
    if isinstance(obs, dict):
        for name, part in obs.items():
            part[at] = torch.as_tensor(newest[name][env])
    else:
        obs[at] = torch.as_tensor(newest[env])


class DiskDictRolloutBuffer(DiskRolloutBuffer, DictRolloutBuffer):
    """Stable-Baselines3's `DictRolloutBuffer`, its observations in a store on disk; see `DiskRolloutBuffer`."""

    def __init__(self, buffer_size: int, observation_space: spaces.Space[Any], *args: Any, **kwargs: Any) -> None:
        assert isinstance(observation_space, spaces.Dict), "DictRolloutBuffer must be used with Dict obs space only"
        super().__init__(buffer_size, observation_space, *args, **kwargs)
