"""Prefetching: threads fill batches ahead of the learner, and send them to a device on a stream of their own.

What is in a batch is decided by `Source.begin`, in the learner's thread, and always as many batches ahead, so that it does not
depend on how fast threads are. They fill them, and may finish in any order; the learner gets them in theirs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic

import torch

from diskbuffer.arguments.inputs import device_of
from diskbuffer.errors import CorruptionError, NotAStoreError
from diskbuffer.loading.source import B, Source
from diskbuffer.reading.batches.pool import ArraysPool
from diskbuffer.reading.delivery import Delivery, Transform, delivery_to, transform_of
from diskbuffer.runtime.signals import PutOff

if TYPE_CHECKING:
    from diskbuffer.reading.batches.base import Batch


class Loader(Generic[B]):
    """Iterate over batches. Made by `ReplayBuffer.loader` and `ReplayBuffer.batches`.

    Every ``for`` loop over it starts threads, and leaving the loop stops them. On the CPU a batch is memory of the loader's
    ring, which is used again only when nobody holds a tensor of it any more: keep batches as you like. On a device a batch is a
    copy that belongs to you.

    Attributes
    ----------
    waited : float
        Seconds that the learner has waited for batches, in all loops together.
    nbytes_sent : int
        Bytes that were copied to the device, in all loops together; frames that ``obs`` and ``next_obs`` share count once.
    """

    def __init__(
        self,
        source: Callable[[], Source[B]],
        device: torch.device | str | None,
        prefetch: int,
        threads: int,
        transform: Transform | None = None,
    ) -> None:
        self._source, self._prefetch, self._threads = source, prefetch, min(threads, prefetch)
        self._device, self._transform = device_of(device), transform_of(transform)
        self.waited, self.nbytes_sent = 0.0, 0

    def __iter__(self) -> Iterator[Batch]:
        delivery = delivery_to(self._device, self._transform, ArraysPool(kept=8), aside=True)
        source = self._source()
        source.wait()
        run = _Run(source, delivery, self._prefetch, self._threads)
        try:
            while True:
                begin = time.perf_counter()
                batch = run.take()
                self.waited += time.perf_counter() - begin
                self.nbytes_sent, delivery.nbytes = self.nbytes_sent + delivery.nbytes, 0
                if batch is None:
                    return
                yield batch
                del batch
        finally:
            signals = PutOff()  # where Python frees a loop that was left, what a handler raises is printed, and lost
            try:
                run.stop()
            finally:
                signals.end(sys._getframe().f_code)


class _Run(Generic[B]):
    """The threads of one loop."""

    def __init__(self, source: Source[B], delivery: Delivery, ahead: int, threads: int) -> None:
        self._source, self._delivery = source, delivery
        self._changed = threading.Condition()
        self._begun: deque[B] = deque()  # in the order of their delivery
        self._waiting: deque[tuple[int, B]] = deque()  # for a thread
        self._ready: dict[int, Any] = {}
        self._number = self._taken = 0
        self._ended = self._stopped = False
        self._threads = self._make_threads(threads)
        self._process = os.getpid()
        try:
            for _ in range(ahead):
                self._begin()
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.stop()
            raise

    def _make_threads(self, threads: int) -> list[threading.Thread]:
        return [threading.Thread(target=self._work, name="diskbuffer-load", daemon=True) for _ in range(threads)]

    def _resume_in_fork(self) -> None:
        """In a fork, which has none of the threads: hand new ones what was not ready."""
        self._process, self._changed = os.getpid(), threading.Condition()
        unready = [(n, begun) for n, begun in enumerate(self._begun, self._taken) if n not in self._ready]
        self._waiting = deque((n, begun) for n, begun in unready if begun.request is not None)
        self._ready |= {n: None for n, begun in unready if begun.request is None}
        self._threads = self._make_threads(len(self._threads))
        for thread in self._threads:
            thread.start()

    def _begin(self) -> None:
        if self._ended:
            return
        begun = self._source.begin()
        if begun is None:
            self._ended = True
            return
        with self._changed:
            self._begun.append(begun)
            if begun.request is None:
                self._ready[self._number] = None
            else:
                self._waiting.append((self._number, begun))
                self._changed.notify()
            self._number += 1

    def take(self) -> Batch | None:
        """Return the next batch, when it is there, or None after the last; raise what a thread raised in its place."""
        if self._process != os.getpid():
            self._resume_in_fork()
        self._source.wait()
        self._begin()
        if not self._begun:
            return None
        with self._changed:
            self._changed.wait_for(lambda: self._taken in self._ready)
            outcome = self._ready.pop(self._taken)
            self._taken += 1
        begun = self._begun.popleft()
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            final = self._source.finalize(begun)
            batch: Batch = self._delivery.deliver(outcome if final is begun else self._fill(final))
        except (CorruptionError, NotAStoreError):  # it would come again and again
            self._source.deliver(begun)
            raise
        except BaseException:
            self._source.leave(begun)
            raise
        self._source.deliver(begun)
        return batch

    def _fill(self, begun: B) -> Any:
        assert begun.request is not None
        arrays = self._delivery.take(begun.request)
        self._source.fill(begun, arrays)
        return self._delivery.send(arrays)

    def stop(self) -> None:
        """End the threads, and wait for them; but not where one of them collects the loop as garbage."""
        if self._process == os.getpid():  # in a fork that did not go on with it there are none
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            for thread in self._threads if threading.current_thread() not in self._threads else ():
                if thread.ident is not None:
                    thread.join()
        while self._begun:
            self._source.leave(self._begun.popleft())

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._waiting)
                if self._stopped:
                    return
                number, begun = self._waiting.popleft()
            try:
                outcome = self._fill(begun)
            except BaseException as error:  # noqa: BLE001  it is the learner's to see, not this thread's
                outcome = error
            del begun
            with self._changed:
                self._ready[number] = outcome
                self._changed.notify_all()
