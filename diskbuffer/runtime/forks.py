"""Forks of the process: a child has the memory of its parent as it was, and one thread alone.

A lock that another thread held is held forever in the child, and what it guarded is half done. So a fork waits for each store's
lock, which is held for a draw or a plan, and the child gets new locks, and threads when they are needed. Opening the stores
again in the child, at their first use, would not do without: samplers and loaders change under the same locks.

Python prints what is raised in the functions that it calls around a fork, and goes on. So signals are put off until the fork is
over: a Ctrl-C would be lost, and a lock that was just taken be held forever.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import Any, Protocol

from diskbuffer.runtime.signals import PutOff

_FORK_SECONDS = 5.0  # that a fork waits for all locks; what holds one for so long is given up on


class Renewed(Protocol):
    """What does something in the child."""

    def after_fork(self) -> None:
        """Forget locks and threads."""


class Paused(Renewed, Protocol):
    """What pauses while the process forks."""

    lock: threading.RLock

    def before_fork(self) -> None:
        """Note what the child has to know; the lock is held."""


_paused: weakref.WeakSet[Any] = weakref.WeakSet()
_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.RLock()  # of the sets; what is collected as garbage meanwhile may need it, too
_held: list[Any] = []
_put_off: list[PutOff] = []


def pause(store: Paused) -> None:
    """Pause a store during forks, and have it renewed in the child, as long as it lives."""
    with _lock:
        _paused.add(store)
        _renewed.add(store)


def renew(thing: Renewed) -> None:
    """Renew something in the child of every fork, as long as it lives."""
    with _lock:
        _renewed.add(thing)


def new_lock(*, reentrant: bool = False) -> Any:
    """Return a lock that nobody holds in the child of a fork, whoever held it in the parent."""
    lock = threading.RLock() if reentrant else threading.Lock()
    with _lock:
        _locks.add(lock)
    return lock


def _before() -> None:
    signals = PutOff()
    _lock.acquire()
    _held.append(_lock)
    _put_off.append(signals)
    until = time.monotonic() + _FORK_SECONDS
    for store in sorted(_paused, key=lambda store: id(store.lock)):  # the order in which mixtures take them, too
        if store.lock.acquire(timeout=max(0.0, until - time.monotonic())):
            _held.append(store.lock)
        with contextlib.suppress(OSError):  # the child then has to refresh
            store.before_fork()


def _in_parent() -> None:
    signals, held = _put_off.pop(), _held[::-1]
    _held.clear()  # before another thread that forks can put its own there
    for lock in held:
        lock.release()
    signals.end(_in_parent.__code__)


def _in_child() -> None:
    for lock in [_lock, *_locks]:
        lock._at_fork_reinit()
    _held.clear()
    for thing in list(_renewed):
        thing.after_fork()
    _put_off.pop().forget()  # they were the parent's


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
