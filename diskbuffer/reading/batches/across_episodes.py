"""Sequences of rows that run on from one episode into the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from diskbuffer.native.jobs import Finishes, Job
from diskbuffer.reading.batches.base import A, Arrays, Batch, Request, Windows
from diskbuffer.reading.gather.targets import Columns, Memory
from diskbuffer.samplers.draws import Draw, Rows
from diskbuffer.schema.nested import put
from diskbuffer.schema.schema import is_observation

if TYPE_CHECKING:
    from diskbuffer.reading.gather.block import Block


class RowArrays(Arrays):
    """Arrays for consecutive rows. A stack must not reach into the episode before, so each row has its own, where there are."""

    _form: Rows

    def allocate(self, columns: Columns, block: Block | None) -> None:
        """Allocate observations, and the other columns."""
        stack, length, size = self._stack, self._form.length, self._size
        obs = tuple(path for path in columns.paths if is_observation(path))
        others = tuple(path for path in columns.paths if not is_observation(path))
        if stack == 1:
            frames = Memory(columns.select(obs), [(0, length, False)] * len(obs), size, block)
        else:
            frames = Memory(columns.select(obs), [(0, stack, False)] * len(obs), size * length, block)
        rest = Memory(columns.select(others), [(0, length, False)] * len(others), size, block)
        self.memories = [frames, rest]
        self._names, self._delivered = [*obs, *others], [*frames.arrays, *rest.arrays]
        self._is_last = np.zeros((size, length), np.bool_)
        self._finishes = Finishes()
        for path, array in rest.items():
            if path in ("terminated", "truncated"):
                self._finishes.add("unset", array, size, length, source=self._is_last)

    @staticmethod
    def windows(request: Request, drawn: Draw) -> list[Windows]:
        """Return what is to be gathered."""
        form, frame_stack = request.form, request.frame_stack
        along = Windows(drawn._replace(starts=drawn.positions, ends=drawn.positions + form.length - 1), 0, form.length)
        if frame_stack == 1:
            return [along, along]
        positions = (drawn.positions[:, None] + np.arange(form.length)).ravel()
        each = Draw(np.repeat(drawn.streams, form.length), positions, drawn.notes["_firsts"].ravel(), positions)
        return [Windows(each, frame_stack - 1, frame_stack), along]

    def plan_finish(self, job: Job, drawn: Draw) -> None:
        """Have the flags of rows cleared that are no steps: those of a stack prefix tell what they are."""
        self._is_last[...] = drawn.notes["is_last"]
        job.finish(self._finishes)

    def name(self, paths: Sequence[str], arrays: Sequence[A]) -> Batch:
        """Name the columns."""
        batch: Batch = {}
        for path, array in zip(paths, arrays, strict=True):
            stacks = is_observation(path) and self._stack > 1
            put(batch, path, array.reshape(self._size, self._form.length, *array.shape[1:]) if stacks else array)
        return batch
