"""What an observation is stored as: its single frames, where it is a stack of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer import Column
from diskbuffer.errors import StackError
from diskbuffer.plugin import interleave

Array = npt.NDArray[Any]
_LIKELY = (2, 4, 5, 6, 7, 8)  # frames of a stack, where the first step looks like one frame several times; not 3: that is RGB
_SMALLEST = 8  # pixels


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
    found = torch.empty((len(stacks), *shape), dtype=stacks.dtype)
    if not found.numel():
        return found
    size, stack, pixels = len(stacks), stacks.shape[1], math.prod(shape[:-1])
    source = stacks.numpy().reshape(size, stack, pixels, -1).view(np.uint8)
    target = found.numpy().reshape(size, pixels, stack, -1).view(np.uint8)
    interleave(source, target)
    return found


def recognise(shape: tuple[int, ...], dtype: np.dtype[Any], obs: Array, next_obs: Array, stack: int | None) -> Frames:
    """Find out whether observations are stacks of frames along their first axis, by a first step, or take the word of `stack`.

    They are where the second is the first moved on by one frame: that only stacks do, but pictures that do not change. Of these,
    one frame several times is taken for a stack. Only of pictures, as nothing else is worth it; and only where there is something
    to be seen, for empty boards and black screens roll, too, whatever they are.
    """
    whole = Frames(shape, dtype)
    if stack == 1 or len(shape) < (2 if stack else 3) or (len(obs) == 0 and stack is None):
        return whole
    moved = not _equal(obs, next_obs)
    for count in [stack] if stack else range(shape[0], 1, -1):  # of single-channel frames first
        if shape[0] % count:
            continue
        found = Frames(shape, dtype, count)
        stacks, following = found.split(obs), found.split(next_obs)
        if not _equal(following[:, :-1], stacks[:, 1:]) or not (stack or _begins(stacks)):
            continue
        if stack or (_is_picture(stacks[:, -1]) and (moved or (count == shape[0] and count in _LIKELY))):
            return found
    if stack:
        raise StackError(
            f"observations of shape {shape} are not rolling stacks of {stack} frames, along their first axis; leave frame_stack= "
            "out to have them recognised, or give 1 to store them as they are"
        )
    return whole


def _equal(one: Array, other: Array) -> bool:
    """Tell whether arrays hold the same numbers, NaN being NaN, as the recorder does when it looks for what it has already."""
    if one.dtype.kind == "c":
        one, other = (np.ascontiguousarray(array).view(array.real.dtype) for array in (one, other))
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _is_picture(frames: Array) -> bool:
    """Tell whether frames, (n, ...), are pictures on which something can be seen; their channels are first, if they have any."""
    pixels = frames if frames.ndim == 3 else np.moveaxis(frames, 1, -1)
    if min(pixels.shape[1:3]) < _SMALLEST:
        return False
    return not any(_equal(pixels, np.broadcast_to(line, pixels.shape)) for line in (pixels[:, :1], pixels[:, :, :1]))


def _begins(stacks: Array) -> bool:
    """Tell whether stacks, (n, stack, ...), begin an episode: each is one frame, and copies of it or zeros."""
    older = stacks[:, :-1]
    return not older.any() or _equal(older, stacks[:, 1:])


def padding(stacks: Array) -> str:
    """Tell what an episode's first stack, (n, stack, ...), is filled up with."""
    return "first" if stacks[:, :-1].any() else "zeros"
