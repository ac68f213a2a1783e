"""Processes that take turns in being timed: memory allocators, threads and compiled code do not meet there."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import Any, Self

import numpy as np

PAUSE = 0.005  # seconds between turns: until threads that wait in a loop have gone to sleep
SLOW, FEW = 10, 3  # who takes so many times as long as the fastest has so many turns, and no more

_made: Any = None  # a worker's object, in its process


class Worker:
    """A process that makes an object, with `make` and its arguments, and calls its methods.

    It begins at once, beside the caller: see `ready`. Errors are raised here as they were there.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._process = _process()
        self._making = self._process.submit(_make, make, arguments)

    def ready(self) -> None:
        """Wait until it has made its object."""
        self._making.result()

    def begin(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method, without waiting for what it returns."""
        self.ready()
        return self._process.submit(_call, method, arguments)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what a method returns."""
        return self.begin(method, *arguments).result()

    def time(self, method: str, *arguments: Any, calls: int, seconds: float) -> float:
        """Return the seconds of one call: the median of several, fewer once they took longer than `seconds`.

        Where the object `prefetches` it is the mean: with work between the calls no single call tells what one costs.
        """
        self.ready()
        return self._process.submit(_time, method, arguments, calls, seconds).result()

    def close(self) -> None:
        """Close the object, if it can be, and end the process."""
        if self._making.exception() is None:
            self._process.submit(_close)
        self._process.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@contextlib.contextmanager
def started(workers: dict[str, Worker]) -> Iterator[dict[str, Worker]]:
    """Wait until all have made their objects, and end them afterwards."""
    try:
        for worker in workers.values():
            worker.ready()
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own; return what it returns."""
    with _process() as process:
        return process.submit(function, *arguments).result()


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _be_quiet)


def _be_quiet() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def _make(make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    global _made
    _made = make(*arguments)


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_made, method)(*arguments)


def _close() -> None:
    if hasattr(_made, "close"):
        _made.close()


def _time(method: str, arguments: tuple[Any, ...], calls: int, seconds: float) -> float:
    """Time calls in a row, after some that bring back what the others' turns have driven out of the caches."""
    call = getattr(_made, method)
    first = time.perf_counter()
    for _ in range(max(2, calls // 4)):
        result = call(*arguments)
        if time.perf_counter() - first > seconds / 4:
            break
    taken: list[float] = []
    first = time.perf_counter()
    while len(taken) < calls and (not taken or time.perf_counter() - first < seconds):
        begin = time.perf_counter()
        result = call(*arguments)
        taken.append(time.perf_counter() - begin)
        del result
    return float(np.mean(taken) if getattr(_made, "prefetches", False) else np.median(taken))


def in_turns(
    workers: Mapping[str, Worker], method: str, *arguments: Any, rounds: int, calls: int = 16, seconds: float = 0.06
) -> dict[str, list[float]]:
    """Time a method of each, in turn, for `rounds`; return the seconds of a call in each round, by name.

    A worker that is slow has the first turns alone, and shorter lists come of it.
    """
    found: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(rounds):
        fastest = min((float(np.median(times)) for times in found.values() if times), default=0.0)
        for name, worker in workers.items():
            if number >= FEW and float(np.median(found[name])) > SLOW * fastest:
                continue
            time.sleep(PAUSE)
            found[name].append(worker.time(method, *arguments, calls=calls, seconds=seconds))
    return found
