"""Calls in threads, ahead of whoever takes what they return."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice, repeat
from typing import Any


def ahead(calls: Iterable[Callable[[], Any]], prefetch: int) -> Generator[Any, None, None]:
    """Yield what calls return, in order; so many of them are under way or done before they are asked for."""
    left = iter(calls)
    threads, waiting = ThreadPoolExecutor(prefetch, "diskbuffer-load"), deque[Future[Any]]()
    try:
        waiting.extend(threads.submit(call) for call in islice(left, prefetch))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(threads.submit(call) for call in islice(left, 1))
            yield result
    finally:  # perhaps in one of the threads, which may collect this as garbage
        threads.shutdown(wait=threading.current_thread() not in threads._threads, cancel_futures=True)


def repeated(call: Callable[[], Any], prefetch: int) -> Generator[Any, None, None]:
    """Yield what the same call returns, again and again."""
    return ahead(repeat(call), prefetch)
