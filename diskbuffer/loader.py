"""Prefetching: threads fill batches ahead of the learner, in pinned memory where they go to a GPU, on a stream of their own.

Batch number n is whatever ``fill(n, arrays)`` puts into the arrays; the threads may finish in any order, the learner gets
them in that of their numbers. At most `prefetch` batches are ahead of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

if TYPE_CHECKING:
    from diskbuffer.gather.batch import Arrays, Batch

_T = TypeVar("_T")


class Numbered(Protocol):
    """What counts the batches that were delivered: a sampler."""

    batches: int


class Loader:
    """Iterate over batches without end. Made by `ReplayBuffer.loader`.

    Every ``for`` loop over it starts threads, and leaving the loop stops them. On the CPU a batch is memory of the loader's
    ring, which is used again only when nobody holds a tensor of it any more: keep batches as you like. On a GPU a batch is a
    copy that belongs to you.

    Attributes
    ----------
    waited : float
        Seconds that the learner has waited for batches, in all loops together.
    """

    def __init__(
        self,
        fill: Callable[[int, Arrays], None],
        make: Callable[[bool], Arrays],
        counter: Numbered,
        device: torch.device | None,
        prefetch: int,
        threads: int,
    ) -> None:
        self._fill, self._make, self._counter = fill, make, counter
        self._device, self._prefetch, self._threads = device, prefetch, threads
        self.waited = 0.0

    def __iter__(self) -> Iterator[Batch]:
        staging: Staging = InMemory(self._make) if self._device is None else Elsewhere(self._make, self._device)
        if self._device is not None and self._device.type == "cuda":
            staging = OnGpu(self._make, self._device)
        run = _Run(self._fill, staging, self._counter.batches, self._prefetch, self._threads)
        try:
            while True:
                begin = time.perf_counter()
                batch = run.take()
                self.waited += time.perf_counter() - begin
                self._counter.batches += 1
                yield batch
                del batch
        finally:
            run.stop()


class _Run:
    """The threads of one loop."""

    def __init__(self, fill: Callable[[int, Arrays], None], staging: Staging, first: int, ahead: int, threads: int) -> None:
        self._fill, self._staging = fill, staging
        self._changed = threading.Condition()
        self._next_to_fill = self._next_to_take = first
        self._ahead = ahead
        self._ready: dict[int, Any] = {}
        self._stopped = False
        self._threads = [threading.Thread(target=self._work, name="diskbuffer-load", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def take(self) -> Batch:
        """Return the next batch, when it is there; raise what a thread raised in its place."""
        with self._changed:
            self._changed.wait_for(lambda: self._next_to_take in self._ready)
            found = self._ready.pop(self._next_to_take)
            self._next_to_take += 1
            self._changed.notify_all()
        if isinstance(found, BaseException):
            raise found
        return self._staging.deliver(found)

    def stop(self) -> None:
        """End the threads, and wait for them."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._next_to_fill < self._next_to_take + self._ahead)
                if self._stopped:
                    return
                number = self._next_to_fill
                self._next_to_fill += 1
            try:
                arrays = self._staging.take()
                self._fill(number, arrays)
                found = self._staging.send(arrays)
            except BaseException as error:  # noqa: BLE001  it is the learner's to see, not this thread's
                found = error
            with self._changed:
                self._ready[number] = found
                self._changed.notify_all()


class Staging(Protocol):
    """Where batches are filled, and how they get to where they are wanted."""

    def take(self) -> Arrays:
        """Return arrays that nobody uses."""

    def send(self, arrays: Arrays) -> Any:
        """Send filled arrays on their way, in the thread that filled them."""

    def deliver(self, sent: Any) -> Batch:
        """Return a batch to the learner, in its thread."""


class InMemory:
    """The batch is the ring's own memory."""

    def __init__(self, make: Callable[[bool], Arrays]) -> None:
        self._make = make
        self._lent: deque[Arrays] = deque()

    def take(self) -> Arrays:
        """Return arrays that nobody uses."""
        for _ in range(len(self._lent)):
            try:
                arrays = self._lent.popleft()
            except IndexError:  # another thread was faster
                break
            if not arrays.in_use:
                return arrays
            self._lent.append(arrays)
            if len(self._lent) > 8:  # somebody keeps his batches: they are his
                self._lent.popleft()
        return self._make(False)

    def send(self, arrays: Arrays) -> Arrays:
        """Send filled arrays on their way."""
        return arrays

    def deliver(self, sent: Arrays) -> Batch:
        """Return a batch to the learner."""
        batch = sent.deliver(sent.tensors(), torch.from_numpy(sent.steps))
        self._lent.append(sent)
        return batch


class Elsewhere:
    """The batch is copied to a device that knows no pinned memory."""

    def __init__(self, make: Callable[[bool], Arrays], device: torch.device) -> None:
        self._free: deque[Arrays] = deque()
        self._make, self._device = make, device

    def take(self) -> Arrays:
        """Return arrays that nobody uses."""
        try:
            return self._free.popleft()
        except IndexError:
            return self._make(False)

    def send(self, arrays: Arrays) -> Batch:
        """Send filled arrays on their way."""
        tensors = [tensor.to(self._device, copy=True) for tensor in arrays.tensors()]
        batch = arrays.deliver(tensors, torch.from_numpy(arrays.steps).to(self._device, copy=True))
        self._free.append(arrays)
        return batch

    def deliver(self, sent: Batch) -> Batch:
        """Return a batch to the learner."""
        return sent


class OnGpu:
    """The batch is copied from pinned memory, on a stream of its own, while the GPU computes.

    Pinned memory is filled again only after the event behind its copy; the learner's stream waits for the same event, not
    the learner.
    """

    def __init__(self, make: Callable[[bool], Arrays], device: torch.device) -> None:
        self._free: deque[tuple[Arrays, torch.cuda.Event]] = deque()
        self._make, self._device = make, device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def take(self) -> Arrays:
        """Return arrays that nobody uses."""
        try:
            arrays, copied = self._free.popleft()
        except IndexError:
            return self._make(True)
        copied.synchronize()
        return arrays

    def send(self, arrays: Arrays) -> tuple[list[torch.Tensor], Arrays, torch.cuda.Event]:
        """Send filled arrays on their way."""
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            tensors = [tensor.to(self._device, non_blocking=True) for tensor in arrays.tensors()]
            tensors.append(torch.from_numpy(arrays.steps).to(self._device))
            copied.record(self._stream)
        self._free.append((arrays, copied))
        return tensors, arrays, copied

    def deliver(self, sent: tuple[list[torch.Tensor], Arrays, torch.cuda.Event]) -> Batch:
        """Return a batch to the learner."""
        tensors, arrays, copied = sent
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copied)
        for tensor in tensors:
            tensor.record_stream(current)
        return arrays.deliver(tensors[:-1], tensors[-1])
