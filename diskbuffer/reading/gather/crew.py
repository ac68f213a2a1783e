"""Threads that gather batches in native code, and wait there for the next: see `jobs.hpp`."""

from __future__ import annotations

import contextlib

from diskbuffer.native import jobs
from diskbuffer.runtime import forks, threads


class Crew:
    """Threads, made when they are needed, and kept for the next batch.

    Attributes
    ----------
    native : jobs.Crew
        What jobs are handed over to.
    """

    def __init__(self, name: str) -> None:
        self.native, self._name, self._threads, self._closed = jobs.Crew(), name, 0, False
        self._lock = forks.new_lock()
        forks.renew(self)

    def after_fork(self) -> None:
        """Do without the threads, none of which are in the child."""
        self.native.renew()
        self._threads = 0

    def have(self, n: int) -> None:
        """Have so many threads, or as many as there can be: none once this was closed, no more where the interpreter ends."""
        if self._threads >= n:
            return
        with self._lock, contextlib.suppress(RuntimeError):
            while self._threads < n and not self._closed:
                threads.start(self.native.serve, name=self._name)
                self._threads += 1

    def close(self) -> None:
        """End the threads, once they have gathered what they were given."""
        with self._lock:
            self._closed = True
            self.native.end()
