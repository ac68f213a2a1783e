"""Replay buffers for DQN, SAC, TD3 and DDPG, that draw and deliver exactly what Stable-Baselines3's own do."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from torch.utils._pytree import tree_map

from diskbuffer import Column
from diskbuffer.adapters.on_disk import OnDisk
from diskbuffer.adapters.sb3.stored import Stored, shaped
from diskbuffer.errors import InputError, NotFoundError
from diskbuffer.plugin import Batch, counted, integer

Int64 = npt.NDArray[np.int64]


class DiskReplayBuffer(ReplayBuffer):
    """Stable-Baselines3's `ReplayBuffer`, its steps in a store on disk.

    What a model draws is what it would draw from the library's own buffer, with the same seed, bit for bit. The library's arrays
    (``observations``, ``rewards``, ...) are not there: `stored.buffer`, a `diskbuffer.ReplayBuffer`, reads the steps.

    The store is opened, never wiped: a model that is made or loaded with the same `path` goes on with what is there. It is
    opened for reading until the first `add`, so that a script that evaluates can load a model whose training runs.

    Parameters
    ----------
    buffer_size, observation_space, action_space, device, n_envs, handle_timeout_termination
        As of Stable-Baselines3; the model gives them. `buffer_size` counts steps of all environments together.
    optimize_memory_usage : bool
        Refused, as each observation is stored once in any case.
    path : path-like
        Where the store is, or will be.
    n_steps, gamma
        For n-step returns, as of `NStepReplayBuffer`: both, as a model tells neither to a buffer.
    frame_stack : int
        Frames in an observation, as of `VecFrameStack`, along its first or last axis: each frame is stored once then.
    threads, segment_rows, metadata
        Of `diskbuffer.ReplayBuffer`.
    codec : str, or mapping of str to str, optional
        As of `diskbuffer.Column`, of all observations that are compressed, or of some by their column: "obs", "obs/camera".

    Raises
    ------
    InputError
        An argument does not fit, such as a `frame_stack` that the observation space cannot have.
    SchemaError
        The store at `path` has other spaces, another size or number of environments.
    LockedError
        By the first `add`: another training writes to this path.

    Examples
    --------
    >>> model = DQN("CnnPolicy", VecFrameStack(env, 4), buffer_size=1_000_000, replay_buffer_class=DiskReplayBuffer,
    ...             replay_buffer_kwargs={"path": "runs/pong", "frame_stack": 4})  # doctest: +SKIP
    """

    obs_shape: Any
    observations, next_observations, actions, rewards, dones, timeouts = (OnDisk() for _ in range(6))

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        path: str | os.PathLike[str],
        n_steps: int = 1,
        gamma: float | None = None,
        frame_stack: int = 1,
        threads: int | None = None,
        segment_rows: int | None = None,
        codec: str | Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        buffer_size, n_envs = integer("buffer_size", buffer_size), integer("n_envs", n_envs)
        # Not ReplayBuffer's own, which takes the memory.
        super(ReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs)
        if optimize_memory_usage:
            raise InputError("optimize_memory_usage=True is of a buffer in memory; leave it out: observations are stored once")
        if n_steps != 1 and gamma is None:
            raise InputError(
                f"n_steps={n_steps} needs the model's gamma, which a model does not tell a buffer; give both, as by "
                f'replay_buffer_kwargs={{"n_steps": {n_steps}, "gamma": 0.99, ...}}',
                option="gamma",
            )
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage, self.handle_timeout_termination = optimize_memory_usage, handle_timeout_termination
        self.n_steps, self.gamma = integer("n_steps", n_steps), 1.0 if gamma is None else gamma
        self._no_timeouts = np.zeros(n_envs, np.bool_)
        action = np.dtype(self._maybe_cast_dtype(action_space.dtype) or np.float32)
        columns = {"action": Column((self.action_dim,), action.name, allow_nan=True), "reward": Column((), allow_nan=True)}
        self.stored = Stored(
            path,
            self.buffer_size * n_envs,
            observation_space,
            self.obs_shape,
            columns,
            n_envs,
            frame_stack,
            action_space,
            threads=threads,
            segment_rows=segment_rows,
            codec=codec,
            metadata=metadata,
        )
        self._load()

    def _load(self) -> None:
        """Be where the store's writer would be."""
        stored, ever = self.stored.counts()
        self.full = stored >= self.buffer_size
        self.pos = ever % self.buffer_size if self.full else stored

    # Steps

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Add one step of every environment; when this returns, a kill of the process does not lose it.

        Arguments are those of Stable-Baselines3: `next_obs` is the real last observation where an episode ends. The leading axis
        of one environment may be missing, and lists are taken for arrays.

        Raises
        ------
        InputError
            A shape does not fit, or a value does not fit the space's dtype. Nothing was added.
        """
        each, opening = (self.n_envs,), not self.stored.writes
        action, reward = shaped("action", action, (self.n_envs, self.action_dim)), shaped("reward", reward, each)
        terminated, truncated = shaped("done", done, each), self._no_timeouts
        timed_out = [info.get("TimeLimit.truncated", False) for info in infos] if self.handle_timeout_termination else ()
        if any(timed_out):
            truncated = shaped("infos", timed_out, each).astype(np.bool_)
            terminated = terminated.astype(np.bool_) & ~truncated
        try:
            self.stored.add(obs, action, reward, next_obs, terminated, truncated)
            self.pos += 1
        except BaseException:  # the disk may be full; a Ctrl-C may come at any instant
            self._load()
            raise
        if opening:  # others may have added before
            self._load()
        elif self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draw steps, as Stable-Baselines3 does."""
        return BaseBuffer.sample(self, integer("batch_size", batch_size), env)

    def _ages(self, batch_inds: Any) -> Int64:
        """Return how many steps came after those at places of the ring."""
        return np.asarray((self.pos - 1 - np.asarray(batch_inds, np.int64)) % self.buffer_size)

    def _batch(self, batch_inds: Any, env_indices: Any, *, n_step: int = 1, columns: Sequence[str] | None = None) -> Batch:
        ages, envs = self._ages(batch_inds), np.asarray(env_indices, np.int64)
        return self.stored.batch(ages, envs, n_step=n_step, gamma=self.gamma, columns=columns)

    def _get_samples(self, batch_inds: Any, env: VecNormalize | None = None) -> Any:
        env_indices = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))  # noqa: NPY002  as it does
        return self._samples(self._batch(batch_inds, env_indices, n_step=self.n_steps), env)

    def _samples(self, batch: Batch, env: VecNormalize | None) -> Any:
        """Return a batch as Stable-Baselines3 has it."""
        obs, next_obs = (batch[name] if env is None else self._normalized(batch[name], env) for name in ("obs", "next_obs"))
        tensors = [obs, batch["action"], next_obs, batch["terminated"].float().unsqueeze(1)]
        if self.n_steps > 1:
            tensors.extend(map(torch.from_numpy, self._returns_and_discounts(batch["steps"].numpy(), env)))
        else:
            rewards = batch["reward"].unsqueeze(1)
            tensors.append(rewards if env is None else torch.as_tensor(self._normalize_reward(rewards.numpy(), env)))
        if self.device.type != "cpu":
            tensors = [tree_map(lambda tensor: tensor.to(self.device), part) for part in tensors]
        return (DictReplayBufferSamples if isinstance(obs, dict) else ReplayBufferSamples)(*tensors)

    def _returns_and_discounts(self, steps: Int64, env: VecNormalize | None) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return both of n steps, (n, 1), by the library's own expressions; each reward is normalized by `env`."""
        buffer, ahead = self.stored.opened, np.arange(self.n_steps)
        left = np.minimum(buffer.episodes.remaining(steps), self.n_steps)[:, None]
        following = steps[:, None] + np.minimum(ahead, left - 1) * self.n_envs
        rewards = buffer.at(following.ravel(), columns=["reward"], numpy=True)["reward"].reshape(following.shape)
        discounts = self.gamma ** ahead.astype(np.float32)
        discounted = self._normalize_reward(rewards, env) * discounts * (ahead < left)
        return discounted.sum(axis=1, keepdims=True), self.gamma ** left.astype(np.float32)

    def _normalized(self, obs: Any, env: VecNormalize) -> Any:
        return tree_map(torch.as_tensor, self._normalize_obs(tree_map(torch.Tensor.numpy, obs), env))

    # Keeping

    def flush(self) -> None:
        """Sync every step to the disk, against a power loss; a kill of the process loses nothing in any case."""
        self.stored.flush()

    def close(self) -> None:
        """Close the store, and let others write to it."""
        self.stored.close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the store again, as it is now; a pickle has its path and not its steps."""
        self.__dict__.update(state)
        pickled = self.pos, self.full
        if self.size() and self.stored.buffer is None:
            raise NotFoundError(
                f"the buffer had its steps in a store at {self.stored.path}, which is gone; put it back, or make or load the "
                'model with replay_buffer_kwargs={"path": ...}, which says where it is, without loading this buffer'
            )
        self._load()
        if (self.pos, self.full) != pickled:
            warnings.warn(
                f"the store at {self.stored.path} has other steps than when this buffer was pickled: a pickle has its path, not "
                "the steps. To go back to a checkpoint, mark the store beside it, buffer.stored.buffer.copies.mark(NAME), and "
                "open it with diskbuffer.ReplayBuffer(path, mark=NAME) before the model is loaded",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        """Say how much of it is filled, and where."""
        steps, most = (counted(n * self.n_envs, "step") for n in (self.size(), self.buffer_size))
        return f"{type(self).__name__}({str(self.stored.path)!r}: {steps}, at most {most})"


class DiskDictReplayBuffer(DiskReplayBuffer, DictReplayBuffer):
    """Stable-Baselines3's `DictReplayBuffer`, its steps in a store on disk; see `DiskReplayBuffer`."""

    def __init__(self, buffer_size: int, observation_space: spaces.Space[Any], *args: Any, **kwargs: Any) -> None:
        assert isinstance(observation_space, spaces.Dict), "DictReplayBuffer must be used with Dict obs space only"
        super().__init__(buffer_size, observation_space, *args, **kwargs)
