"""Bring planned batches into their memory, split over threads: at once, or ahead of who asks for them."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.index.index import Index
from diskbuffer.native.jobs import Job
from diskbuffer.native.sampling import Philox
from diskbuffer.reading.gather import structs
from diskbuffer.reading.gather.crew import Crew
from diskbuffer.reading.gather.targets import Memory
from diskbuffer.reading.gather.thread_count import ThreadCount
from diskbuffer.runtime.threads import LOOK_SECONDS
from diskbuffer.store.format import codec

T = TypeVar("T")
Int64 = npt.NDArray[np.int64]
Describe = Callable[[str, int, int, int, int], str]
Share = tuple["Gatherer", Memory]  # of a job: whose store it is from, and the memory that it goes to
_PARTS = 16  # into which a batch is split, a thread: who is done first takes the next
_KINDS = 64  # of batches, for which it is known how many threads are best
_COLD = 16  # a batch is cold if more than one in so many of its runs had to wait for the disk
_LOOK = 8  # batches after which a disk that is not waited for is taken for fast; of small ones, whose faults are looked at


_PAGE = resource.getpagesize()


def _major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def default_threads() -> int:
    """Choose how many threads decode a batch: the machine's cores, eight at most."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, usable)


class Gatherer:
    """Run jobs, in `threads` threads; any number of callers at once.

    Parameters
    ----------
    largest_chunk : int
        Bytes; each thread has a scratch of twice as much.
    threads : int
    describe : callable
        ``describe(column, slot, stream, first, last)`` names rows, from position `first` to `last`, for errors.
    """

    def __init__(self, largest_chunk: int, threads: int, describe: Describe) -> None:
        self._describe, self.largest = describe, largest_chunk
        self.threads = threads
        self._crew = Crew("diskbuffer-gather")
        self._last_thread_count: ThreadCount | None = None
        self._local = threading.local()
        self._cold = True  # until seen otherwise: a store that was just opened may not be in the page cache
        self._warm = 0  # batches in a row that did not wait for the disk
        self._thread_counts: dict[Hashable, ThreadCount] = {}  # of batches of a kind

    def call_threads(self) -> None:
        """Wake threads for a batch that is about to be planned, if the last one was gathered in several."""
        thread_count = self._last_thread_count
        if thread_count is not None and thread_count.best > 1:
            self._crew.native.call(thread_count.best - 1)

    def run(self, job: Job, shares: Sequence[Share]) -> None:
        """Fill the memory of all shares of a job, in as many threads as are fastest. Blocks, without the GIL."""
        thread_count = self._last_thread_count = self._thread_count(shares)
        threads, begun = thread_count.choose(), time.perf_counter()
        if threads == 1:
            job.run(self._scratch(_largest(shares)), self._page_bytes)
            self._note(job.waits > job.runs // _COLD)
        else:
            self.submit(job, shares, threads - 1, urgent=True)
            self.wait(job)
        thread_count.note(threads, time.perf_counter() - begun)
        raise_damage(job, shares)

    def submit(self, job: Job, shares: Sequence[Share], threads: int, *, urgent: bool = False) -> None:
        """Hand a job over to so many threads, and go on; one that is `urgent` comes before those that were handed over before."""
        self._crew.have(threads)
        parts = (threads + 1) * _PARTS if threads else 1
        job.submit(self._crew.native, _largest(shares), parts, threads, urgent, self._page_bytes)

    @property
    def _page_bytes(self) -> int:
        """As jobs take it: those of a page, where the disk is to be asked for all pages first."""
        return _PAGE if self._cold else 0

    def wait(self, job: Job) -> None:
        """Wait for a job that was handed over here, and help with it."""
        while not job.wait(self._scratch(job.largest), LOOK_SECONDS):
            pass  # signals are handled
        self._note(job.waits > job.runs // _COLD)

    def _note(self, has_waited: bool) -> None:
        """Note whether a batch has waited for the disk; some file systems do not tell of what they read when they are asked."""
        self._warm = 0 if has_waited else self._warm + 1
        self._cold = has_waited or (self._cold and self._warm < _LOOK)

    def draw(self, index: Index, mapped: Int64, memory: Memory, random: Philox, before: int, rows: int, ids: Int64) -> bool:
        """Draw, plan and gather steps in this thread; fill in their ids, and return whether all could be read."""
        job = Job()
        if not job.draw(index.table, mapped, memory.targets, random, before, rows, index.segment_rows, ids):
            return False
        return job.run(self._scratch(self.largest))

    def quickly(self, size: int, read: Callable[..., T], *what: Any) -> T | None:
        """Read so many samples without a plan; None where the disk may have to be waited for."""
        if self._cold:
            return None
        self._warm += 1
        if self._warm % _LOOK != 1:  # the first after those that asked is looked at
            return read(*what)
        before = _major_faults()
        result = read(*what)
        self._note(_major_faults() - before > size // _COLD)
        return result

    def _thread_count(self, shares: Sequence[Share]) -> ThreadCount:
        memory = shares[0][1]
        kind = memory.paths, memory.nbytes, len(shares)
        thread_count = self._thread_counts.get(kind)
        if thread_count is None:
            if len(self._thread_counts) >= _KINDS:  # such as the episodes of somebody who reads one after the other
                self._thread_counts = {}
            thread_count = self._thread_counts[kind] = ThreadCount(self.threads)
        return thread_count

    def close(self) -> None:
        """Stop the threads."""
        self._crew.close()

    def _scratch(self, largest: int) -> npt.NDArray[np.uint8]:
        scratch: npt.NDArray[np.uint8] | None = getattr(self._local, "scratch", None)
        if scratch is None or scratch.shape[1] < largest:
            scratch = self._local.scratch = np.zeros((2, largest), np.uint8)
        return scratch

    def error(self, memory: Memory, reason: int, target: int, run: tuple[int, ...], chunk: int) -> CorruptionError:
        """Return the error of a chunk that cannot be read."""
        chunk_rows = int(memory.targets[0, target, structs.CHUNK_ROWS])
        first, rows = run[structs.POSITION] - run[structs.ROW] + chunk * chunk_rows, chunk_rows
        if not chunk_rows:
            first, rows = run[structs.POSITION], run[structs.COUNT]
        where = self._describe(memory.paths[target], run[structs.FILE], run[structs.STREAM], first, first + rows - 1)
        what = f"chunk {chunk}" if chunk_rows else "these rows"
        return CorruptionError(
            f"{where} cannot be read: {what}: {codec.REASONS[reason]}. The file was damaged after it was "
            "written; `diskbuffer check --repair` goes on without these steps, or restore it from a copy, or sample others"
        )


def _largest(shares: Sequence[Share]) -> int:
    return max([gatherer.largest for gatherer, _ in shares])


def raise_damage(job: Job, shares: Sequence[Share]) -> None:
    """Raise a CorruptionError where a chunk of a job that is over cannot be read."""
    damage = job.damage
    if damage is not None:
        gatherer, memory = shares[damage[0]]
        raise gatherer.error(memory, *damage[1:])
