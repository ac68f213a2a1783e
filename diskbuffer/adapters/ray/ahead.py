"""Batches of several shards ahead of the learner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


def ahead(make: Callable[[], Any], prefetch: int) -> Generator[Any, None, None]:
    """Yield what a function returns, of which so many calls are under way or done before they are asked for."""
    with ThreadPoolExecutor(prefetch, "diskbuffer-load") as threads:
        waiting: deque[Future[Any]] = deque(threads.submit(make) for _ in range(prefetch))
        try:
            while True:
                found = waiting.popleft().result()
                waiting.append(threads.submit(make))
                yield found
        finally:
            for future in waiting:
                future.cancel()
