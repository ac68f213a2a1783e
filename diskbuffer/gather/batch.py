"""The arrays of a batch: what a sampler asked for, column by column, and the tensors that users get.

Frames are gathered once: a transition with a stack of 4 has 5 frames, of which ``obs`` and ``next_obs`` are two views.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.gather import kernel as k
from diskbuffer.schema import Schema, is_obs

Batch = dict[str, Any]  # tensors, nested for dict observations


@dataclass(frozen=True)
class Window:
    """What to bring of every sampled step.

    `length` consecutive steps from the sampled one on, with a time axis, or that one alone, without, where it is None. Each
    observation is a stack of `frame_stack` frames; ``next_obs`` comes with it.
    """

    frame_stack: int = 1
    length: int | None = None

    @property
    def before(self) -> int:
        """Rows before the step."""
        return self.frame_stack - 1

    @property
    def steps(self) -> int:
        """Steps in the window."""
        return 1 if self.length is None else self.length

    @property
    def rows(self) -> int:
        """Rows in the window, the observation after the last step among them."""
        return self.before + self.steps + 1


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


class Arrays:
    """Memory for one batch of `size` samples."""

    def __init__(self, columns: Columns, window: Window, size: int, pinned: bool = False) -> None:
        self.paths = columns.paths
        self.window, self.size = window, size
        self.targets = columns.targets.copy()
        self.steps = np.empty(0, np.int64)  # set anew for every batch
        self._pinned: list[torch.Tensor] = []
        self._arrays: list[npt.NDArray[Any]] = []
        for target, path in zip(self.targets, self.paths, strict=True):
            column = columns.schema[path]
            target[k.SKIP], target[k.ROWS] = (0, window.rows) if is_obs(path) else (window.before, window.steps)
            alone = window.length is None and not is_obs(path)
            shape = (size, *(() if alone else (int(target[k.ROWS]),)), *column.shape)
            if pinned:
                self._pinned.append(_pinned(shape, column.np_dtype))
                array = self._pinned[-1].numpy()
            else:
                array = np.empty(shape, column.np_dtype)
            target[k.OUT] = array.ctypes.data
            self._arrays.append(array)
        self.nbytes = sum(array.nbytes for array in self._arrays)
        del array  # a reference of this function's own is not to be counted
        self._unused = self._references()

    def _references(self) -> list[int]:
        return [sys.getrefcount(array) for array in self._arrays]

    @property
    def in_use(self) -> bool:
        """Whether somebody still holds a tensor that `tensors` made: it shares this memory."""
        return self._references() != self._unused

    def tensors(self) -> list[torch.Tensor]:
        """Return the gathered columns as tensors over this memory."""
        return self._pinned or [torch.from_numpy(array) for array in self._arrays]

    def deliver(self, tensors: list[torch.Tensor], steps: torch.Tensor) -> Batch:
        """Name the columns, and take ``obs`` and ``next_obs`` out of the frames."""
        batch: Batch = {}
        for path, tensor in zip(self.paths, tensors, strict=True):
            if is_obs(path):
                obs, following = self._split(tensor)
                _put(batch, path, obs)
                _put(batch, "next_" + path, following)
            else:
                _put(batch, path, tensor)
        batch["steps"] = steps
        return batch

    def _split(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        stack = self.window.frame_stack
        if self.window.length is None:
            return (frames[:, 0], frames[:, 1]) if stack == 1 else (frames[:, :-1], frames[:, 1:])
        if stack == 1:
            return frames[:, :-1], frames[:, 1:]
        stacked = frames.unfold(1, stack, 1).movedim(-1, 2)
        return stacked[:, :-1], stacked[:, 1:]


class ArraysPool:
    """Memory of batches that nobody holds any more, used again: fresh pages cost more than the gather itself."""

    _KEPT = 4

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._arrays: list[Arrays] = []
        self._lock = threading.Lock()

    def take(self, window: Window, size: int) -> Arrays:
        """Return arrays that nobody else uses; give them back with `give`."""
        with self._lock:
            for arrays in self._arrays:
                if arrays.size == size and arrays.window == window and not arrays.in_use:
                    self._arrays.remove(arrays)
                    return arrays
        return Arrays(self._columns, window, size)

    def give(self, arrays: Arrays) -> None:
        """Have arrays used again, once the tensors over them are gone."""
        with self._lock:
            self._arrays.append(arrays)
            del self._arrays[: -self._KEPT]


def _pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    like = torch.from_numpy(np.empty(0, dtype))
    return torch.empty(shape, dtype=like.dtype, pin_memory=True)


def _put(batch: Batch, path: str, tensor: torch.Tensor) -> None:
    *parents, name = path.split("/")
    for parent in parents:
        batch = batch.setdefault(parent, {})
    batch[name] = tensor
