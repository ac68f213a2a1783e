"""The arrays of a batch: what a sampler asked for, column by column, and the tensors that users get.

Frames are gathered once: a transition with a stack of 4 has 5 frames, of which ``obs`` and ``next_obs`` are two views. With
n-step returns the two may lie apart, and are stacks of their own.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.form import Draw, Form
from diskbuffer.gather import kernel as k
from diskbuffer.schema import Schema, is_obs

Int64 = npt.NDArray[np.int64]
Batch = dict[str, Any]  # tensors, nested for dict observations


@dataclass(frozen=True)
class Columns:
    """The columns to deliver, and what the kernel needs to know of them: one row of `targets` each, but for the address."""

    schema: Schema
    paths: tuple[str, ...]
    targets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, schema: Schema, packed: dict[str, tuple[int, int, int]], zeros: bool) -> Columns:
        """Describe all columns of a schema; `packed` tells (chunk_rows, chunks, address of the tail) of the packed ones."""
        paths = (*schema.obs, *schema.step)
        order = list(schema)
        targets = np.zeros((len(paths), k.TARGET_FIELDS), np.int64)
        for target, path in zip(targets, paths, strict=True):
            target[k.COLUMN], target[k.ROW_BYTES], target[k.ZEROS] = order.index(path), schema[path].row_bytes, zeros
            if path in packed:
                target[[k.CHUNK_ROWS, k.CHUNKS, k.TAIL]] = packed[path]
        return cls(schema, paths, targets)

    def select(self, paths: tuple[str, ...]) -> Columns:
        """Return some of the columns."""
        return Columns(self.schema, paths, self.targets[[self.paths.index(path) for path in paths]])


class Block:
    """One array, in pinned memory where it goes to a GPU."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], pinned: bool) -> None:
        self._pinned: torch.Tensor | None = None
        if pinned:
            like = torch.from_numpy(np.empty(0, dtype))
            self._pinned = torch.empty(shape, dtype=like.dtype, pin_memory=True)
        self.array: npt.NDArray[Any] = np.empty(shape, dtype) if self._pinned is None else self._pinned.numpy()

    def tensor(self) -> torch.Tensor:
        """Return a tensor over the array."""
        return torch.from_numpy(self.array) if self._pinned is None else self._pinned


class Memory:
    """Memory for some columns of `size` windows: of each column `rows` rows, the window's from number `skip` on.

    Parameters
    ----------
    columns : Columns
    extents : dict of str to (skip, rows, alone)
        `alone` where there is one row, and no axis for it.
    size : int
    pinned : bool
    """

    def __init__(self, columns: Columns, extents: dict[str, tuple[int, int, bool]], size: int, pinned: bool) -> None:
        self.paths = columns.paths
        self.targets = columns.targets.copy()
        self.blocks: list[Block] = []
        for target, path in zip(self.targets, self.paths, strict=True):
            skip, rows, alone = extents[path]
            target[k.SKIP], target[k.ROWS] = skip, rows
            column = columns.schema[path]
            block = Block((size, *(() if alone else (rows,)), *column.shape), column.np_dtype, pinned)
            target[k.OUT] = block.array.ctypes.data
            self.blocks.append(block)
        self.nbytes = sum(block.array.nbytes for block in self.blocks)

    def items(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the columns and their arrays."""
        for path, block in zip(self.paths, self.blocks, strict=True):
            yield path, block.array


class Part(NamedTuple):
    """Windows to gather: `rows` rows, of which the drawn one is number `before`."""

    memory: Memory
    drawn: Draw
    before: int
    rows: int


class Arrays(ABC):
    """Memory for one batch of `size` samples; `delivered` is what of it `tensors` gives to users."""

    def __init__(self, size: int, delivered: list[Block]) -> None:
        self.size, self.steps = size, np.empty(0, np.int64)  # steps: their names, set anew for every batch
        self._delivered = delivered
        self._unused = self._references()

    def _references(self) -> list[int]:
        return [sys.getrefcount(block.array) for block in self._delivered]

    @property
    def in_use(self) -> bool:
        """Whether somebody still holds a tensor that `tensors` made: it shares this memory."""
        return self._references() != self._unused

    def tensors(self) -> list[torch.Tensor]:
        """Return what is to be delivered, as tensors over this memory."""
        return [block.tensor() for block in self._delivered]

    @abstractmethod
    def parts(self, drawn: Draw) -> Iterator[Part]:
        """Yield what is to be gathered."""

    @abstractmethod
    def finish(self, drawn: Draw) -> None:
        """Compute what follows from what was gathered."""

    @abstractmethod
    def deliver(self, tensors: list[torch.Tensor], steps: torch.Tensor) -> Batch:
        """Name the tensors, and take ``obs`` and ``next_obs`` out of the frames."""


class Steps(Arrays):
    """Arrays for single steps, or sequences of them, with the observations before and after each."""

    def __init__(self, columns: Columns, frame_stack: int, form: Form, size: int, pinned: bool = False) -> None:
        self._stack, self._form = frame_stack, form
        self._before, self._rows = frame_stack - 1, frame_stack + form.steps
        extents = {
            path: (0, self._rows, False) if is_obs(path) else (self._before, form.steps, form.length is None)
            for path in columns.paths
        }
        self._memory = Memory(columns, extents, size, pinned)
        self._mask = [Block((size, form.steps), np.dtype(np.bool_), pinned)] if form.padded else []
        super().__init__(size, [*self._memory.blocks, *self._mask])

    def parts(self, drawn: Draw) -> Iterator[Part]:
        """Yield what is to be gathered."""
        yield Part(self._memory, drawn, self._before, self._rows)

    def finish(self, drawn: Draw) -> None:
        """Fill sequences up with zeros behind their episode's end."""
        if not self._mask:
            return
        lengths = drawn.ends - drawn.positions
        np.less(np.arange(self._form.steps), lengths[:, None], out=self._mask[0].array)
        for i in np.flatnonzero(lengths < self._form.steps).tolist():
            for path, array in self._memory.items():
                array[i, lengths[i] + (self._stack if is_obs(path) else 0) :] = 0

    def deliver(self, tensors: list[torch.Tensor], steps: torch.Tensor) -> Batch:
        """Name the tensors, and take ``obs`` and ``next_obs`` out of the frames."""
        batch: Batch = {}
        for path, tensor in zip(self._memory.paths, tensors, strict=False):
            if is_obs(path):
                obs, following = self._split(tensor)
                _put(batch, path, obs)
                _put(batch, "next_" + path, following)
            else:
                _put(batch, path, tensor)
        if self._mask:
            batch["mask"] = tensors[-1]
        batch["steps"] = steps
        return batch

    def _split(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        stack = self._stack
        if self._form.length is None:
            return (frames[:, 0], frames[:, 1]) if stack == 1 else (frames[:, :-1], frames[:, 1:])
        if stack == 1:
            return frames[:, :-1], frames[:, 1:]
        stacked = frames.unfold(1, stack, 1).movedim(-1, 2)
        return stacked[:, :-1], stacked[:, 1:]


class NSteps(Arrays):
    """Arrays for steps whose n-step return is wanted: the observation n steps on, or where the episode ends before that."""

    def __init__(self, columns: Columns, frame_stack: int, form: Form, size: int, pinned: bool = False) -> None:
        self._stack, self._form = frame_stack, form
        obs = tuple(path for path in columns.paths if is_obs(path))
        others = tuple(path for path in columns.paths if not is_obs(path))
        self._frames = Memory(columns.select(obs), dict.fromkeys(obs, (0, frame_stack, frame_stack == 1)), 2 * size, pinned)
        self._ahead = Memory(columns.select(others), dict.fromkeys(others, (0, form.n_step, False)), size, pinned)
        self._outs = {path: Block((size, *columns.schema[path].shape), columns.schema[path].np_dtype, pinned) for path in others}
        self._outs["discount"] = Block((size,), np.dtype(np.float32), pinned)
        self._weights = form.gamma ** np.arange(form.n_step + 1)
        super().__init__(size, [*self._frames.blocks, *self._outs.values()])

    def parts(self, drawn: Draw) -> Iterator[Part]:
        """Yield what is to be gathered."""
        after = drawn._replace(positions=np.minimum(drawn.positions + self._form.n_step, drawn.ends))
        both = Draw(*np.concatenate([drawn, after], axis=1))
        yield Part(self._frames, both, self._stack - 1, self._stack)
        yield Part(self._ahead, drawn, 0, self._form.n_step)

    def finish(self, drawn: Draw) -> None:
        """Sum up rewards; take the flags of the last step, and everything else of the first."""
        steps = np.minimum(self._form.n_step, drawn.ends - drawn.positions)
        last, sample = steps - 1, np.arange(self.size)
        counted = np.arange(self._form.n_step) < steps[:, None]
        for path, array in self._ahead.items():
            out = self._outs[path].array
            if path.split("/")[0] == "reward":
                shape = (*counted.shape, *(1,) * (array.ndim - 2))
                rewards = np.where(counted.reshape(shape), array, 0)  # behind an episode's end there may be anything
                weights = self._weights[:-1].reshape(1, -1, *shape[2:])
                out[...] = (rewards * weights).sum(axis=1)
            elif path in ("terminated", "truncated"):
                out[...] = array[sample, last]
            else:
                out[...] = array[:, 0]
        self._outs["discount"].array[:] = self._weights[steps] * ~self._outs["terminated"].array

    def deliver(self, tensors: list[torch.Tensor], steps: torch.Tensor) -> Batch:
        """Name the tensors, and take ``obs`` and ``next_obs`` out of the frames."""
        batch: Batch = {}
        for path, tensor in zip([*self._frames.paths, *self._outs], tensors, strict=True):
            if is_obs(path):
                _put(batch, path, tensor[: self.size])
                _put(batch, "next_" + path, tensor[self.size :])
            else:
                _put(batch, path, tensor)
        batch["steps"] = steps
        return batch


def make_arrays(columns: Columns, frame_stack: int, form: Form, size: int, pinned: bool = False) -> Arrays:
    """Return memory for batches of a form."""
    return (Steps if form.n_step == 1 else NSteps)(columns, frame_stack, form, size, pinned)


class ArraysPool:
    """Memory of batches that nobody holds any more, used again: fresh pages cost more than the gather itself."""

    _KEPT = 4

    def __init__(self, columns: Columns, frame_stack: int) -> None:
        self._columns, self._stack = columns, frame_stack
        self._arrays: list[tuple[Form, Arrays]] = []
        self._lock = threading.Lock()

    def take(self, form: Form, size: int) -> Arrays:
        """Return arrays that nobody else uses; give them back with `give`."""
        with self._lock:
            for n, (of, arrays) in enumerate(self._arrays):
                if arrays.size == size and of == form and not arrays.in_use:
                    del self._arrays[n]
                    return arrays
        return make_arrays(self._columns, self._stack, form, size)

    def give(self, form: Form, arrays: Arrays) -> None:
        """Have arrays used again, once the tensors over them are gone."""
        with self._lock:
            self._arrays.append((form, arrays))
            del self._arrays[: -self._KEPT]


def _put(batch: Batch, path: str, tensor: torch.Tensor) -> None:
    *parents, name = path.split("/")
    for parent in parents:
        batch = batch.setdefault(parent, {})
    batch[name] = tensor
