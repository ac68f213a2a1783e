"""Steps that collectors of TorchRL collect: each tells which environment took it, in which trajectory, and when."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict
from torchrl.envs.libs.gym import GymWrapper

from diskbuffer import Slices
from diskbuffer.adapters.torchrl import CollectorBuffer

with warnings.catch_warnings():  # of its own deprecations
    warnings.simplefilter("ignore")
    from torchrl import collectors

Collector = collectors.Collector
LENGTH = 9  # steps of an episode, of `collected`


def collected(who: int, first: int, n: int = 6, envs: int = 2) -> TensorDict:
    """Return steps of a collector's environments, (envs, n), by number from `first` on; an episode ends at 8, 17, ..."""
    number = torch.arange(first, first + n).expand(envs, n)
    env = (envs * who + torch.arange(envs))[:, None].expand(envs, n)
    ends = {"terminated": (number % LENGTH == LENGTH - 1)[..., None], "truncated": torch.zeros(envs, n, 1, dtype=torch.bool)}
    after = {"agent": {"seen": torch.stack([env, number + 1], -1)}, "reward": number[..., None].float(), **ends}
    return TensorDict(
        {
            "agent": {"seen": torch.stack([env, number], -1)},
            "action": number.clone(),
            "collector": {"traj_ids": number // LENGTH},
            "next": TensorDict({**after, "agent": TensorDict(after["agent"], (envs, n))}, (envs, n)),
        },
        (envs, n),
    )


class Counting(gym.Env[Any, Any]):
    """Observe the process, when it began, the episode and the step; an episode has 7 steps, 8, ... up to 16, and again."""

    observation_space = gym.spaces.Box(0, np.iinfo(np.int64).max, (4,), np.int64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._seen = np.array([os.getpid(), time.monotonic_ns(), -1, 0])

    def reset(self, **_: Any) -> Any:
        self._seen[2:] = self._seen[2] + 1, 0
        return self._seen.copy(), {}

    def step(self, action: Any) -> Any:
        self._seen[3] += 1
        length = 7 + self._seen[2] % 10
        return self._seen.copy(), 1.0, bool(self._seen[3] == length and length % 2), bool(self._seen[3] == length), {}


def counting() -> GymWrapper:
    """Make one for a collector."""
    return GymWrapper(Counting())


class Noting(CollectorBuffer):
    """A buffer of which each collector notes in a file what it has written, as "environment, episode, step"."""

    def extend(self, data: Any) -> None:
        super().extend(data)
        last = data["next", "observation"][..., -1, :].reshape(-1, 4)
        with (self.path.parent / f"{os.getpid()}.noted").open("a") as noted:
            noted.write("".join(f"{' '.join(map(str, one.tolist()))}\n" for one in last))


def check_slices(batch: TensorDict, length: int) -> None:
    """Compare slices of `Counting` with what they are by their first step."""
    seen = batch["observation"].unflatten(0, (-1, length))
    expected = seen[:, :1] + torch.arange(length)[:, None] * torch.tensor([0, 0, 0, 1])
    assert torch.equal(seen, expected)
    assert torch.equal(batch["next", "observation"].unflatten(0, (-1, length))[..., 3], expected[..., 3] + 1)
    ends = batch["next", "done"].unflatten(0, (-1, length))[..., 0]
    assert ends[:, -1].all()
    assert not ends[:, :-1].any()


def collect(kind: str, path: str, workers: int, batches: int) -> None:
    """Collect in processes, print a line for each batch, and check what is sampled meanwhile."""
    buffer = Noting(path, batch_size=64, sampler=Slices(4, seed=0))
    collector = getattr(collectors, kind)(
        [counting] * workers, None, replay_buffer=buffer, frames_per_batch=20 * workers, total_frames=-1
    )
    try:
        for done, _ in enumerate(collector, 1):
            check_slices(buffer.sample(), 4)
            print(len(buffer), flush=True)
            if done == batches:
                break
    finally:
        collector.shutdown()
