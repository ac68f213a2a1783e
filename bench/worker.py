"""Processes that take turns in being timed: memory allocators, threads and compiled code do not meet there."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import numpy as np

PAUSE = 0.005  # seconds between turns: until threads that wait in a loop have gone to sleep
SLOW, FEW = 10, 3  # who takes so many times as long as the fastest has so many turns, and no more


class WorkerError(RuntimeError):
    """What was asked of a worker failed there; its traceback is the message."""


class Worker:
    """A process that makes an object and calls its methods.

    Parameters
    ----------
    make : callable
        Called there, with `arguments`; a class, say. It begins at once, beside the caller: see `ready`.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._process.start()
        theirs.close()
        self._ready = False

    def ready(self) -> None:
        """Wait until it has made its object.

        Raises
        ------
        WorkerError
            It could not.
        """
        if not self._ready:
            self._answer()
            self._ready = True

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what a method returns."""
        return self._do("ask", method, arguments)

    def time(self, method: str, *arguments: Any, calls: int, seconds: float) -> float:
        """Return the seconds of one call: the median of several, fewer once they took longer than `seconds`.

        Where the object `prefetches` it is the mean: with work between the calls no single call tells what one costs.
        """
        taken: float = self._do("time", method, arguments, calls, seconds)
        return taken

    def _do(self, *request: Any) -> Any:
        self.ready()
        self._pipe.send(request)
        return self._answer()

    def _answer(self) -> Any:
        try:
            failed, answer = self._pipe.recv()
        except EOFError as error:
            raise WorkerError("the process has died") from error
        if failed:
            raise WorkerError(answer)
        return answer

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

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


def alone(make: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own; return what it returns."""
    with Worker(_Call, make, arguments) as worker:
        return worker.ask("call")


class _Call:
    def __init__(self, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._make, self._arguments = make, arguments

    def call(self) -> Any:
        return self._make(*self._arguments)


def _serve(pipe: Connection, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Make the object, then answer requests until there are no more."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        made = make(*arguments)
    except BaseException:  # noqa: BLE001  told to who asked
        pipe.send((True, traceback.format_exc()))
        return
    pipe.send((False, None))
    while True:
        try:
            what, method, given, *rest = pipe.recv()
        except (EOFError, OSError):
            break
        try:
            call = getattr(made, method)
            answer = call(*given) if what == "ask" else _timed(call, given, *rest, loop=getattr(made, "prefetches", False))
            pipe.send((False, answer))
        except BaseException:  # noqa: BLE001  told to who asked
            pipe.send((True, traceback.format_exc()))
    if hasattr(made, "close"):
        made.close()


def _timed(call: Callable[..., Any], given: Sequence[Any], calls: int, seconds: float, *, loop: bool) -> float:
    """Time calls in a row, after some that bring back what the others' turns have driven out of the caches."""
    first = time.perf_counter()
    for _ in range(max(2, calls // 4)):
        result = call(*given)
        if time.perf_counter() - first > seconds / 4:
            break
    taken: list[float] = []
    first = time.perf_counter()
    while len(taken) < calls and (not taken or time.perf_counter() - first < seconds):
        begin = time.perf_counter()
        result = call(*given)
        taken.append(time.perf_counter() - begin)
        del result
    return float(np.mean(taken) if loop else np.median(taken))


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
