"""Threads that gather a share of a batch beside whoever asks, and wait for the next in native code: see `helper_threads.hpp`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np

from diskbuffer.native import gather
from diskbuffer.runtime import forks


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
        self._idle: list[gather.Helper] = []
        self._closed = False
        self._lock = forks.new_lock()
        forks.renew(self)

    def after_fork(self) -> None:
        """Do without the threads, none of which are in the child."""
        self._idle = []

    def call(self, helpers: int) -> None:
        """Make idle helpers spin for work that comes soon; nothing happens where it does not."""
        for helper in self._idle[-helpers:]:
            helper.call()

    @contextlib.contextmanager
    def lend(self, helpers: int) -> Iterator[list[gather.Helper]]:
        """Lend so many helpers, or as many as there can be."""
        with self._lock:
            lent, self._idle = self._idle[-helpers:], self._idle[:-helpers]
        try:
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and there are no more threads
                while len(lent) < helpers:
                    lent.append(self._start())
            yield lent
        finally:
            with self._lock:
                self._idle += lent
            if self._closed:
                self.close()

    def _start(self) -> gather.Helper:
        helper = gather.Helper(np.zeros((2, self._largest), np.uint8))
        threading.Thread(target=helper.serve, name=self._name, daemon=True).start()
        return helper

    def close(self) -> None:
        """End the threads that are idle, and the others when they are."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for helper in idle:
            helper.end()
