"""Rollout buffers for PPO and A2C whose observations are on disk: a rollout may be larger than the memory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples

from diskbuffer import Column
from diskbuffer.adapters.on_disk import OnDisk
from diskbuffer.adapters.sb3.stored import Stored, shaped
from diskbuffer.plugin import integer, integer_or_none

Array = npt.NDArray[Any]
_NUMBERS = ("rewards", "returns", "episode_starts", "values", "log_probs", "advantages")


class DiskRolloutBuffer(RolloutBuffer):
    """Stable-Baselines3's `RolloutBuffer`, its observations in a store on disk.

    Minibatches are the library's own, bit for bit, and are read ahead by threads while the policy is updated. Actions and numbers
    stay in memory: some 28 bytes a step, where a stack of four 84x84 frames has 28,224. A rollout takes the place of the one
    before.

    Parameters
    ----------
    buffer_size, observation_space, action_space, device, gae_lambda, gamma, n_envs
        As of Stable-Baselines3; the model gives them.
    path : path-like
        Where the store is, or will be. It holds one rollout.
    frame_stack : int
        As of `DiskReplayBuffer`.
    threads, segment_rows, metadata
        Of `diskbuffer.ReplayBuffer`.
    codec
        As of `DiskReplayBuffer`.

    Attributes
    ----------
    waited, updating : float
        Seconds that the learner has waited for minibatches, and that all its passes over them took, waiting included.

    Examples
    --------
    >>> model = PPO("CnnPolicy", env, n_steps=100_000, rollout_buffer_class=DiskRolloutBuffer,
    ...             rollout_buffer_kwargs={"path": "runs/rollout", "frame_stack": 4})  # doctest: +SKIP
    """

    obs_shape: Any
    observations = OnDisk()
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
        frame_stack: int = 1,
        threads: int | None = None,
        segment_rows: int | None = None,
        codec: str | Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
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
            codec=codec,
            metadata=metadata,
        )
        self.waited = self.updating = 0.0
        self._newest: Any = None  # observations of the last step: what comes after it is not known yet
        self._rewards, self._no_action = np.zeros(n_envs, np.float32), np.zeros(n_envs, np.int8)
        self.reset()

    def reset(self) -> None:
        """Begin a rollout, in place of the last."""
        shape = (self.buffer_size, self.n_envs)
        self.actions = np.zeros((*shape, self.action_dim), self.action_space.dtype)
        for name in _NUMBERS:
            setattr(self, name, np.zeros(shape, np.float32))
        self.generator_ready = False
        super(RolloutBuffer, self).reset()

    def add(self, obs: Any, action: Any, reward: Any, episode_start: Any, value: torch.Tensor, log_prob: torch.Tensor) -> None:
        """Add a step of every environment, as Stable-Baselines3 does."""
        each = (self.n_envs,)
        episode_starts = shaped("episode_start", episode_start, each)
        obs = self.stored.shaped("obs", obs)
        obs = {name: np.array(part) for name, part in obs.items()} if isinstance(obs, dict) else np.array(obs)
        if self._newest is not None:
            starts = episode_starts.astype(np.bool_)
            self._record(obs, terminated=starts, truncated=np.zeros_like(starts))
        self._newest, self._rewards = obs, shaped("reward", reward, each).astype(np.float32)
        at = self.pos
        self.actions[at] = shaped("action", action, (self.n_envs, self.action_dim))
        self.rewards[at], self.episode_starts[at] = self._rewards, episode_starts
        self.values[at] = value.cpu().numpy().reshape(-1)
        self.log_probs[at] = log_prob.cpu().numpy().reshape(-1)
        self.pos += 1
        self.full = self.pos == self.buffer_size

    def _record(self, next_obs: Any, terminated: Array, truncated: Array) -> None:
        """Record the last step, now that it is known whether its episode went on."""
        self.stored.add_of_rollout(self._newest, self._no_action, self._rewards, next_obs, terminated, truncated)
        self._newest = None

    def get(self, batch_size: int | None = None) -> Any:
        """Yield minibatches of the rollout, in the order in which Stable-Baselines3 shuffles it."""
        assert self.full, ""
        if self._newest is not None:  # nobody asks what came after the last step
            self._record(self._newest, np.zeros(self.n_envs, np.bool_), np.ones(self.n_envs, np.bool_))
        total = self.buffer_size * self.n_envs
        indices = self._order(total)
        if not self.generator_ready:
            self._flatten()
            self.generator_ready = True
        size = integer_or_none("batch_size", batch_size) or total
        envs, steps = np.divmod(indices, self.buffer_size)
        begun = time.perf_counter()
        try:
            for n, (obs, waited) in enumerate(self.stored.in_order(self.buffer_size - 1 - steps, envs, size)):
                self.waited += waited
                yield self._minibatch(obs, indices[n * size : (n + 1) * size])
        finally:  # the learner may leave before the end
            self.updating += time.perf_counter() - begun

    def _order(self, total: int) -> Array:
        """Draw the order of steps, environment after environment."""
        return np.random.permutation(total)  # noqa: NPY002  as it does

    def _flatten(self) -> None:
        """Put the steps of environments, which lie side by side, one after the other."""
        for name in self._flattened:
            setattr(self, name, self.swap_and_flatten(getattr(self, name)))

    def _minibatch(self, obs: Any, indices: Array) -> Any:
        numbers = [getattr(self, name)[indices].reshape(-1) for name in ("values", "log_probs", "advantages", "returns")]
        actions = self.actions[indices].astype(np.float32, copy=False)
        rest = [torch.from_numpy(array).to(self.device) for array in (actions, *numbers)]  # none of which anybody else has
        if isinstance(obs, dict):
            return DictRolloutBufferSamples({name: part.to(self.device) for name, part in obs.items()}, *rest)
        return RolloutBufferSamples(obs.to(self.device), *rest)

    def close(self) -> None:
        """Close the store."""
        self.stored.close()


class DiskDictRolloutBuffer(DiskRolloutBuffer, DictRolloutBuffer):
    """Stable-Baselines3's `DictRolloutBuffer`, its observations in a store on disk; see `DiskRolloutBuffer`."""

    def __init__(self, buffer_size: int, observation_space: spaces.Space[Any], *args: Any, **kwargs: Any) -> None:
        assert isinstance(observation_space, spaces.Dict), "DictRolloutBuffer must be used with Dict obs space only"
        super().__init__(buffer_size, observation_space, *args, **kwargs)
