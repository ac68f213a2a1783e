"""Sequences of rows that run on from one episode into the next."""

from __future__ import annotations

import numpy as np
import torch

from diskbuffer.reading.batches.base import Arrays, Batch, Windows
from diskbuffer.reading.gather.targets import Columns, Memory
from diskbuffer.samplers.draws import Draw, Rows
from diskbuffer.schema.nested import put
from diskbuffer.schema.schema import is_observation


class RowArrays(Arrays):
    """Arrays for consecutive rows. A stack must not reach into the episode before, so each row has its own, where there are."""

    _form: Rows

    def allocate(self, columns: Columns, pinned: bool) -> None:
        """Allocate observations, and the other columns."""
        stack, length, size = self._stack, self._form.length, self._size
        obs = tuple(path for path in columns.paths if is_observation(path))
        others = tuple(path for path in columns.paths if not is_observation(path))
        if stack == 1:
            frames = Memory(columns.select(obs), [(0, length, False)] * len(obs), size, pinned)
        else:
            frames = Memory(columns.select(obs), [(0, stack, False)] * len(obs), size * length, pinned)
        rest = Memory(columns.select(others), [(0, length, False)] * len(others), size, pinned)
        self.memories = [frames, rest]
        self._delivered = [*frames.blocks, *rest.blocks]

    @staticmethod
    def windows(frame_stack: int, form: Rows, drawn: Draw) -> list[Windows]:
        """Return what is to be gathered."""
        along = Windows(drawn._replace(starts=drawn.positions, ends=drawn.positions + form.length - 1), 0, form.length)
        if frame_stack == 1:
            return [along, along]
        positions = (drawn.positions[:, None] + np.arange(form.length)).ravel()
        each = Draw(np.repeat(drawn.streams, form.length), positions, drawn.notes["_firsts"].ravel(), positions)
        return [Windows(each, frame_stack - 1, frame_stack), along]

    def finish(self, drawn: Draw) -> None:
        """Clear the flags of rows that are no steps: those of a stack prefix tell what they are."""
        for path, array in self.memories[1].items():
            if path in ("terminated", "truncated"):
                array[drawn.notes["is_last"]] = False

    def name(self, tensors: list[torch.Tensor]) -> Batch:
        """Name the tensors."""
        batch: Batch = {}
        for path, tensor in zip([*self.memories[0].paths, *self.memories[1].paths], tensors, strict=True):
            stacks = is_observation(path) and self._stack > 1
            put(batch, path, tensor.view(self._size, self._form.length, *tensor.shape[1:]) if stacks else tensor)
        return batch
