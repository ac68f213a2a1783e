"""What is done again and again beside the program: by one thread of the process, which there is as long as anything is wanted."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import weakref
from collections.abc import Callable

from diskbuffer.runtime import forks, threads
from diskbuffer.runtime.signals import Uninterrupted

Work = Callable[[], None]


class Periodic:
    """Call methods again and again, one at a time. Their objects are referred to weakly: of one that is gone none is called."""

    def __init__(self) -> None:
        self._forget()
        forks.renew(self)

    def _forget(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._due: dict[weakref.WeakMethod[Work], tuple[float, float]] = {}  # when next, and how often: seconds

    def begin(self, work: Work, seconds: float) -> None:
        """Call a method, which raises nothing, every so many seconds: first at a random moment, so that processes take turns."""
        first = time.monotonic() + random.SystemRandom().uniform(0, seconds)
        with Uninterrupted(), self._changed, contextlib.suppress(RuntimeError):  # the interpreter ends, and has no new threads
            self._due[weakref.WeakMethod(work)] = first, seconds
            if self._thread is None:
                self._thread = threads.start(self._run, name="diskbuffer-flush")
            self._changed.notify_all()

    def end(self, work: Work) -> None:
        """Call a method no longer; if that was the last one, return when the thread has ended."""
        with Uninterrupted():
            with self._changed:
                self._due.pop(weakref.WeakMethod(work), None)
                thread = None if self._due else self._thread
                if thread is not None:
                    self._thread = None
                self._changed.notify_all()
            if thread is not None and thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._thread is not threading.current_thread():
                    return
                method, (when, every) = min(self._due.items(), key=lambda entry: entry[1])
                if (seconds := when - time.monotonic()) > 0:
                    self._changed.wait(seconds)
                    continue
                work = method()
                if work is None:
                    del self._due[method]
                    self._thread = self._thread if self._due else None
                    continue
                self._due[method] = time.monotonic() + every, every
            work()
            del work  # or its object would stay

    def after_fork(self) -> None:
        """In the child: there is no thread, and nothing to do."""
        self._forget()


periodic = Periodic()
