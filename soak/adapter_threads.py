"""Buffers of Stable-Baselines3, Tianshou and TorchRL that threads read beside one that adds: worlds of `soak.threads`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


@dataclass
class Adapter:
    """How a library's buffer takes steps, is emptied and closed, and what it draws, by our names."""

    add: Callable[[dict[str, Array]], object]
    sample: Callable[[int], dict[str, Array]]
    clear: Callable[[], object]
    close: Callable[[], object]


def _one_by_one(add: Callable[[dict[str, Array]], object]) -> Callable[[dict[str, Array]], object]:
    """Return what adds steps one after the other, with an axis of one environment."""
    return lambda steps: [add({path: values[t : t + 1] for path, values in steps.items()}) for t in range(len(steps["reward"]))]


def sb3(path: Path, seed: int) -> Adapter:
    """Return Stable-Baselines3's `DiskReplayBuffer`."""
    from gymnasium import spaces

    from diskbuffer.adapters.sb3 import DiskReplayBuffer

    obs, action = (spaces.Box(-np.inf, np.inf, (n,), np.float32) for n in (4, 1))
    buffer = DiskReplayBuffer(SIZE, obs, action, "cpu", path=path, segment_rows=32)
    np.random.seed(seed % 2**32)  # noqa: NPY002  which the library draws with
    names = {"obs": "observations", "next_obs": "next_observations", "action": "actions", "reward": "rewards", "done": "dones"}

    def add(row: dict[str, Array]) -> None:
        buffer.add(row["obs"], row["next_obs"], row["action"], row["reward"], row["done"], [{}])

    def sample(n: int) -> dict[str, Array]:
        batch = buffer.sample(n)
        return {path: getattr(batch, name).numpy() for path, name in names.items()}

    return Adapter(_one_by_one(add), sample, buffer.reset, buffer.close)


def tianshou(path: Path, seed: int) -> Adapter:
    """Return Tianshou's `DiskReplayBuffer`."""
    from tianshou.data import Batch

    from diskbuffer.adapters.tianshou import DiskReplayBuffer

    buffer = DiskReplayBuffer(SIZE, path=path, segment_rows=32, random_seed=seed % 2**32)
    names = {"obs": "obs", "next_obs": "obs_next", "action": "act", "reward": "rew", "done": "terminated"}

    def add(row: dict[str, Array]) -> None:
        step: dict[str, Any] = {name: row[path][0] for path, name in names.items()}
        step |= {"rew": float(step["rew"]), "terminated": bool(step["terminated"]), "truncated": False, "info": {}}
        buffer.add(Batch(step))

    def sample(n: int) -> dict[str, Array]:
        batch, _ = buffer.sample(n)
        return {path: np.asarray(batch[name]) for path, name in names.items()}

    return Adapter(_one_by_one(add), sample, buffer.reset, buffer.close)


def torchrl(path: Path, seed: int) -> Adapter:
    """Return a buffer of TorchRL's own on a `DiskStorage`; nobody clears it, as TorchRL's own `empty` takes no lock."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import TensorDictReplayBuffer

    from diskbuffer.adapters.torchrl import DiskStorage

    storage = DiskStorage(SIZE, path, segment_rows=32)
    generator = torch.Generator().manual_seed(seed)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=64, generator=generator)
    keys = {"next_obs": ("next", "obs"), "reward": ("next", "reward"), "done": ("next", "done")}

    def add(steps: dict[str, Array]) -> None:
        tensors = {path: torch.from_numpy(values) for path, values in steps.items()}
        after = {"obs": tensors["next_obs"], "reward": tensors["reward"][:, None], "done": tensors["done"][:, None]}
        now = {"obs": tensors["obs"], "action": tensors["action"], "next": after}
        buffer.extend(TensorDict(now, [len(steps["reward"])]))

    def sample(n: int) -> dict[str, Array]:
        batch = buffer.sample(n)
        return {path: batch[keys.get(path, path)].numpy() for path in ("obs", "action", *keys)}

    return Adapter(add, sample, lambda: None, storage.close)


KINDS: dict[str, Callable[[Path, int], Adapter]] = {"sb3": sb3, "tianshou": tianshou, "torchrl": torchrl}


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
