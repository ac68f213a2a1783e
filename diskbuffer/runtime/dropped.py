"""Closing what nothing refers to any more, wherever that is found out.

The garbage collector runs at any instant of a thread, also where that holds a lock, such as one of `concurrent.futures`, which
closing takes, too, and would wait for. So it is done in another thread then.
"""

from __future__ import annotations

import _thread
import gc
import os
import threading
import time
from collections.abc import Callable

_WAIT_SECONDS = 10.0  # for what other threads close
_collecting: int | None = None  # the thread that collects garbage, if one does
_unclosed: set[_thread.LockType] = set()  # locks that are released once something is closed


def _note_collection(phase: str, _: object) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else None


gc.callbacks.append(_note_collection)
os.register_at_fork(after_in_child=_unclosed.clear)


def close_dropped(close: Callable[[], object], *, is_busy: bool) -> None:
    """Close something here and now; in another thread where this one `is_busy` with it, or collects garbage."""
    here = threading.get_ident()
    if here == threading.main_thread().ident and here != _collecting and not is_busy:
        close()
        return
    done = _thread.allocate_lock()
    done.acquire()
    _unclosed.add(done)

    def close_and_tell() -> None:
        try:
            close()
        finally:
            _unclosed.discard(done)
            done.release()

    thread = threading.Thread(target=close_and_tell, name="diskbuffer-close", daemon=False)
    _thread.start_new_thread(thread.start, ())  # which takes a lock, too


def wait_for_closing() -> bool:
    """Wait for what other threads are closing, for some seconds; return whether there was anything."""
    locks, until = list(_unclosed), time.monotonic() + _WAIT_SECONDS
    for lock in locks:
        if lock.acquire(timeout=max(0.0, until - time.monotonic())):
            lock.release()
    return bool(locks)
