"""Where complete chunks leave the tail: compressed, and appended to their shards, beside whoever adds rows.

A handful of chunks is packed at once. More of them, as many environments bring, are packed by another thread while rows go
into the other half of the tail; a caller that needs them packed takes a share of the work and waits for the rest.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskbuffer.runtime.threads import submit
from diskbuffer.store.format import codec
from diskbuffer.store.format.encoding import encode_chunks
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.segments.shard import LiveShard

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

WORTH_A_THREAD = 1024**2  # bytes, below which handing them over costs more than it saves
_LOSSY = 256  # times as long as others takes a byte that is compressed with a loss
ENCODED_AT_ONCE = 64  # chunks of one run, which bounds the memory


@dataclass
class Run:
    """Chunks of one column and segment, from byte `first` on, in a ring of `ring` bytes at the address `source`."""

    path: str
    stream: int
    position: int  # of the first row
    shard: LiveShard
    first_chunk: int
    chunks: int
    source: int
    first: int
    ring: int


class Packer:
    """Pack runs.

    Attributes
    ----------
    packed : dict of str to (streams,) int64
        Of each packed column, the position up to which a stream's rows are in shards.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.packed = {path: np.zeros(layout.streams, np.int64) for path in layout.packed}
        self._threads = min(4, os.cpu_count() or 1)
        self.pool = ThreadPoolExecutor(max(1, self._threads - 1), "diskbuffer-pack")
        self._waiting: deque[list[Run]] = deque()  # a stream's runs of one column stay together, in their order
        self._begun: list[Future[None]] = []

    def runs(
        self, path: str, stream: int, position: int, chunks: int, memory: tuple[int, int, int], shards: dict[int, LiveShard]
    ) -> list[Run]:
        """Split chunks into runs of one segment each.

        `memory` is (address, first byte, size) of the ring that they are in, `shards` those of open segments by number.
        """
        runs, rows, chunk_rows = [], self._layout.segment_rows, self._layout.chunk_rows(path)
        source, first, ring = memory
        while chunks > 0:
            offset = position % rows
            n = min(chunks, (rows - offset) // chunk_rows, ENCODED_AT_ONCE)
            runs.append(Run(path, stream, position, shards[position // rows], offset // chunk_rows, n, source, first, ring))
            position, first, chunks = position + n * chunk_rows, first + n * self._layout.chunk_bytes(path), chunks - n
        return runs

    def begin(self, runs: list[list[Run]]) -> None:
        """Pack in other threads, until `finish`."""
        self._waiting.extend(runs)
        with contextlib.suppress(RuntimeError):  # where the interpreter ends there are no other threads any more
            for _ in range(min(len(runs), self._threads - 1)):
                self._begun.append(submit(self.pool, self._work))

    def finish(self) -> None:
        """Take a share of what was begun, and wait for the rest; raise what went wrong. What was not packed is not lost."""
        try:
            self._work()
        finally:
            self._waiting.clear()
            begun, self._begun = self._begun, []
            errors = [error for future in begun if not future.cancel() and (error := future.exception())]
        if errors:
            raise errors[0]

    def worth_a_thread(self, runs: list[list[Run]]) -> bool:
        """Return whether there is enough to pack to hand some of it over."""
        work = 0
        for run in (run for some in runs for run in some):
            work += run.chunks * self._layout.chunk_bytes(run.path) * (_LOSSY if run.path in self._layout.lossy else 1)
        return work >= WORTH_A_THREAD

    def pack(self, runs: list[list[Run]]) -> None:
        """Pack now."""
        if self.worth_a_thread(runs) and self._threads > 1:
            self.begin(runs)
        else:
            self._waiting.extend(runs)
        self.finish()

    def _work(self) -> None:
        while True:
            try:
                runs = self._waiting.popleft()
            except IndexError:
                return
            for run in runs:
                self._pack(run)

    def _pack(self, run: Run) -> None:
        chunk_bytes = self._layout.chunk_bytes(run.path)
        out = np.empty(run.chunks * codec.bound(chunk_bytes), np.uint8)  # pages that nothing is written to cost no memory
        entries = np.empty((run.chunks, 2), np.int64)
        column = self._layout.schema[run.path]
        size = encode_chunks(column, run.source, run.first, run.ring, chunk_bytes, out, entries)
        run.shard.append(run.first_chunk, out[:size], entries)
        self.packed[run.path][run.stream] = run.position + run.chunks * self._layout.chunk_rows(run.path)

    def close(self) -> None:
        """Stop the threads."""
        self.pool.shutdown()
