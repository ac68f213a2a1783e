"""Forks of the process: a child has the memory of its parent as it was, and one thread alone.

A lock that another thread held is held forever in the child, and what it guarded is half done. So a fork waits until no thread is
at a store, for a while, and the child gets new locks, and threads when they are needed.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol

PATIENCE = 5.0  # seconds that a fork waits for a store; a flush may take longer


class Still(Protocol):
    """What is to hold still while the process forks."""

    lock: threading.RLock

    def before_fork(self) -> None:
        """Take the lock."""

    def after_fork(self, *, child: bool) -> None:
        """Release it, or, in the child, make a new one."""


class Renewed(Protocol):
    """What is to do something in the child."""

    def after_fork(self) -> None:
        """Forget locks and threads."""


_still: weakref.WeakSet[Any] = weakref.WeakSet()
_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()  # of the sets
_held: list[Still] = []


def hold_still(store: Still) -> None:
    """Have a store hold still in forks, as long as it lives."""
    with _lock:
        _still.add(store)


def renew(thing: Renewed) -> None:
    """Have something be told in the child of every fork, as long as it lives."""
    with _lock:
        _renewed.add(thing)


def _before() -> None:
    _lock.acquire()
    _held[:] = sorted(_still, key=lambda store: id(store.lock))  # the order in which mixtures take them, too
    for store in _held:
        store.before_fork()


def _in_parent() -> None:
    for store in _held:
        store.after_fork(child=False)
    _held.clear()
    _lock.release()


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for store in _held:
        store.after_fork(child=True)
    _held.clear()
    for thing in list(_renewed):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
