"""Steps with n-step returns. The observations before and after may lie apart, and are stacks of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.jobs import Finishes, Job
from diskbuffer.reading.batches.base import A, Arrays, Batch, Request, Windows
from diskbuffer.reading.gather.targets import Columns, Memory, new_array
from diskbuffer.samplers.draws import Draw, NSteps
from diskbuffer.schema.nested import put
from diskbuffer.schema.schema import is_observation

if TYPE_CHECKING:
    from diskbuffer.reading.gather.block import Block


class NStepArrays(Arrays):
    """Arrays for steps whose n-step return is wanted: the observation n steps on, or where the episode ends before that."""

    _form: NSteps

    def allocate(self, columns: Columns, block: Block | None) -> None:
        """Allocate the observations before and after, the other columns of n steps, and what is made of them."""
        stack, n_step, size = self._stack, self._form.n_step, self._size
        obs = tuple(path for path in columns.paths if is_observation(path))
        others = tuple(path for path in columns.paths if not is_observation(path))
        frames = Memory(columns.select(obs), [(0, stack, stack == 1)] * len(obs), 2 * size, block)
        needed = tuple(dict.fromkeys((*others, "terminated")))
        ahead = Memory(columns.select(needed), [(0, n_step, False)] * len(needed), size)  # of which nothing is sent
        self.memories = [frames, ahead]
        self._outs: dict[str, npt.NDArray[Any]] = {}
        for path in needed:
            dtype = columns.schema[path].np_dtype
            if path.split("/")[0] == "reward" and dtype.kind not in "fc":
                dtype = np.dtype(np.float32)  # sums of discounted integers are none
            self._outs[path] = new_array((size, *columns.schema[path].shape), dtype, block if path in others else None)
        self._outs["discount"] = new_array((size,), np.dtype(np.float32), block)
        self._names = [*obs, *others, "discount"]
        self._delivered = [*frames.arrays, *(self._outs[path] for path in (*others, "discount"))]
        self._steps = np.zeros(size, np.int64)  # to the end of the episode
        # Products one after the other: a power rounds otherwise on another processor.
        self._discounts = np.multiply.accumulate(np.append(1.0, np.full(n_step, self._form.gamma)))
        self._finishes = Finishes()
        common: dict[str, Any] = {"end": self._steps, "factors": self._discounts}
        for path, rows in ahead.items():
            out, what = self._outs[path], "first"
            if path in ("terminated", "truncated"):
                what = "last"
            elif path.split("/")[0] == "reward":
                what = "sum"
            how = common | {"row_bytes": rows.nbytes // max(1, size * n_step)}
            how |= {"number": _number(rows.dtype), "rounded": _number(out.dtype)} if what == "sum" else {}
            self._finishes.add(what, out, size, n_step, source=rows, **how)
        terminated, discount = self._outs["terminated"], self._outs["discount"]
        self._finishes.add("discount", discount, size, n_step, source=terminated, **common)

    @staticmethod
    def windows(request: Request, drawn: Draw) -> list[Windows]:
        """Return what is to be gathered."""
        form, frame_stack = request.form, request.frame_stack
        after = np.minimum(drawn.positions + form.n_step, drawn.ends)
        of_after = drawn.streams, after, drawn.starts, drawn.ends
        streams, positions, starts, ends = (np.concatenate(pair) for pair in zip(drawn[:4], of_after, strict=True))
        both = Draw(streams, positions, starts, ends)
        return [Windows(both, frame_stack - 1, frame_stack), Windows(drawn, 0, form.n_step)]

    def plan_finish(self, job: Job, drawn: Draw) -> None:
        """Have rewards summed up, the flags of the last step taken, and everything else of the first."""
        np.subtract(drawn.ends, drawn.positions, out=self._steps)
        job.finish(self._finishes)

    def name(self, paths: Sequence[str], arrays: Sequence[A]) -> Batch:
        """Name the columns, and take ``obs`` and ``next_obs`` out of the frames."""
        batch: Batch = {}
        for path, array in zip(paths, arrays, strict=True):
            if is_observation(path):
                put(batch, path, array[: self._size])
                put(batch, "next_" + path, array[self._size :])
            else:
                put(batch, path, array)
        return batch


def _number(dtype: np.dtype[Any]) -> str:
    """Return how numbers are stored, as a job takes it: those that a complex one consists of, and booleans as bytes."""
    if dtype.kind == "c":
        return f"f{dtype.itemsize // 2}"
    return "u1" if dtype.kind == "b" else dtype.str[1:]
