"""What a peer is: a replay buffer, ours or another one, that holds given transitions and returns batches of them."""

from __future__ import annotations

import abc
import os
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from bench.transitions import Array, Transitions

PART = 2_000  # steps that are added at once


def choose_threads(sample: Callable[[], Any]) -> None:
    """Let torch use all cores or one, whichever samples faster: on a busy machine its threads can cost more than they do."""

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        sample()
        begin = time.perf_counter()
        for _ in range(2):
            sample()
        return time.perf_counter() - begin

    choices = (1, os.cpu_count() or 1)
    found = [[seconds(threads) for threads in choices] for _ in range(3)]
    torch.set_num_threads(choices[int(np.argmin(np.median(found, axis=0)))])


class Peer(abc.ABC):
    """A buffer that is filled once. It is made and called in a process of its own.

    Parameters
    ----------
    transitions : Transitions
        What it holds.
    directory : Path
        An empty directory of its own, for those who write files.
    seed : int
        Of its draws, where it can be told.
    """

    name: ClassVar[str]
    where: ClassVar[str] = "RAM"  # or "disk": where the steps are
    needs: ClassVar[tuple[str, ...]] = ()  # what pip calls the packages that it imports
    slow: ClassVar[bool] = False  # so much that it is measured at a few sizes
    torch_works: ClassVar[bool] = False  # torch copies or gathers its batches, with threads of its own
    prefetches: ClassVar[bool] = False  # it works between the calls, so a loop of them is timed as a whole

    @classmethod
    def missing(cls) -> str:
        """Return why it cannot be made here; nothing, if it can."""
        for package in cls.needs:
            try:
                version(package)
            except PackageNotFoundError:
                return f"{package} is not installed"
        return ""

    @classmethod
    def unfit(cls, transitions: Transitions) -> str:
        """Return why it cannot hold such transitions; nothing, if it can."""
        return ""

    def __init__(self, transitions: Transitions, directory: Path, seed: int) -> None:
        self._transitions, self._seed, self._rng = transitions, seed, np.random.default_rng(seed)
        np.random.seed(seed)  # noqa: NPY002 - what others draw with
        torch.manual_seed(seed)
        self.fill(directory)

    @abc.abstractmethod
    def fill(self, directory: Path) -> None:
        """Make the buffer, and put the transitions into it."""

    def prepare(self, size: int) -> None:  # noqa: B027  most need nothing
        """Make ready for batches of `size`: what is compiled, or prefetched, for one size alone."""

    @abc.abstractmethod
    def sample(self, size: int) -> Any:
        """Draw steps uniformly; return all of their columns as torch tensors."""

    def columns(self, batch: Any) -> dict[str, Any]:
        """Return ``obs``, ``next_obs``, ``action`` and ``reward`` of what `sample` returned. Not timed."""
        return {name: batch[name] for name in ("obs", "next_obs", "action", "reward")}

    def tune(self, size: int) -> None:
        """Let torch use as many threads as are fastest."""
        if self.torch_works:
            choose_threads(lambda: self.sample(size))

    def check(self, size: int) -> str:
        """Sample; return what is wrong with the batch; nothing, if it is right."""
        self.prepare(size)
        found = {name: values.numpy() for name, values in self.columns(self.sample(size)).items()}
        if len(found["reward"]) != size:
            return f"it has {len(found['reward'])} steps, not {size}"
        return self._transitions.wrong(found)


class FramesPeer(Peer):
    """A peer whose batches are the frames of steps' windows, of which obs and next_obs are views, and the other columns."""

    def draw(self, size: int) -> tuple[Array, Array]:
        """Return steps, and the frames that each wants."""
        drawn = self._rng.integers(self._transitions.first, self._transitions.n, size)
        return drawn, drawn[:, None] + np.arange(-self._transitions.first, 2)

    def columns(self, batch: Any) -> dict[str, Any]:
        """Return the columns that all have."""
        frames, flat = batch
        obs, next_obs = frames[:, :-1], frames[:, 1:]
        if self._transitions.stack == 1:
            obs, next_obs = obs[:, 0], next_obs[:, 0]
        return {"obs": obs, "next_obs": next_obs, "action": flat["action"], "reward": flat["reward"]}
