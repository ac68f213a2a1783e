"""The memory that a loader fills batches in, and how they get to the device: pinned memory and streams for a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from diskbuffer.reading.delivery import Transform, send, tensors_in

if TYPE_CHECKING:
    from diskbuffer.reading.batches.base import Arrays, Batch, Request


class Delivery(Protocol):
    """Where batches are filled, and how they get to where they are wanted."""

    def take(self, request: Request) -> Arrays:
        """Return arrays that nobody uses."""

    def send(self, arrays: Arrays) -> Any:
        """Send filled arrays on their way, in the thread that filled them."""

    def deliver(self, sent: Any) -> Batch:
        """Return a batch to the learner, in its thread."""


class OnCpu:
    """The batch is the ring's own memory, or what a function made of it."""

    def __init__(self, make: Callable[[Request, bool], Arrays], transform: Transform | None) -> None:
        self._make, self._transform = make, transform
        self._lent: deque[Arrays] = deque()

    def take(self, request: Request) -> Arrays:
        """Return arrays that nobody uses."""
        for _ in range(len(self._lent)):
            try:
                arrays = self._lent.popleft()
            except IndexError:  # another thread was faster
                break
            if arrays.request == request and not arrays.in_use:
                return arrays
            self._lent.append(arrays)
            if len(self._lent) > 8:  # the learner keeps its batches: they are its own
                self._lent.popleft()
        return self._make(request, False)

    def send(self, arrays: Arrays) -> tuple[Any, Arrays]:
        """Send filled arrays on their way."""
        return send(arrays, self._transform), arrays

    def deliver(self, sent: tuple[Any, Arrays]) -> Any:
        """Return a batch to the learner."""
        batch, arrays = sent
        self._lent.append(arrays)
        return batch


class OnDevice:
    """The batch is copied to a device that knows no pinned memory."""

    def __init__(self, make: Callable[[Request, bool], Arrays], transform: Transform | None, device: torch.device) -> None:
        self._free: deque[Arrays] = deque()
        self._make, self._transform, self._device = make, transform, device

    def take(self, request: Request) -> Arrays:
        """Return arrays that nobody uses."""
        try:
            arrays = self._free.popleft()
        except IndexError:
            return self._make(request, False)
        return arrays if arrays.request == request else self._make(request, False)

    def send(self, arrays: Arrays) -> Any:
        """Send filled arrays on their way."""
        batch = send(arrays, self._transform, self._device)
        self._free.append(arrays)
        return batch

    def deliver(self, sent: Any) -> Any:
        """Return a batch to the learner."""
        return sent


class OnGpu:
    """The batch is copied from pinned memory, on a stream of its own, while the GPU computes.

    Pinned memory is filled again only after the event that follows its copy; the learner's stream waits for the same event, not
    the learner.
    """

    def __init__(self, make: Callable[[Request, bool], Arrays], transform: Transform | None, device: torch.device) -> None:
        self._free: deque[tuple[Arrays, torch.cuda.Event]] = deque()
        self._make, self._transform, self._device = make, transform, device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def take(self, request: Request) -> Arrays:
        """Return arrays that nobody uses."""
        try:
            arrays, copied = self._free.popleft()
        except IndexError:
            return self._make(request, True)
        copied.synchronize()
        return arrays if arrays.request == request else self._make(request, True)

    def send(self, arrays: Arrays) -> tuple[Any, torch.cuda.Event]:
        """Send filled arrays on their way."""
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            batch = send(arrays, self._transform, self._device)
            copied.record(self._stream)
        self._free.append((arrays, copied))
        return batch, copied

    def deliver(self, sent: tuple[Any, torch.cuda.Event]) -> Any:
        """Return a batch to the learner."""
        batch, copied = sent
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copied)
        for tensor in tensors_in(batch):
            tensor.record_stream(current)
        return batch
