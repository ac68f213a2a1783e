"""Single steps, and sequences of them.

Frames are gathered once: a transition with a stack of 4 has 5 frames, of which ``obs`` and ``next_obs`` are two views. Where
these are to have memory of their own, they are gathered twice, which takes no longer than to copy them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diskbuffer.native.jobs import Finishes, Job
from diskbuffer.reading.batches.base import A, Arrays, Batch, Request, Windows
from diskbuffer.reading.gather.targets import Columns, Memory, new_array
from diskbuffer.samplers.draws import Draw, Steps
from diskbuffer.schema.nested import put
from diskbuffer.schema.schema import is_observation

if TYPE_CHECKING:
    from diskbuffer.reading.gather.block import Block


class StepArrays(Arrays):
    """Arrays for single steps, or sequences of them, with the observations before and after each."""

    _form: Steps

    def allocate(self, columns: Columns, block: Block | None) -> None:
        """Allocate frames, and the other columns of each step."""
        stack, form, obs = self._stack, self._form, tuple(path for path in columns.paths if is_observation(path))
        frames = (0, stack, stack == 1) if form.apart else (0, stack + form.steps, False)
        extents = [frames if path in obs else (stack - 1, form.steps, form.length is None) for path in columns.paths]
        if form.apart:
            columns = columns.select((*columns.paths, *obs))
            extents += [(1, stack, stack == 1)] * len(obs)
        self.memories = [Memory(columns, extents, self._size, block)]
        self._mask = [new_array((self._size, form.steps), np.dtype(np.bool_), block)] if form.padded else []
        self._names = [*columns.paths, *(["mask"] if self._mask else [])]
        self._delivered = [*self.memories[0].arrays, *self._mask]
        if not self._mask:
            return
        self._reach = np.zeros((2, self._size), np.int64)  # from which step on, and until before which
        steps: dict[str, Any] = {"samples": self._size, "begin": self._reach[0], "end": self._reach[1], "rows": form.steps}
        self._finishes = Finishes()
        self._finishes.add("mask", self._mask[0], **steps)
        for path, array in self.memories[0].items():
            how = {**steps, "row_bytes": columns.schema[path].row_bytes}
            if is_observation(path):  # frames before the start belong to the stacks after it
                how |= {"rows": stack + form.steps, "extra": stack}
            self._finishes.add("zeros", array, **how)

    @staticmethod
    def windows(request: Request, drawn: Draw) -> list[Windows]:
        """Return what is to be gathered."""
        form, frame_stack = request.form, request.frame_stack
        return [Windows(drawn, frame_stack - 1 + form.burn_in, frame_stack + form.steps)]

    def plan_finish(self, job: Job, drawn: Draw) -> None:
        """Have sequences filled up with zeros before their episode's start and after its end."""
        if self._mask:
            self._reach[...] = self._form.reach(drawn)
            job.finish(self._finishes)

    def name(self, paths: Sequence[str], arrays: Sequence[A]) -> Batch:
        """Name the columns, and take ``obs`` and ``next_obs`` out of the frames."""
        batch: Batch = {}
        for n, (path, array) in enumerate(zip(paths, arrays, strict=True)):
            if not is_observation(path):
                put(batch, path, array)
            elif self._form.apart:
                put(batch, "next_" + path if path in paths[:n] else path, array)
            else:
                obs, following = self._split(array)
                put(batch, path, obs)
                put(batch, "next_" + path, following)
        return batch

    def _split(self, frames: A) -> tuple[A, A]:
        stack = self._stack
        if self._form.length is None:
            return (frames[:, 0], frames[:, 1]) if stack == 1 else (frames[:, :-1], frames[:, 1:])
        if stack == 1:
            return frames[:, :-1], frames[:, 1:]
        stacked = _stacks(frames, stack)
        return stacked[:, :-1], stacked[:, 1:]


def _stacks(frames: A, stack: int) -> A:
    """Return all stacks of consecutive frames, (size, rows - stack + 1, stack, ...), as a view."""
    if not isinstance(frames, np.ndarray):
        return frames.unfold(1, stack, 1).movedim(-1, 2)
    # `sliding_window_view` has a base of its own, so that Python would not count here who holds a view.
    (size, rows, *frame), (apart, along, *within) = frames.shape, frames.strides
    shape, strides = (size, rows - stack + 1, stack, *frame), (apart, along, along, *within)
    return np.ndarray(shape, frames.dtype, frames, strides=strides)
