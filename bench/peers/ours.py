"""Our own buffer, on disk; and what numpy needs to gather the same frames from RAM, which is the least that a batch can cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diskbuffer as db
from bench.peers.peer import FramesPeer, Peer
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

    def fill(self, directory: Path) -> None:
        """Make it."""
        self._buffer = filled(self._transitions, directory, self._seed)
        self._slices: dict[int, db.Slices] = {}

    def sample(self, size: int) -> Any:
        """Draw steps."""
        return self._buffer.sample(size)

    def slices(self, size: int, length: int) -> Any:
        """Draw sequences."""
        return self._buffer.sample(size, self._slices.setdefault(length, db.Slices(length, seed=self._seed)))

    def close(self) -> None:
        """Close the store."""
        self._buffer.close()


class DiskbufferLoader(Diskbuffer):
    """`ReplayBuffer.loader`, whose threads fill batches beforehand."""

    name, prefetches = "diskbuffer, loader", True
    _batches: Iterator[Any] = iter(())

    def prepare(self, size: int) -> None:
        """Start a loader of such batches."""
        self._stop()
        self._batches = iter(self._buffer.loader(size))

    def sample(self, size: int) -> Any:
        """Take a batch."""
        return next(self._batches)

    def _stop(self) -> None:
        if hasattr(self._batches, "close"):
            self._batches.close()

    def close(self) -> None:
        """Stop the loader, and close the store."""
        self._stop()
        super().close()


class Numpy(FramesPeer):
    """Single frames gathered from RAM by one fancy index, and the other columns by one each."""

    name = "numpy"

    def fill(self, directory: Path) -> None:
        """Keep the arrays."""
        self._frames, flags = self._transitions.frames, np.zeros(self._transitions.n, np.bool_)
        self._flat: dict[str, Any] = {"action": self._transitions.action, "reward": self._transitions.reward}
        self._flat |= {"terminated": flags, "truncated": flags.copy()}

    def sample(self, size: int) -> Any:
        """Draw steps."""
        drawn, window = self.draw(size)
        return torch.from_numpy(self._frames[window]), self._columns_at(drawn)

    def slices(self, size: int, length: int) -> Any:
        """Draw sequences of steps, and the frame after each."""
        drawn = self._rng.integers(0, self._transitions.n - length, size)[:, None] + np.arange(length + 1)
        return torch.from_numpy(self._frames[drawn]), self._columns_at(drawn[:, :-1])

    def _columns_at(self, steps: Any) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(values[steps]) for name, values in self._flat.items()}
