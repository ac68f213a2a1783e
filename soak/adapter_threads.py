"""Buffers of Stable-Baselines3, Tianshou and TorchRL that threads read beside one that adds: worlds of `soak.threads`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import EmptyBufferError

Array = npt.NDArray[Any]
SIZE = 512
EMPTY = ("high <= 0", "a must be greater than 0")  # how the libraries say that there is nothing to draw from


def observations(numbers: Array) -> Array:
    """Return flat observations of steps, by their numbers."""
    return np.stack([numbers, numbers * 3.0, numbers % 97, numbers * 0.5], -1)


def steps_of(numbers: Array) -> dict[str, Array]:
    """Return steps, by their numbers; every 17th ends an episode."""
    return {
        "obs": observations(numbers).astype(np.float32),
        "next_obs": observations(numbers + 1).astype(np.float32),
        "action": numbers[:, None].astype(np.float32),
        "reward": (numbers % 1000).astype(np.float32),
        "done": numbers % 17 == 0,
    }


class SB3:
    """`DiskReplayBuffer`, which takes a step at a time."""

    def __init__(self, path: Path, seed: int) -> None:
        from gymnasium import spaces

        from diskbuffer.adapters.sb3 import DiskReplayBuffer

        obs, action = (spaces.Box(-np.inf, np.inf, (n,), np.float32) for n in (4, 1))
        self._buffer = DiskReplayBuffer(SIZE, obs, action, "cpu", path=path, segment_rows=32)
        self.close = self._buffer.close
        np.random.seed(seed % 2**32)  # noqa: NPY002  which the library draws with

    def add(self, steps: dict[str, Array]) -> None:
        """Add steps one after the other."""
        for t in range(len(steps["reward"])):
            row = {path: values[t : t + 1] for path, values in steps.items()}
            self._buffer.add(row["obs"], row["next_obs"], row["action"], row["reward"], row["done"], [{}])

    def clear(self) -> None:
        """Empty it."""
        self._buffer.reset()

    def sample(self, n: int) -> dict[str, Array]:
        """Return a batch."""
        batch = self._buffer.sample(n)
        names = {
            "obs": "observations",
            "next_obs": "next_observations",
            "action": "actions",
            "reward": "rewards",
            "done": "dones",
        }
        return {path: getattr(batch, name).numpy() for path, name in names.items()}


class Tianshou:
    """`DiskReplayBuffer`, which takes a step at a time."""

    def __init__(self, path: Path, seed: int) -> None:
        from diskbuffer.adapters.tianshou import DiskReplayBuffer

        self._buffer = DiskReplayBuffer(SIZE, path=path, segment_rows=32, random_seed=seed % 2**32)
        self.close = self._buffer.close

    def add(self, steps: dict[str, Array]) -> None:
        """Add steps one after the other."""
        from tianshou.data import Batch

        for t in range(len(steps["reward"])):
            row = {path: values[t] for path, values in steps.items()}
            flags = {"terminated": bool(row["done"]), "truncated": False, "rew": float(row["reward"])}
            step = Batch({"obs": row["obs"], "act": row["action"], "obs_next": row["next_obs"], "info": {}, **flags})
            self._buffer.add(step)

    def clear(self) -> None:
        """Empty it."""
        self._buffer.reset()

    def sample(self, n: int) -> dict[str, Array]:
        """Return a batch."""
        batch, _ = self._buffer.sample(n)
        names = {"obs": "obs", "next_obs": "obs_next", "action": "act", "reward": "rew", "done": "terminated"}
        return {path: np.asarray(batch[name]) for path, name in names.items()}


class TorchRL:
    """A buffer of TorchRL's own on a `DiskStorage`."""

    def __init__(self, path: Path, seed: int) -> None:
        import torch
        from torchrl.data import TensorDictReplayBuffer

        from diskbuffer.adapters.torchrl import DiskStorage

        storage = DiskStorage(SIZE, path, segment_rows=32)
        generator = torch.Generator().manual_seed(seed)
        self._buffer = TensorDictReplayBuffer(storage=storage, batch_size=64, generator=generator)
        self.close = storage.close

    def add(self, steps: dict[str, Array]) -> None:
        """Add steps at once."""
        import torch
        from tensordict import TensorDict

        tensors = {path: torch.from_numpy(values) for path, values in steps.items()}
        after = {"obs": tensors["next_obs"], "reward": tensors["reward"][:, None], "done": tensors["done"][:, None]}
        now = {"obs": tensors["obs"], "action": tensors["action"], "next": after}
        self._buffer.extend(TensorDict(now, [len(steps["reward"])]))

    def clear(self) -> None:
        """Leave it: TorchRL's own `empty` takes no lock."""

    def sample(self, n: int) -> dict[str, Array]:
        """Return a batch."""
        batch = self._buffer.sample(n)
        keys = {"next_obs": ("next", "obs"), "reward": ("next", "reward"), "done": ("next", "done")}
        return {path: batch[keys.get(path, path)].numpy() for path in ("obs", "action", *keys)}


KINDS: dict[str, Any] = {"sb3": SB3, "tianshou": Tianshou, "torchrl": TorchRL}


class AdapterWorld:
    """A library's buffer, three threads that sample from it, and one that adds and clears."""

    READERS = 3

    def __init__(self, name: str, path: Path, seed: int) -> None:
        self.name, self.seed, self.number, self.done = name, seed, 0, Counter[str]()
        self._buffer = KINDS[name](path, seed)

    def change(self, rng: random.Random) -> None:
        """Add steps, or, now and then, clear and add."""
        if rng.random() < 0.02:
            self._buffer.clear()
        n = rng.choice([1, 20, 100])
        self._buffer.add(steps_of(np.arange(self.number, self.number + n)))
        self.number += n
        self.done["add"] += 1

    begin = change

    def readers(self) -> list[Callable[[], Iterator[int]]]:
        """Return generators that sample at each turn, and say how many rows were compared."""
        return [self._samples] * self.READERS

    def _samples(self) -> Iterator[int]:
        while True:
            try:
                batch = self._buffer.sample(64)
            except ValueError as error:
                if any(words in str(error) for words in EMPTY):
                    raise EmptyBufferError("nothing is there") from error
                raise
            number = batch["action"].reshape(-1).astype(np.int64)
            for path, wanted in steps_of(number).items():
                found = batch[path].reshape(wanted.shape)
                if (found != wanted).any():
                    other = (found != wanted).reshape(len(number), -1).any(axis=1)
                    raise AssertionError(f"{path} of {number[other][:3].tolist()}: {found[other][:3].tolist()}")
            yield len(number)

    def close(self) -> None:
        """Close the buffer."""
        self._buffer.close()
