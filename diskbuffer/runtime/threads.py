"""Threads, and what they are asked for, while a Ctrl-C may come to the main thread at any instant.

`threading.Condition`, by which threads begin and `concurrent.futures` hands over what they return, takes its lock in a function
of Python. What a signal's handler raises there leaves the lock held forever, and the other thread waits for it. So signals are
put off meanwhile, and looked for between two looks at what is waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from diskbuffer.runtime.signals import Interruptible, Uninterrupted, look

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor  # slow to import, and most processes begin no pool

T = TypeVar("T")

LOOK_SECONDS = 0.05  # after which one who waits looks for signals


def start(work: Callable[..., object], *arguments: Any, name: str) -> threading.Thread:
    """Begin a thread; a RuntimeError where the interpreter ends, and has no new ones."""
    with Uninterrupted():
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        thread.start()
    return thread


def submit(pool: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
    """Have a pool do something; a RuntimeError where the interpreter ends, and has no new threads."""
    with Uninterrupted():
        return pool.submit(work)


def result(future: Future[T]) -> T:
    """Wait for what a thread does; return or raise what comes of it."""
    from concurrent.futures import wait

    with Interruptible():
        while not wait([future], LOOK_SECONDS).done:
            look()
        return future.result()


def do_all(
    work: Callable[[T], object], items: Iterable[T], threads: int, name: str, report: Callable[[T], object] | None = None
) -> None:
    """Do something with each of some items, in threads; `report` is called here with each, in order, once it is done.

    After an error, none is begun any more. A RuntimeError where the interpreter ends, and has no new threads.
    """
    from concurrent.futures import ThreadPoolExecutor

    with Interruptible(), ThreadPoolExecutor(threads, name) as pool:
        each = [(item, pool.submit(work, item)) for item in items]
        try:
            for item, future in each:
                result(future)
                if report is not None:
                    report(item)
        finally:
            for _, future in each:
                future.cancel()
