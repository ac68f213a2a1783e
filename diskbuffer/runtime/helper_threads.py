"""Threads that share a short piece of work with whoever they are lent to.

A batch is decoded in a millisecond. A thread pool's futures and queues would take a tenth of that; here a helper waits for one
lock, and nobody for the helper: the work itself tells when it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from diskbuffer.runtime import forks


class _Helper(threading.Thread):
    """One thread, which does what it is handed, and then offers itself again."""

    def __init__(self, owner: Helpers) -> None:
        super().__init__(name=owner.name, daemon=True)
        self._owner = owner
        self._begin = threading.Lock()
        self._begin.acquire()
        self._work: Callable[[], None] | None = None
        self.start()

    def hand(self, work: Callable[[], None] | None) -> None:
        """Have it do some work; None ends it."""
        self._work = work
        self._begin.release()

    def run(self) -> None:
        """Wait for work, and do it."""
        while True:
            self._begin.acquire()
            if self._work is None:
                return
            self._work()
            self._work = None  # and with it the arrays that it holds
            if not self._owner.take_back(self):
                return


class Helpers:
    """Lend threads to any number of callers; made when they are needed, kept for the next."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._idle: list[_Helper] = []
        self._closed = False
        self._lock = threading.Lock()
        forks.renew(self)

    def after_fork(self) -> None:
        """Do without the threads, none of which are in the child."""
        self._idle, self._lock = [], threading.Lock()

    def lend(self, work: Callable[[], None], helpers: int) -> None:
        """Have `helpers` threads do `work`, which must not raise. Does not wait for them."""
        for _ in range(helpers):
            with self._lock:
                helper = self._idle.pop() if self._idle else None
            (helper or _Helper(self)).hand(work)

    def take_back(self, helper: _Helper) -> bool:
        """Keep a helper that is done for the next caller; return whether it is needed any longer."""
        with self._lock:
            if not self._closed:
                self._idle.append(helper)
            return not self._closed

    def close(self) -> None:
        """End the threads that are idle, and the others when they are."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for helper in idle:
            helper.hand(None)
