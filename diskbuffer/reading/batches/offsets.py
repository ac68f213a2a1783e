"""Rows at offsets of their own for each column."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.native.jobs import Finishes, Job
from diskbuffer.reading.batches.base import A, Arrays, Batch, Request, Windows
from diskbuffer.reading.gather.targets import Columns, Memory, new_array
from diskbuffer.samplers.draws import Draw, Offsets
from diskbuffer.schema.nested import put
from diskbuffer.schema.schema import is_observation

if TYPE_CHECKING:
    from diskbuffer.reading.gather.block import Block


class _Part(NamedTuple):
    """Columns that are gathered together: one run of `rows`, from the offset `first` on; or `rows` at each offset of `apart`."""

    paths: tuple[str, ...]
    rows: int
    first: int = 0
    apart: tuple[int, ...] = ()


class OffsetArrays(Arrays):
    """Arrays for windows, and masks of them where they are padded."""

    _form: Offsets

    def allocate(self, columns: Columns, block: Block | None) -> None:
        """Allocate rows of each column, and masks."""
        size, form, offsets, stack = self._size, self._form, dict(self._form.columns), self._stack
        self._reaches: dict[tuple[tuple[int, ...], bool], npt.NDArray[np.int64]] = {}  # from which offset on, until before which
        self.memories, self._finishes = [], Finishes()
        self._names, self._delivered, self._apart = list[str](), list[npt.NDArray[np.generic]](), set[str]()
        for part in _parts(form, columns.paths, stack):
            if part.apart:
                self._apart.update(part.paths)
                extents = [(0, part.rows, part.rows == 1)] * len(part.paths)
                memory = Memory(columns.select(part.paths), extents, size * len(part.apart), block)
            else:
                extents = [(offsets[path][0] - part.first, len(offsets[path]), False) for path in part.paths]
                memory = Memory(columns.select(part.paths), extents, size, block)
            self.memories.append(memory)
            for path, array in memory.items():
                self._names.append(path)
                self._delivered.append(array)
                if form.padding is None:
                    continue
                key = offsets[path], is_observation(path)
                begin, end = self._reaches.setdefault(key, np.zeros((2, size), np.int64))
                how = {"samples": size, "rows": len(offsets[path]), "begin": begin, "end": end}
                mask = new_array((size, len(offsets[path])), np.dtype(np.bool_), block)
                self._names.append(f"mask/{path}")
                self._delivered.append(mask)
                self._finishes.add("mask", mask, **how)
                if form.padding == "zeros" or not part.apart:  # what lies apart is the nearest row as it is
                    row_bytes = array.nbytes // max(1, size * len(offsets[path]))
                    self._finishes.add(form.padding, array, **how, row_bytes=row_bytes)

    @staticmethod
    def windows(request: Request, drawn: Draw) -> list[Windows]:
        """Return what is to be gathered."""
        firsts, windows = drawn.notes["_firsts"], list[Windows]()
        for part in _parts(request.form, request.columns.paths, request.frame_stack):
            if not part.apart:
                windows.append(Windows(drawn, -part.first, part.rows))
                continue
            n, lasts = len(part.apart), _lasts(drawn, is_observation(part.paths[0]))
            places = drawn.positions[:, None] + np.array(part.apart)
            nearest = np.clip(places, firsts[:, None], lasts[:, None]).ravel()
            each = Draw(np.repeat(drawn.streams, n), nearest, np.repeat(drawn.starts, n), np.repeat(drawn.ends, n))
            windows.append(Windows(each, part.rows - 1, part.rows))
        return windows

    def plan_finish(self, job: Job, drawn: Draw) -> None:
        """Have rows outside of episodes filled, and masks."""
        if self._form.padding is None:
            return
        firsts = drawn.notes["_firsts"] - drawn.positions
        for (offsets, of_observations), reach in self._reaches.items():
            lasts = _lasts(drawn, of_observations) - drawn.positions
            reach[0], reach[1] = np.searchsorted(offsets, firsts), np.searchsorted(offsets, lasts, side="right")
        job.finish(self._finishes)

    def name(self, paths: Sequence[str], arrays: Sequence[A]) -> Batch:
        """Name the columns, and their masks."""
        batch: Batch = {}
        offsets = dict(self._form.columns)
        for path, array in zip(paths, arrays, strict=True):
            apart = path in self._apart
            put(batch, path, array.reshape(self._size, len(offsets[path]), *array.shape[1:]) if apart else array)
        return batch


def _lasts(drawn: Draw, of_observations: bool) -> npt.NDArray[np.int64]:
    """Return the last row of each sample's episode that has a value."""
    return drawn.ends if of_observations else drawn.ends - 1


@lru_cache
def _parts(form: Offsets, paths: tuple[str, ...], stack: int) -> tuple[_Part, ...]:
    """Return which columns are gathered together."""
    along, apart = list[str](), dict[tuple[tuple[int, ...], bool], list[str]]()
    offsets = dict(form.columns)
    for path in paths:
        each, of_observation = offsets[path], is_observation(path)
        is_run = each[-1] - each[0] == len(each) - 1
        # The edge is copied from a row that was gathered: the drawn step's, at least.
        has_nearest = form.padding != "edge" or each[0] <= 0 <= each[-1]
        if is_run and has_nearest and not (of_observation and stack > 1):
            along.append(path)
        else:
            apart.setdefault((each, of_observation), []).append(path)
    parts = [_Part(tuple(some), stack if of else 1, apart=each) for (each, of), some in apart.items()]
    if along:
        first, last = min(offsets[path][0] for path in along), max(offsets[path][-1] for path in along)
        parts.append(_Part(tuple(along), last - first + 1, first))
    return tuple(parts) or (_Part((), 1),)
