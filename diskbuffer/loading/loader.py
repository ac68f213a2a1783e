"""Prefetching: native threads gather batches ahead of the learner, which are sent to a device on a stream of their own.

What is in a batch is decided by `Source.begin`, in the learner's thread, and always as many batches ahead, so that it does not
depend on how fast threads are. It is handed over as a job, which needs no Python, so a learner that holds the interpreter's lock
and the threads do not disturb each other. A learner that waits for a batch helps to gather it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from diskbuffer.arguments.integers import integer
from diskbuffer.errors import CorruptionError, NotAStoreError
from diskbuffer.loading.source import B, Source
from diskbuffer.reading.batches.pool import ArraysPool
from diskbuffer.reading.delivery import Delivery, Sent
from diskbuffer.reading.wanted import Wanted
from diskbuffer.runtime.signals import PutOff
from diskbuffer.runtime.threads import result, submit

if TYPE_CHECKING:
    from diskbuffer.reading.batch_reader import Planned
    from diskbuffer.reading.batches.base import Batch


class Loader(Generic[B]):
    """Iterate over batches. Made by `ReplayBuffer.loader` and `ReplayBuffer.batches`.

    Every ``for`` loop over it begins batches, and leaving the loop withdraws them. On the CPU a batch is memory of the loader's
    ring, which is used again only when nobody holds a tensor of it any more: keep batches as you like. On a device a batch is a
    copy that belongs to you; on an accelerator its tensors share one allocation, so ``clone`` what is to outlive the others.

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
        wanted: Wanted,
        prefetch: int,
        threads: int,
        transform_threads: int = 0,
    ) -> None:
        self._source, self._wanted, self._prefetch, self._threads = source, wanted, prefetch, threads
        self._transform_threads = integer("transform_threads", transform_threads, 0)
        self.waited, self.nbytes_sent = 0.0, 0

    def __iter__(self) -> Iterator[Batch]:
        delivery = self._wanted.delivery(ArraysPool(kept=8), aside=True)
        source = self._source()
        source.wait()
        run = _Run(source, delivery, self._threads, self._transform_threads)
        try:
            run.begin(self._prefetch)
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


@dataclass(slots=True)
class _Ahead(Generic[B]):
    """A batch that was begun; `sent` once it is on its way, or where a thread sends it."""

    begun: B
    sent: Future[Sent] | None = None

    @property
    def planned(self) -> Planned | None:
        return self.begun.planned


class _Run(Generic[B]):
    """The batches of one loop."""

    def __init__(self, source: Source[B], delivery: Delivery, threads: int, transform_threads: int) -> None:
        self._source, self._delivery, self._threads = source, delivery, threads
        self._ahead: deque[_Ahead[B]] = deque()  # in the order of their delivery
        self._ended, self._process = False, os.getpid()
        self._transform_threads = transform_threads
        self._senders = self._make_senders()

    def begin(self, ahead: int) -> None:
        """Begin so many batches."""
        for _ in range(ahead):
            self._begin()

    def _make_senders(self) -> ThreadPoolExecutor | None:
        return ThreadPoolExecutor(self._transform_threads, "diskbuffer-transform") if self._transform_threads else None

    def _resume_in_fork(self) -> None:
        """In a fork, which has none of the threads: hand over anew what was begun."""
        self._process, self._senders = os.getpid(), self._make_senders()
        for ahead in self._ahead:
            ahead.sent = None
            self._hand_over(ahead)

    def _begin(self) -> None:
        if self._ended:
            return
        begun = self._source.begin(self._delivery.take)
        if begun is None:
            self._ended = True
            return
        self._ahead.append(_Ahead(begun))
        self._hand_over(self._ahead[-1])

    def _hand_over(self, ahead: _Ahead[B]) -> None:
        planned = ahead.planned
        if planned is None:
            return
        planned.submit(self._threads)
        if self._senders is not None:
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and has no new threads: its turn will come here
                ahead.sent = submit(self._senders, lambda: self._delivery.send(planned.wait()))

    def take(self) -> Batch | None:
        """Return the next batch, when it is there, or None after the last; raise what came in its place."""
        if self._process != os.getpid():
            self._resume_in_fork()
        self._source.wait()
        self._begin()
        if self._delivery.pinned and self._senders is None:
            self._send_what_is_gathered()
        if not self._ahead:
            return None
        ahead = self._ahead.popleft()
        try:
            batch: Batch = self._delivery.deliver(self._sent(ahead))
        except (CorruptionError, NotAStoreError):  # it would come again and again
            self._source.deliver(ahead.begun)
            raise
        except BaseException:
            self._source.leave(ahead.begun)
            raise
        self._source.deliver(ahead.begun)
        return batch

    def _sent(self, ahead: _Ahead[B]) -> Sent:
        """Return a batch whose turn has come, on its way: as it was begun, or another in its place."""
        sent = result(ahead.sent) if ahead.sent is not None else None
        arrays = ahead.planned.wait() if sent is None and ahead.planned is not None else None
        final = self._source.finalize(ahead.begun, self._delivery.take)
        if final is not ahead.begun:
            assert final.planned is not None
            return self._delivery.send(final.planned.gather())
        if sent is None:
            assert arrays is not None
            sent = self._delivery.send(arrays)
        return sent

    def _send_what_is_gathered(self) -> None:
        """Send batches ahead of their turn, as the way to a device takes its time; what is raised waits for its turn, too."""
        for ahead in self._ahead:
            if ahead.sent is None and ahead.planned is not None and ahead.planned.is_gathered:
                sent = Future[Sent]()
                try:
                    sent.set_result(self._delivery.send(ahead.planned.wait()))
                except Exception as error:  # noqa: BLE001  whatever it is
                    sent.set_exception(error)
                ahead.sent = sent

    def stop(self) -> None:
        """Withdraw what was begun, and end threads; not waited for where one of these collects the loop as garbage."""
        if self._senders is not None and self._process == os.getpid():  # in a fork that did not go on with it there are none
            is_own = threading.current_thread() in self._senders._threads
            self._senders.shutdown(wait=not is_own, cancel_futures=True)
        for ahead in self._ahead:
            if ahead.planned is not None:
                ahead.planned.job.cancel()  # all of them, before the first is waited for
        while self._ahead:
            self._source.leave(self._ahead.popleft().begun)
