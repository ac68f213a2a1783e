"""Threads that gather a share of a batch beside whoever asks, and wait for the next in compiled code.

A batch is decoded in a millisecond. To wake a thread through Python takes a tenth of that, as it needs the GIL before it can
begin; these wait for a condition of the C library instead. They can be called before there is work, while a batch is drawn and
planned: then they look out for it for a moment, and begin at once.

Each has a *board*, memory that it shares with its callers:

    byte 0     | state | what to gather: addresses and sizes ... | 256: a mutex | 384: a condition |
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.arrays import address_of
from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import (
    pthread_cond_init,
    pthread_cond_signal,
    pthread_cond_wait,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    sched_yield,
)
from diskbuffer.native.memory import compare_and_swap, fetch_add, int64_array, load_i64, store_i64
from diskbuffer.reading.gather.kernel import PROGRESS_FIELDS, TARGET_FIELDS, gather_parts
from diskbuffer.reading.gather.plan import RUN_FIELDS
from diskbuffer.runtime import forks

Int64 = npt.NDArray[np.int64]

# States of a helper. It goes from CALLED back to IDLE, and from WORK on to RUNNING and IDLE; callers do all else.
IDLE, CALLED, WORK, RUNNING, END = 0, 1, 2, 3, 4

_STATE, _SCRATCH, _MOST = 0, 8, 9
_TARGETS, _STORES, _N_TARGETS, _RUNS, _N_RUNS, _SOURCES, _COLUMNS, _PARTS, _PROGRESS = range(10, 19)
_MUTEX, _CONDITION, _BOARD_FIELDS = 32, 48, 64  # 128 bytes each, where systems need 40 to 64
_LOOKS = 20_000  # for work, by a helper that was called: some 150 us


@compiled
def _prepare(board: int, scratch: int, most: int) -> None:
    pthread_mutex_init(board + 8 * _MUTEX, 0)
    pthread_cond_init(board + 8 * _CONDITION, 0)
    store_i64(board + 8 * _SCRATCH, scratch)
    store_i64(board + 8 * _MOST, most)


@compiled
def _serve(board: int) -> None:
    """Be a helper, until the end."""
    state = board + 8 * _STATE
    while True:
        pthread_mutex_lock(board + 8 * _MUTEX)
        while fetch_add(state, 0) == IDLE:
            pthread_cond_wait(board + 8 * _CONDITION, board + 8 * _MUTEX)
        pthread_mutex_unlock(board + 8 * _MUTEX)
        for _ in range(_LOOKS):
            if fetch_add(state, 0) != CALLED:
                break
        compare_and_swap(state, CALLED, IDLE)  # for nothing
        if fetch_add(state, 0) == END:
            return
        if compare_and_swap(state, WORK, RUNNING):
            gather_parts(
                int64_array(
                    load_i64(board + 8 * _TARGETS),
                    (load_i64(board + 8 * _STORES), load_i64(board + 8 * _N_TARGETS), TARGET_FIELDS),
                ),
                int64_array(load_i64(board + 8 * _RUNS), (load_i64(board + 8 * _N_RUNS), RUN_FIELDS)),
                int64_array(load_i64(board + 8 * _SOURCES), (load_i64(board + 8 * _N_RUNS), load_i64(board + 8 * _COLUMNS), 2)),
                load_i64(board + 8 * _PARTS),
                load_i64(board + 8 * _SCRATCH),
                load_i64(board + 8 * _MOST),
                int64_array(load_i64(board + 8 * _PROGRESS), (PROGRESS_FIELDS,)),
            )
            compare_and_swap(state, RUNNING, IDLE)


@compiled
def _wake(board: int, state: int) -> None:
    """Put an idle helper into another state, and wake it."""
    pthread_mutex_lock(board + 8 * _MUTEX)
    if compare_and_swap(board + 8 * _STATE, CALLED, state) or compare_and_swap(board + 8 * _STATE, IDLE, state):
        pthread_cond_signal(board + 8 * _CONDITION)
    pthread_mutex_unlock(board + 8 * _MUTEX)


@compiled
def _finish(board: int) -> None:
    """Return when a helper does not, and will not, look at what it was given."""
    state = board + 8 * _STATE
    if compare_and_swap(state, WORK, IDLE):  # it has not begun
        return
    looks = 0
    while fetch_add(state, 0) == RUNNING:
        looks += 1
        if looks > 1000:
            sched_yield()


@compiled
def gather_together(
    boards: Any, targets: Any, runs: Any, sources: Any, parts: int, scratch: int, most: int, progress: Any
) -> None:
    """Gather a batch that is split into `parts`, beside helpers; when this returns, none of them looks at it any more.

    One call, so that nothing, not even a Ctrl-C, comes between and frees what helpers read.
    """
    for board in boards:
        store_i64(board + 8 * _TARGETS, targets.ctypes.data)
        store_i64(board + 8 * _STORES, targets.shape[0])
        store_i64(board + 8 * _N_TARGETS, targets.shape[1])
        store_i64(board + 8 * _RUNS, runs.ctypes.data)
        store_i64(board + 8 * _N_RUNS, runs.shape[0])
        store_i64(board + 8 * _SOURCES, sources.ctypes.data)
        store_i64(board + 8 * _COLUMNS, sources.shape[1])
        store_i64(board + 8 * _PARTS, parts)
        store_i64(board + 8 * _PROGRESS, progress.ctypes.data)
        _wake(board, WORK)
    gather_parts(targets, runs, sources, parts, scratch, most, progress)
    for board in boards:
        _finish(board)


class _Helper(threading.Thread):
    """One thread, and its board."""

    def __init__(self, name: str, largest_chunk: int) -> None:
        super().__init__(name=name, daemon=True)
        self._fields = np.zeros(_BOARD_FIELDS, np.int64)
        self._scratch = np.zeros(2 * largest_chunk + 1, np.uint8)
        self.board = address_of(self._fields)
        _prepare(self.board, address_of(self._scratch), largest_chunk)
        self.start()

    def run(self) -> None:
        """Help, until the end."""
        _serve(self.board)


class Helpers:
    """Lend helpers to any number of callers; made when they are needed, kept for the next.

    Parameters
    ----------
    name : str
        Of the threads.
    largest_chunk : int
        Bytes of a chunk that they may have to decode, at most.
    """

    def __init__(self, name: str, largest_chunk: int) -> None:
        self._name, self._largest = name, largest_chunk
        self._idle: list[_Helper] = []
        self._closed = False
        self._lock = forks.new_lock()
        forks.renew(self)

    def after_fork(self) -> None:
        """Do without the threads, none of which are in the child."""
        self._idle = []

    def call(self, helpers: int) -> None:
        """Have idle helpers look out for work that comes soon; nothing happens where it does not."""
        for helper in self._idle[-helpers:]:
            _wake(helper.board, CALLED)

    def gather(self, helpers: int, *what: Any) -> None:
        """Call `gather_together` with so many helpers."""
        with self._lock:
            lent, self._idle = self._idle[-helpers:], self._idle[:-helpers]
        try:
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and there are no more threads
                while len(lent) < helpers:
                    lent.append(_Helper(self._name, self._largest))
            gather_together(np.array([helper.board for helper in lent], np.int64), *what)
        finally:
            with self._lock:
                self._idle += lent
            if self._closed:
                self.close()

    def close(self) -> None:
        """End the threads that are idle, and the others when they are."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for helper in idle:
            _wake(helper.board, END)
