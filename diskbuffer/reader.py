"""Reading: from a draw to a batch. The draw and the plan are made under the store's lock, the gather is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.episodes import Episodes, list_episodes
from diskbuffer.errors import InputError
from diskbuffer.form import Draw, Form
from diskbuffer.gather.batch import Arrays, ArraysPool, Batch, Columns, Memory, make_arrays
from diskbuffer.gather.gatherer import Gatherer, default_threads
from diskbuffer.gather.plan import make_plan
from diskbuffer.index import HEAD, LOW, Index
from diskbuffer.native import HAVE_BLOSC
from diskbuffer.opening import read_index
from diskbuffer.samplers import Sampler
from diskbuffer.store.store import SlotMovedError, Store

Int64 = npt.NDArray[np.int64]
_TRIES = 20  # of a reader whose store is written to elsewhere, until a draw finds all its segments


class Reader:
    """Bring steps of an open store into batches; any number of threads at once.

    Attributes
    ----------
    index : Index
        Read from the store; whoever writes keeps it up, others `refresh` it.
    """

    def __init__(
        self, store: Store, frame_stack: int, zeros: bool, threads: int | None = None, compiled: bool = HAVE_BLOSC
    ) -> None:
        layout = store.layout
        self._store, self._streams = store, layout.streams
        self._frame_stack = frame_stack
        packed = {p: (layout.chunk_rows(p), layout.chunks(p), store.tails[p].address) for p in layout.packed}
        self._columns = Columns.of(layout.schema, packed, zeros)
        self._pool = ArraysPool(self._columns, frame_stack)
        largest = max((layout.chunk_bytes(path) for path in layout.packed), default=0)
        self.gatherer = Gatherer(layout.tail_rows, largest, default_threads() if threads is None else threads, compiled)
        self.index: Index = read_index(store, frame_stack - 1)

    def refresh(self) -> None:
        """See what a writer elsewhere has added and evicted."""
        with self._store.lock:
            self.index = read_index(self._store, self._frame_stack - 1)

    def arrays(self, form: Form, size: int, *, pinned: bool) -> Arrays:
        """Return memory for batches that is the caller's own."""
        return make_arrays(self._columns, self._frame_stack, form, size, pinned)

    def episodes(self) -> Episodes:
        """List the episodes of which a step can be sampled."""
        with self._store.lock:
            for _ in range(_TRIES):
                try:
                    return list_episodes(self._store, self.index)
                except SlotMovedError:
                    self.refresh()
            return list_episodes(self._store, self.index)

    def fill(self, draw: Callable[[Index], Draw], arrays: Arrays, threads: int | None = None) -> None:
        """Draw steps and gather them into `arrays`."""
        for last_try in [False] * (0 if self._store.writable else _TRIES) + [True]:
            with self._store.lock:
                try:
                    drawn = draw(self.index)
                    plans = [
                        (part.memory, make_plan(self.index, self._store.maps, part.drawn, part.before, part.rows))
                        for part in arrays.parts(drawn)
                    ]
                    break
                except SlotMovedError:
                    if last_try:
                        raise
                    self.refresh()
        arrays.steps = drawn.positions * self._streams + drawn.streams
        for memory, plan in plans:
            self.gatherer.run(plan, memory, threads)
        arrays.finish(drawn)

    def batch(self, draw: Callable[[Index], Draw], size: int, form: Form) -> Batch:
        """Draw steps and return them as tensors, in memory that is used again once they are gone."""
        arrays = self._pool.take(form, size)
        self.fill(draw, arrays)
        batch = arrays.deliver(arrays.tensors(), torch.from_numpy(arrays.steps))
        self._pool.give(form, arrays)
        return batch

    def sample(self, sampler: Sampler, size: int) -> Batch:
        """Draw with a sampler; the batch counts as delivered."""
        batch = self.batch(lambda index: sampler.draw(index, size, sampler.generator(sampler.batches)), size, sampler.form)
        sampler.batches += 1
        return batch

    def at(self, steps: Any, length: int | None) -> Batch:
        """Return given steps, or the sequences of `length` steps that they start."""
        ids = np.asarray(steps)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
            raise InputError(f"steps: expected integers of shape (n,), found {ids.dtype} of shape {ids.shape}")
        if length is not None and length > len(self.index):  # before memory is taken for it
            raise InputError(f"no sequence of {length} steps can be read: the buffer holds {len(self.index)} in all")
        ids = ids.astype(np.int64)
        streams, positions = ids % self._streams, ids // self._streams

        def draw(index: Index) -> Draw:
            starts, ends = index.episodes_of(streams, positions)
            bad = (starts < 0) | (ends - positions < (length or 1))
            if bad.any():
                raise InputError(
                    f"step {ids[bad][0]} cannot be read: it was evicted, was never added, "
                    + ("or is no step" if length is None else f"or its episode ends before {length} steps")
                )
            return Draw(streams, positions, starts, ends)

        return self.batch(draw, len(ids), Form(length))

    def newest(self, path: str) -> npt.NDArray[Any]:
        """Return the stack, (streams, frame_stack, ...), that each stream ends with; zeros where a stream is empty."""
        stack, index = self._frame_stack, self.index
        heads = index.table[:, HEAD]
        there = np.flatnonzero(heads >= 0)
        starts = np.array([index.episode_of(int(s), int(heads[s])) for s in there], np.int64)
        low = index.table[there, LOW]
        memory = Memory(self._columns.select((path,)), {path: (0, stack, False)}, len(there), pinned=False)
        drawn = Draw(there, heads[there], np.maximum(starts, low), heads[there])
        with self._store.lock:
            plan = make_plan(index, self._store.maps, drawn, before=stack - 1, rows=stack)
        self.gatherer.run(plan, memory)
        frames = memory.blocks[0].array
        found = np.zeros((len(heads), *frames.shape[1:]), frames.dtype)
        found[there] = frames
        return found

    def close(self) -> None:
        """Stop the threads."""
        self.gatherer.close()
