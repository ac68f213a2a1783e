"""What an observation is stored as: its single frames, where it is a stack of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer import Column
from diskbuffer.plugin import interleave

Array = npt.NDArray[Any]
_PICTURE = 36  # pixels, the least that Stable-Baselines3's own network for pictures takes
STORED_WHOLE = (
    "observations of shape {shape} look like pictures that are stacked, and each is stored whole; give frame_stack= how many "
    "frames one has, such as 4, to store each frame once"
)


@dataclass(frozen=True)
class Frames:
    """How one observation is made of frames.

    Attributes
    ----------
    shape : tuple of int
        Of the observation.
    dtype : numpy.dtype
    stack : int
        How many frames it has; 1 where it is none of several.
    last : bool
        Whether they lie along the last axis, as `VecFrameStack` has them unless it is told otherwise; else along the first.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stack: int = 1
    last: bool = False

    @property
    def column(self) -> Column:
        """What one frame is stored as."""
        return Column(self._frame(), self.dtype.name, allow_nan=True)

    @property
    def are_side_by_side(self) -> bool:
        """Whether `split` has nothing to do: it has the observation's own shape."""
        return self.stack == 1 or (not self.last and self._channels() == 1)

    def _channels(self) -> int:
        return (self.shape[-1] if self.last else self.shape[0]) // self.stack

    def _frame(self) -> tuple[int, ...]:
        if self.stack == 1:
            return self.shape
        rest = self.shape[:-1] if self.last else self.shape[1:]
        channels = self._channels()
        if channels == 1:
            return rest
        return (*rest, channels) if self.last else (channels, *rest)

    def split(self, obs: Array) -> Array:
        """Turn observations, (n, ...), into stacks, (n, stack, ...), or leave them as they are where they are none."""
        if self.stack == 1:
            return obs.reshape(len(obs), *self.shape)
        if not self.last:
            return obs.reshape(len(obs), self.stack, *self._frame())
        parted = obs.reshape(len(obs), *self.shape[:-1], self.stack, self._channels())
        return np.moveaxis(parted, -2, 1).reshape(len(obs), self.stack, *self._frame())

    def join(self, stacks: torch.Tensor) -> torch.Tensor:
        """Turn stacks, as `split` makes them, into observations: tensors, without copying."""
        if self.stack == 1:
            return stacks
        if not self.last:
            return stacks.flatten(1, 2) if self._channels() > 1 else stacks
        if self._channels() == 1:
            return stacks.movedim(1, -1)
        return stacks.movedim(1, -2).flatten(-2)

    def copied(self, stacks: torch.Tensor) -> torch.Tensor:
        """Turn stacks into observations that are contiguous; a copy, where that takes one."""
        if self.stack > 1 and self.last:
            return _interleaved(stacks.contiguous(), self.shape)
        joined = self.join(stacks)
        # Not by torch, whose threads wait for each other where other processes keep the cores busy: five times as long, then.
        return joined if joined.is_contiguous() else torch.from_numpy(np.ascontiguousarray(joined.numpy()))


def _interleaved(stacks: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Move the frames of contiguous stacks, (n, stack, ...), to the last axis: 3 ms for 256 of 84x84x4 bytes, numpy's 10."""
    interleaved = torch.empty((len(stacks), *shape), dtype=stacks.dtype)
    if not interleaved.numel():
        return interleaved
    size, stack, pixels = len(stacks), stacks.shape[1], math.prod(shape[:-1])
    source = stacks.numpy().reshape(size, stack, pixels, -1).view(np.uint8)
    target = interleaved.numpy().reshape(size, pixels, stack, -1).view(np.uint8)
    interleave(source, target)
    return interleaved


def look_stacked(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether observations look like pictures of more than one frame."""
    return dtype == np.uint8 and len(shape) == 3 and sorted(shape)[0] not in (1, 3) and sorted(shape)[1] >= _PICTURE


def do_roll(stacks: Array, following: Array) -> bool:
    """Return whether stacks, (n, stack, ...), are followed by what they are moved on by a frame."""
    return np.array_equal(following[:, :-1], stacks[:, 1:], equal_nan=stacks.dtype.kind in "fc")


def padding(stacks: Array) -> str:
    """Return what an episode's first stack, (n, stack, ...), is filled up with."""
    return "first" if stacks[:, :-1].any() else "zeros"
