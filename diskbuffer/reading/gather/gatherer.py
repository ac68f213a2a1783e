"""Bring a planned batch into its memory, split over threads."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.index.index import Index
from diskbuffer.native import gather
from diskbuffer.native.sampling import Philox
from diskbuffer.reading.gather.helpers import Helpers
from diskbuffer.reading.gather.plan import Plan
from diskbuffer.reading.gather.targets import Memory
from diskbuffer.reading.gather.thread_count import ThreadCount
from diskbuffer.store.format import codec

T = TypeVar("T")
Int64 = npt.NDArray[np.int64]
Describe = Callable[[str, int, int, int, int], str]
Damage = tuple[int, int, int, int]  # why a chunk cannot be read; the target, the run, and the number of the chunk
_PARTS = 16  # into which a batch is split, a thread: who is done first takes the next
_KINDS = 64  # of batches, for which it is known how many threads are best
_COLD = 16  # a batch is cold if more than one in so many of its runs had to wait for the disk
_LOOK = 8  # every so many batches are looked at: counting faults takes a tenth of a small one's time


_PAGE = resource.getpagesize()


def _major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _pages_read() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * 512 // _PAGE


def default_threads() -> int:
    """Choose how many threads decode a batch: the machine's cores, eight at most."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, usable)


class Gatherer:
    """Run plans, in `threads` threads; any number of callers at once.

    Parameters
    ----------
    largest_chunk : int
        Bytes; each thread has a scratch of twice as much.
    threads : int
    describe : callable
        ``describe(column, slot, stream, first, last)`` names rows, from position `first` to `last`, for errors.
    """

    def __init__(self, largest_chunk: int, threads: int, describe: Describe) -> None:
        self._describe, self._largest = describe, largest_chunk
        self.threads = threads
        self._helpers = Helpers("diskbuffer-gather", largest_chunk)
        self._last_thread_count: ThreadCount | None = None
        self._local = threading.local()
        self._cold = True  # until seen otherwise: a store that was just opened may not be in the page cache
        self._batches = 0
        self._thread_counts: dict[tuple[tuple[str, ...], int], ThreadCount] = {}  # of some columns, and so many bytes

    def call_helpers(self) -> None:
        """Wake threads for a batch that is about to be planned, if the last one was gathered in several."""
        thread_count = self._last_thread_count
        if thread_count is not None and thread_count.best > 1:
            self._helpers.call(thread_count.best - 1)

    def run(self, plan: Plan, memory: Memory, threads: int | None = None) -> None:
        """Fill a batch's arrays as planned. Blocks, without the GIL."""
        damage = self._share(plan, memory, threads)
        if damage is not None:
            raise self._error(plan, memory, damage)

    def gather_random(
        self, index: Index, mapped: Int64, memory: Memory, random: Philox, before: int, rows: int, ids: Int64
    ) -> bool | None:
        """Draw, plan and gather steps, as `quickly` does; fill in their ids, and return whether all could be read."""
        what = index.table, mapped, memory.targets, self._scratch(), random, before, rows, index.segment_rows, ids
        return self.quickly(len(ids), gather.gather_random, *what)

    def quickly(self, size: int, read: Callable[..., T], *what: Any) -> T | None:
        """Read so many samples without a plan; None where the disk may have to be waited for."""
        if self._cold:
            return None
        self._batches += 1
        looked_at = self._batches % _LOOK == 0
        before = _major_faults() if looked_at else 0
        result = read(*what)
        if looked_at:
            self._cold = _major_faults() - before > size // _COLD
        return result

    def _share(self, plan: Plan, memory: Memory, threads: int | None) -> Damage | None:
        self._batches += 1
        looked_at, advised, n = self._batches % _LOOK == 0, self._cold, len(plan.runs)
        count = _pages_read if advised else _major_faults
        before = count() if looked_at else 0
        if advised:
            gather.request_pages(memory.targets, plan.runs, plan.sources, _PAGE)
        if threads is None and self.threads > 1:
            thread_count = self._last_thread_count = self._thread_count(memory)
            threads, begun = thread_count.choose(), time.perf_counter()
            damage = self._gather(plan, memory, threads)
            thread_count.note(threads, time.perf_counter() - begun)
        else:
            damage = self._gather(plan, memory, threads or 1)
        if looked_at:
            self._cold = count() - before > n // _COLD
            if advised and not self._cold:
                self._batches = -1  # look at the next one, too: faults are counted everywhere, what some file systems read is not
        return damage

    def _thread_count(self, memory: Memory) -> ThreadCount:
        kind = memory.paths, memory.nbytes
        thread_count = self._thread_counts.get(kind)
        if thread_count is None:
            if len(self._thread_counts) >= _KINDS:  # such as the episodes of somebody who reads one after the other
                self._thread_counts = {}
            thread_count = self._thread_counts[kind] = ThreadCount(self.threads)
        return thread_count

    def _gather(self, plan: Plan, memory: Memory, threads: int) -> Damage | None:
        what, n = (memory.targets, plan.runs, plan.sources, self._scratch()), len(plan.runs)
        if threads == 1:
            return gather.gather(*what)
        with self._helpers.lend(threads - 1) as helpers:
            return gather.gather(*what, min(n, threads * _PARTS), helpers)

    def close(self) -> None:
        """Stop the threads."""
        self._helpers.close()

    def _scratch(self) -> npt.NDArray[np.uint8]:
        if not hasattr(self._local, "scratch"):
            self._local.scratch = np.zeros((2, self._largest), np.uint8)
        scratch: npt.NDArray[np.uint8] = self._local.scratch
        return scratch

    def _error(self, plan: Plan, memory: Memory, damage: Damage) -> CorruptionError:
        reason, target, r, chunk = damage
        run, path = plan.runs[r].tolist(), memory.paths[target]
        chunk_rows = int(memory.targets[0, target, gather.CHUNK_ROWS])
        first, rows = run[gather.POSITION] - run[gather.ROW] + chunk * chunk_rows, chunk_rows
        if not chunk_rows:
            first, rows = run[gather.POSITION], run[gather.COUNT]
        where = self._describe(path, run[gather.FILE], run[gather.STREAM], first, first + rows - 1)
        what = f"chunk {chunk}" if chunk_rows else "these rows"
        return CorruptionError(
            f"{where} cannot be read: {what}: {codec.REASONS[reason]}. The file was damaged after it was "
            "written; `diskbuffer check --repair` goes on without these steps, or restore it from a copy, or sample others"
        )
