"""Our own buffer, on disk; and what numpy needs to gather the same frames from RAM, which is the least that a batch can cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import diskbuffer as db
from bench.peers.peer import Peer
from bench.transitions import Transitions


def filled(transitions: Transitions, directory: Path, seed: int) -> db.ReplayBuffer:
    """Return a buffer with all steps, sealed."""
    frames = transitions.frames
    columns = {"obs": db.Column(frames.shape[1:], frames.dtype.name), "action": db.Column((), "int64")}
    buffer = db.ReplayBuffer(directory / "store", transitions.n, columns=columns, frame_stack=transitions.stack, seed=seed)
    buffer.extend(obs=frames, action=transitions.action, reward=transitions.reward)
    buffer.flush(recompress=True)
    return buffer


class Diskbuffer(Peer):
    """`ReplayBuffer.sample`."""

    name, where = "diskbuffer", "disk"

    def __init__(self, transitions: Transitions, directory: Path, seed: int) -> None:
        self._transitions, self._seed = transitions, seed
        self._slices: dict[int, db.Slices] = {}
        self._buffer = filled(transitions, directory, seed)

    def sample(self, size: int) -> Any:
        """Draw steps."""
        return self._buffer.sample(size)

    def columns(self, batch: Any) -> dict[str, Any]:
        """Return the columns that all have."""
        return {name: batch[name] for name in ("obs", "next_obs", "action", "reward")}

    def slices(self, size: int, length: int) -> Any:
        """Draw sequences."""
        if length not in self._slices:
            self._slices[length] = db.Slices(length, seed=self._seed)
        return self._buffer.sample(size, self._slices[length])

    def close(self) -> None:
        """Close the store."""
        self._buffer.close()


class DiskbufferLoader(Diskbuffer):
    """`ReplayBuffer.loader`, whose threads fill batches beforehand."""

    name, prefetches = "diskbuffer, loader", True

    def __init__(self, transitions: Transitions, directory: Path, seed: int) -> None:
        super().__init__(transitions, directory, seed)
        self._batches: Iterator[Any] | None = None
        self._size = 0

    def prepare(self, size: int) -> None:
        """Start a loader of such batches."""
        if size != self._size:
            self._stop()
            self._batches, self._size = iter(self._buffer.loader(size)), size

    def sample(self, size: int) -> Any:
        """Take a batch."""
        assert self._batches is not None
        return next(self._batches)

    def _stop(self) -> None:
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Stop the loader, and close the store."""
        self._stop()
        super().close()


class Numpy(Peer):
    """Single frames gathered from RAM by one fancy index, and the other columns by one each."""

    name = "numpy"

    def __init__(self, transitions: Transitions, directory: Path, seed: int) -> None:
        self._transitions, self._rng = transitions, np.random.default_rng(seed)
        self._frames, n = transitions.frames, transitions.n
        self._flat: list[npt.NDArray[Any]] = [
            transitions.action,
            transitions.reward,
            np.zeros(n, np.bool_),
            np.zeros(n, np.bool_),
        ]
        self._window = np.arange(-transitions.first, 2)

    def sample(self, size: int) -> Any:
        """Draw steps; stacks of obs and next_obs are views of one tensor."""
        drawn = self._rng.integers(self._transitions.first, self._transitions.n, size)
        frames = torch.from_numpy(self._frames[drawn[:, None] + self._window])
        return frames, [torch.from_numpy(each[drawn]) for each in self._flat]

    def columns(self, batch: Any) -> dict[str, Any]:
        """Return the columns that all have."""
        frames, (action, reward, *_) = batch
        obs, next_obs = frames[:, :-1], frames[:, 1:]
        if self._transitions.stack == 1:
            obs, next_obs = obs[:, 0], next_obs[:, 0]
        return {"obs": obs, "next_obs": next_obs, "action": action, "reward": reward}

    def slices(self, size: int, length: int) -> Any:
        """Draw sequences of steps, and the frame after each."""
        drawn = self._rng.integers(0, self._transitions.n - length, size)[:, None] + np.arange(length + 1)
        return torch.from_numpy(self._frames[drawn]), [torch.from_numpy(each[drawn[:, :-1]]) for each in self._flat]
