"""Threads that share a short piece of work with their caller.

A batch is decoded in a millisecond. A thread pool's futures and queues would take a tenth of that; here a helper waits for one
lock, and its caller for another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class _Helper(threading.Thread):
    """One thread, which does what it is handed."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._begin, self._done = threading.Lock(), threading.Lock()
        self._begin.acquire()
        self._done.acquire()
        self._work: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self.start()

    def hand(self, work: Callable[[], None] | None) -> None:
        """Have it do some work; None ends it."""
        self._work = work
        self._begin.release()

    def wait(self) -> BaseException | None:
        """Wait until that is done; return what went wrong."""
        self._done.acquire()
        error, self._error = self._error, None
        return error

    def run(self) -> None:
        """Wait for work, and do it."""
        while True:
            self._begin.acquire()
            if self._work is None:
                return
            try:
                self._work()
            except BaseException as error:  # noqa: BLE001  it is the caller's
                self._error = error
            self._work = None  # and with it the arrays that it holds
            self._done.release()


class Helpers:
    """Lend threads to any number of callers; made when they are needed, kept for the next."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[_Helper] = []
        self._closed = False

    def share(self, work: Callable[[], None], helpers: int) -> None:
        """Do `work` in this thread and in `helpers` others, and return when all are done; raise what went wrong in any."""
        lent = [self._take() for _ in range(helpers)]
        for helper in lent:
            helper.hand(work)
        try:
            work()
        finally:
            errors = [error for helper in lent if (error := helper.wait())]
            self._idle += lent
            if self._closed:
                self.close()
        if errors:
            raise errors[0]

    def _take(self) -> _Helper:
        try:
            return self._idle.pop()
        except IndexError:
            return _Helper(self._name)

    def close(self) -> None:
        """End the threads that are idle, and the others when they are."""
        self._closed = True
        while self._idle:
            self._take_idle()

    def _take_idle(self) -> None:
        try:
            self._idle.pop().hand(None)
        except IndexError:  # another caller was faster
            return
