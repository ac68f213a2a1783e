"""The arrays of a batch: what a sampler asked for, column by column, and the tensors that users get.

Frames are gathered once: a transition with a stack of 4 has 5 frames, of which ``obs`` and ``next_obs`` are two views. With
n-step returns the two may lie apart, and are stacks of their own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.form import Form
from diskbuffer.gather import kernel as k
from diskbuffer.schema import Schema, is_obs

Int64 = npt.NDArray[np.int64]
Batch = dict[str, Any]  # tensors, nested for dict observations


class Drawn(Protocol):
    """What a sampler draws: (size,) int64 each."""

    @property
    def streams(self) -> Int64:
        """Streams of the steps."""

    @property
    def positions(self) -> Int64:
        """Their rows."""

    @property
    def starts(self) -> Int64:
        """The first rows of their episodes."""

    @property
    def ends(self) -> Int64:
        """The last rows of their episodes."""


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
        self.arrays: list[npt.NDArray[Any]] = []
        self._tensors: list[torch.Tensor] = []
        for target, path in zip(self.targets, self.paths, strict=True):
            skip, rows, alone = extents[path]
            target[k.SKIP], target[k.ROWS] = skip, rows
            column = columns.schema[path]
            array, tensor = _allocate((size, *(() if alone else (rows,)), *column.shape), column.np_dtype, pinned)
            target[k.OUT] = array.ctypes.data
            self.arrays.append(array)
            self._tensors += [] if tensor is None else [tensor]
        self.nbytes = sum(array.nbytes for array in self.arrays)

    def tensors(self) -> list[torch.Tensor]:
        """Return tensors over this memory."""
        return self._tensors or [torch.from_numpy(array) for array in self.arrays]

    def references(self) -> list[int]:
        """Count the references to each array: tensors over the same memory are among them."""
        return [sys.getrefcount(array) for array in self.arrays]


class Part(NamedTuple):
    """Windows to gather: `rows` rows, of which that at `positions` is number `before`; (n,) int64 each."""

    memory: Memory
    streams: Int64
    positions: Int64
    starts: Int64
    ends: Int64
    before: int
    rows: int


class Arrays(Protocol):
    """Memory for one batch of `size` samples."""

    size: int
    steps: Int64  # names of the steps, set anew for every batch

    @property
    def in_use(self) -> bool:
        """Whether somebody still holds a tensor that `tensors` made: it shares this memory."""

    def parts(self, drawn: Drawn) -> Iterator[Part]:
        """Yield what is to be gathered."""

    def finish(self, drawn: Drawn) -> None:
        """Compute what follows from what was gathered."""

    def tensors(self) -> list[torch.Tensor]:
        """Return what is to be delivered, as tensors over this memory."""

    def deliver(self, tensors: list[torch.Tensor], steps: torch.Tensor) -> Batch:
        """Name the tensors, and take ``obs`` and ``next_obs`` out of the frames."""


class Steps:
    """Arrays for single steps, or sequences of them, with the observations before and after each."""

    def __init__(self, columns: Columns, frame_stack: int, form: Form, size: int, pinned: bool = False) -> None:
        self.size, self.steps = size, np.empty(0, np.int64)
        self._stack, self._form = frame_stack, form
        self._before, self._rows = frame_stack - 1, frame_stack + form.steps
        extents = {
            path: (0, self._rows, False) if is_obs(path) else (self._before, form.steps, form.length is None)
            for path in columns.paths
        }
        self.memory = Memory(columns, extents, size, pinned)
        self._mask, self._mask_tensor = _allocate((size, form.steps), np.dtype(np.bool_), pinned)
        self._unused = self._references()

    def _references(self) -> list[int]:
        return [*self.memory.references(), sys.getrefcount(self._mask)]

    @property
    def in_use(self) -> bool:
        """Whether somebody still holds a tensor that `tensors` made: it shares this memory."""
        return self._references() != self._unused

    def parts(self, drawn: Drawn) -> Iterator[Part]:
        """Yield what is to be gathered."""
        yield Part(self.memory, drawn.streams, drawn.positions, drawn.starts, drawn.ends, self._before, self._rows)

    def finish(self, drawn: Drawn) -> None:
        """Fill sequences up with zeros behind their episode's end."""
        if not self._form.padded:
            return
        lengths = drawn.ends - drawn.positions
        np.less(np.arange(self._form.steps), lengths[:, None], out=self._mask)
        for i in np.flatnonzero(lengths < self._form.steps).tolist():
            for path, array in zip(self.memory.paths, self.memory.arrays, strict=True):
                array[i, lengths[i] + (self._stack if is_obs(path) else 0) :] = 0

    def tensors(self) -> list[torch.Tensor]:
        """Return what is to be delivered, as tensors over this memory."""
        mask = torch.from_numpy(self._mask) if self._mask_tensor is None else self._mask_tensor
        return [*self.memory.tensors(), *([mask] if self._form.padded else [])]

    def deliver(self, tensors: list[torch.Tensor], steps: torch.Tensor) -> Batch:
        """Name the tensors, and take ``obs`` and ``next_obs`` out of the frames."""
        batch: Batch = {}
        for path, tensor in zip(self.memory.paths, tensors, strict=False):
            if is_obs(path):
                obs, following = self._split(tensor)
                _put(batch, path, obs)
                _put(batch, "next_" + path, following)
            else:
                _put(batch, path, tensor)
        if self._form.padded:
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


class NSteps:
    """Arrays for steps whose n-step return is wanted: the observation n steps on, or where the episode ends before that."""

    def __init__(self, columns: Columns, frame_stack: int, form: Form, size: int, pinned: bool = False) -> None:
        self.size, self.steps = size, np.empty(0, np.int64)
        self._stack, self._form = frame_stack, form
        obs = tuple(path for path in columns.paths if is_obs(path))
        others = tuple(path for path in columns.paths if not is_obs(path))
        self._frames = Memory(columns.select(obs), dict.fromkeys(obs, (0, frame_stack, frame_stack == 1)), 2 * size, pinned)
        self._ahead = Memory(columns.select(others), dict.fromkeys(others, (0, form.n_step, False)), size, pinned)
        self._outs: dict[str, tuple[npt.NDArray[Any], torch.Tensor | None]] = {
            path: _allocate((size, *columns.schema[path].shape), columns.schema[path].np_dtype, pinned) for path in others
        }
        self._outs["discount"] = _allocate((size,), np.dtype(np.float32), pinned)
        self._weights = form.gamma ** np.arange(form.n_step + 1)
        self._unused = self._references()

    def _references(self) -> list[int]:
        return [*self._frames.references(), *(sys.getrefcount(array) for array, _ in self._outs.values())]

    @property
    def in_use(self) -> bool:
        """Whether somebody still holds a tensor that `tensors` made: it shares this memory."""
        return self._references() != self._unused

    def parts(self, drawn: Drawn) -> Iterator[Part]:
        """Yield what is to be gathered."""
        after = np.minimum(drawn.positions + self._form.n_step, drawn.ends)
        streams, starts, ends = (np.concatenate([a, a]) for a in (drawn.streams, drawn.starts, drawn.ends))
        rows = np.concatenate([drawn.positions, after])
        yield Part(self._frames, streams, rows, starts, ends, self._stack - 1, self._stack)
        yield Part(self._ahead, *(drawn.streams, drawn.positions, drawn.starts, drawn.ends), 0, self._form.n_step)

    def finish(self, drawn: Drawn) -> None:
        """Sum up rewards; take the flags of the last step, and everything else of the first."""
        steps = np.minimum(self._form.n_step, drawn.ends - drawn.positions)
        last, sample = steps - 1, np.arange(self.size)
        counted = np.arange(self._form.n_step) < steps[:, None]
        for path, array in zip(self._ahead.paths, self._ahead.arrays, strict=True):
            out = self._outs[path][0]
            if path.split("/")[0] == "reward":
                shape = (*counted.shape, *(1,) * (array.ndim - 2))
                rewards = np.where(counted.reshape(shape), array, 0)  # behind an episode's end there may be anything
                weights = self._weights[:-1].reshape(1, -1, *shape[2:])
                out[...] = (rewards * weights).sum(axis=1)
            elif path in ("terminated", "truncated"):
                out[...] = array[sample, last]
            else:
                out[...] = array[:, 0]
        self._outs["discount"][0][:] = self._weights[steps] * ~self._outs["terminated"][0]

    def tensors(self) -> list[torch.Tensor]:
        """Return what is to be delivered, as tensors over this memory."""
        outs = [torch.from_numpy(array) if tensor is None else tensor for array, tensor in self._outs.values()]
        return [*self._frames.tensors(), *outs]

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


def _allocate(shape: tuple[int, ...], dtype: np.dtype[Any], pinned: bool) -> tuple[npt.NDArray[Any], torch.Tensor | None]:
    """Return an array, and the tensor over it if it is pinned."""
    if not pinned:
        return np.empty(shape, dtype), None
    like = torch.from_numpy(np.empty(0, dtype))
    tensor = torch.empty(shape, dtype=like.dtype, pin_memory=True)
    return tensor.numpy(), tensor


def _put(batch: Batch, path: str, tensor: torch.Tensor) -> None:
    *parents, name = path.split("/")
    for parent in parents:
        batch = batch.setdefault(parent, {})
    batch[name] = tensor
