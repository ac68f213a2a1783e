"""Steps with n-step returns. The observations before and after may lie apart, and are stacks of their own."""

from __future__ import annotations

import numpy as np
import torch

from diskbuffer.reading.batches.base import Arrays, Batch, Windows
from diskbuffer.reading.gather.targets import ColumnMemory, Columns, Memory
from diskbuffer.samplers.draws import Draw, NSteps
from diskbuffer.schema.nested import put
from diskbuffer.schema.schema import is_observation


class NStepArrays(Arrays):
    """Arrays for steps whose n-step return is wanted: the observation n steps on, or where the episode ends before that."""

    _form: NSteps

    def allocate(self, columns: Columns, pinned: bool) -> None:
        """Allocate the observations before and after, the other columns of n steps, and what is made of them."""
        stack, n_step, size = self._stack, self._form.n_step, self._size
        obs = tuple(path for path in columns.paths if is_observation(path))
        others = tuple(path for path in columns.paths if not is_observation(path))
        frames = Memory(columns.select(obs), [(0, stack, stack == 1)] * len(obs), 2 * size, pinned)
        ahead = Memory(columns.select(others), [(0, n_step, False)] * len(others), size, pinned)
        self.memories = [frames, ahead]
        self._outs = {}
        for path in others:
            dtype = columns.schema[path].np_dtype
            if path.split("/")[0] == "reward" and dtype.kind not in "fc":
                dtype = np.dtype(np.float32)  # sums of discounted integers are none
            self._outs[path] = ColumnMemory((size, *columns.schema[path].shape), dtype, pinned)
        self._outs["discount"] = ColumnMemory((size,), np.dtype(np.float32), pinned)
        self._delivered = [*frames.blocks, *self._outs.values()]

    @staticmethod
    def windows(frame_stack: int, form: NSteps, drawn: Draw) -> list[Windows]:
        """Return what is to be gathered."""
        after = np.minimum(drawn.positions + form.n_step, drawn.ends)
        streams, starts, ends = (np.tile(each, 2) for each in (drawn.streams, drawn.starts, drawn.ends))
        both = Draw(streams, np.concatenate([drawn.positions, after]), starts, ends)
        return [Windows(both, frame_stack - 1, frame_stack), Windows(drawn, 0, form.n_step)]

    def finish(self, drawn: Draw) -> None:
        """Sum up rewards; take the flags of the last step, and everything else of the first."""
        steps = np.minimum(self._form.n_step, drawn.ends - drawn.positions)
        last, sample = steps - 1, np.arange(self._size)
        counted = np.arange(self._form.n_step) < steps[:, None]
        # Products one after the other: a power rounds otherwise on another processor. Sums are in float64, too, and rounded once.
        discounts = np.multiply.accumulate(np.append(1.0, np.full(self._form.n_step, self._form.gamma)))
        for path, array in self.memories[1].items():
            out = self._outs[path].array
            if path.split("/")[0] == "reward":
                shape = (*counted.shape, *(1,) * (array.ndim - 2))
                rewards = np.where(counted.reshape(shape), array, 0)  # after an episode's end there may be anything
                out[...] = (rewards * discounts[:-1].reshape(1, -1, *shape[2:])).sum(axis=1)
            elif path in ("terminated", "truncated"):
                out[...] = array[sample, last]
            else:
                out[...] = array[:, 0]
        self._outs["discount"].array[:] = discounts[steps] * ~self._outs["terminated"].array

    def name(self, tensors: list[torch.Tensor]) -> Batch:
        """Name the tensors, and take ``obs`` and ``next_obs`` out of the frames."""
        batch: Batch = {}
        for path, tensor in zip([*self.memories[0].paths, *self._outs], tensors, strict=True):
            if is_observation(path):
                put(batch, path, tensor[: self._size])
                put(batch, "next_" + path, tensor[self._size :])
            else:
                put(batch, path, tensor)
        return batch
