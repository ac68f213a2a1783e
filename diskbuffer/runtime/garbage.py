"""Closing what nothing refers to any more: at once, or in another thread where closing could wait for itself.

The garbage collector runs finalizers wherever memory is allocated, in any thread, also inside of what holds a lock that closing
needs: a store's, or one of Python's own, as that of `concurrent.futures`.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any

_collecting = False
_running: list[Any] = []  # a lock for each thread that closes something, which is released when it has


def _note(phase: str, _info: Mapping[str, int]) -> None:
    global _collecting
    _collecting = phase == "start"


gc.callbacks.append(_note)


def close_dropped(close: Callable[[], None], *, elsewhere: bool = False) -> None:
    """Call `close`, which must not raise, from a finalizer.

    In the main thread it is called at once, as a script expects it of ``del``, but not while garbage is collected. Else, and with
    `elsewhere`, another thread does; it is started without any lock of Python's.
    """
    if not elsewhere and not _collecting and threading.current_thread() is threading.main_thread():
        close()
        return
    closing = _thread.allocate_lock()
    closing.acquire()
    _running.append(closing)
    _thread.start_new_thread(_close, (close, closing))


def _close(close: Callable[[], None], closing: Any) -> None:
    try:
        close()
    finally:
        _running.remove(closing)
        closing.release()


def wait_for_dropped(seconds: float = -1) -> bool:
    """Wait until what was dropped is closed, for so many seconds each, and return whether there was any."""
    running = [*_running]
    for closing in running:
        if closing.acquire(timeout=seconds):
            closing.release()
    return bool(running)


atexit.register(wait_for_dropped)  # the threads would not be waited for otherwise
