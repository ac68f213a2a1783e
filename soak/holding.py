"""Threads held where they let others go first: at file operations without a store's lock, and before and after they have it.

Between a look and the act that follows from it a thread can lose its processor for any time. On a machine that is not busy it
hardly ever does, so that races stay hidden; here the library's own threads sleep at such places, at random.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.support.tracing import CONTENTS, NAMES, SYNCS

_OPERATIONS = (*NAMES, *CONTENTS, *SYNCS, "close", "stat", "lstat", "fstat")


class Held:
    """Have threads other than the one that enters sleep at file operations, and before they get a store's lock.

    Parameters
    ----------
    seed : int
    often : float
        How often, of all such places; 0 never.
    longest : float
        Seconds.
    """

    def __init__(self, seed: int, often: float, longest: float = 0.004) -> None:
        self._rng, self._often, self._longest = random.Random(seed), often, longest
        self._owns = threading.local()  # how many locks a thread has: while it does, nobody can come in between
        self._real: dict[str, Callable[..., Any]] = {}
        self._thread = threading.current_thread()

    def pause(self) -> None:
        """Sleep, perhaps, if this is not the thread that gave the order."""
        if threading.current_thread() is self._thread or self._locks():
            return
        if self._rng.random() < self._often:
            time.sleep(self._rng.random() * self._longest)

    def count(self, locks: int) -> None:
        """Count the locks that this thread has."""
        self._owns.locks = self._locks() + locks

    def _locks(self) -> int:
        found: int = getattr(self._owns, "locks", 0)
        return found

    def at_lock_of(self, buffer: Any) -> None:
        """Hold threads at the lock of a buffer's store, too."""
        if self._often:
            store: Any = buffer._store
            store.lock = _Lock(store.lock, self)

    def __enter__(self) -> Self:
        if self._often:
            self._real = {name: getattr(os, name) for name in _OPERATIONS}
            for name, real in self._real.items():
                setattr(os, name, self._pausing(real))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def _pausing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            self.pause()
            found = real(*args, **keywords)
            self.pause()
            return found

        return call


class _Lock:
    """A lock at which threads pause before they take it."""

    def __init__(self, real: Any, held: Held) -> None:
        self._real, self._held = real, held

    def acquire(self, *args: Any, **keywords: Any) -> bool:
        self._held.pause()
        taken = bool(self._real.acquire(*args, **keywords))
        self._held.count(1 if taken else 0)
        return taken

    def release(self) -> None:
        self._held.count(-1)
        self._real.release()
        self._held.pause()

    def _is_owned(self) -> bool:
        return bool(self._real._is_owned())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
