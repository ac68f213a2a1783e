"""The last of a batch's way: a function of the caller's over it, and to the device where it is wanted.

To an accelerator (CUDA, ROCm, XPU, ...) batches are copied from pinned memory, by a loader on a stream of its own. Frames that
``obs`` and ``next_obs`` share are sent once, and become two views there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from diskbuffer.errors import InputError
from diskbuffer.reading.batches.base import Arrays, Batch, Request
from diskbuffer.reading.batches.pool import ArraysPool

Transform = Callable[[Batch], Any]


class Sent(NamedTuple):
    """A batch on its way to the learner."""

    batch: Any
    arrays: Arrays  # that it is in, or was copied from
    copies: Sequence[torch.Tensor] = ()  # on the device
    copied: torch.Event | None = None  # after them


class Delivery:
    """To the CPU: the batch is the memory that it was gathered into, or what a function made of it.

    Attributes
    ----------
    nbytes : int
        Sent to a device so far.
    """

    pinned = False  # and sent ahead

    def __init__(self, pool: ArraysPool, transform: Transform | None = None) -> None:
        self._pool, self._transform = pool, transform
        self.nbytes = 0

    def take(self, request: Request) -> Arrays:
        """Return arrays that nobody uses."""
        return self._pool.take(request, self.pinned)

    def send(self, arrays: Arrays) -> Sent:
        """Send filled arrays on their way."""
        batch = arrays.batch()
        return Sent(batch if self._transform is None else self._transform(batch), arrays)

    def deliver(self, sent: Sent) -> Any:
        """Return a batch to the learner, in its thread."""
        self._pool.give(sent.arrays)
        return sent.batch

    def delivered(self, arrays: Arrays) -> Any:
        """Send filled arrays, and return the batch."""
        return self.deliver(self.send(arrays))


class DeviceDelivery(Delivery):
    """To a device that knows neither pinned memory nor streams: every copy is waited for."""

    def __init__(self, pool: ArraysPool, transform: Transform | None, device: torch.device) -> None:
        super().__init__(pool, transform)
        self._device = device

    def send(self, arrays: Arrays) -> Sent:
        """Send filled arrays on their way."""
        return self._copy(arrays)

    def deliver(self, sent: Sent) -> Any:
        """Return a batch to the learner, in its thread."""
        self.nbytes += sum(copy.nbytes for copy in sent.copies)
        return super().deliver(sent)

    def _copy(self, arrays: Arrays) -> Sent:
        copies: list[torch.Tensor] = []
        if self._transform is None:
            batch = arrays.deliver(self._copied(arrays, copies))
        else:
            batch = copied_to(self._transform(arrays.batch()), self._device, copies)
        return Sent(batch, arrays, copies)

    def _copied(self, arrays: Arrays, copies: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copy the tensors of a batch, all that lie in one block at once."""
        tensors, block = arrays.tensors(), arrays.block
        if block is None:
            return [copied_to(tensor, self._device, copies) for tensor in tensors]
        copied = copied_to(block.contents(), self._device, copies)
        found = [block.find(tensor, copied) for tensor in tensors]
        return [copied_to(t, self._device, copies) if own is None else own for t, own in zip(tensors, found, strict=True)]


class AcceleratorDelivery(DeviceDelivery):
    """To an accelerator, from pinned memory, which is filled again only after the event that follows its copy.

    With `aside` copies run on a stream of their own, while the accelerator computes: the learner's stream waits for the same
    event, not the learner. Without it they run on the stream that is current.
    """

    pinned = True

    def __init__(self, pool: ArraysPool, transform: Transform | None, device: torch.device, *, aside: bool) -> None:
        super().__init__(pool, transform, device)
        self._stream = torch.Stream(device) if aside else None

    def send(self, arrays: Arrays) -> Sent:
        """Send filled arrays on their way."""
        with contextlib.nullcontext() if self._stream is None else _current(self._stream):
            sent = self._copy(arrays)
            arrays.copied = torch.accelerator.current_stream(self._device).record_event()
        return sent._replace(copied=arrays.copied)

    def deliver(self, sent: Sent) -> Any:
        """Return a batch to the learner, in its thread."""
        if self._stream is not None:
            assert sent.copied is not None
            learners = torch.accelerator.current_stream(self._device)
            learners.wait_event(sent.copied)
            for copy in sent.copies:
                copy.record_stream(learners)  # or its memory could be given to the next copy while the learner reads it
        return super().deliver(sent)


def delivery_to(device: torch.device | None, transform: Transform | None, pool: ArraysPool, *, aside: bool = False) -> Delivery:
    """Return the way to a device, None for the CPU; `aside` where it has time until the learner asks for the batch."""
    if device is None:
        return Delivery(pool, transform)
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device.type:
        return DeviceDelivery(pool, transform, device)
    try:
        return AcceleratorDelivery(pool, transform, device, aside=aside)
    except (NotImplementedError, RuntimeError):  # an accelerator of one stream
        return DeviceDelivery(pool, transform, device)


def transform_of(transform: Any) -> Transform | None:
    """Return what is to be done with every batch; an InputError where that is no function."""
    if transform is not None and not callable(transform):
        raise InputError(f"transform must be a function of a batch, found {transform!r}")
    return transform  # type: ignore[no-any-return]


@contextlib.contextmanager
def _current(stream: torch.Stream) -> Iterator[None]:
    """Make a stream the current one of this thread (``with stream:`` remembers in the stream what to go back to)."""
    device, before = torch.accelerator.current_device_index(), torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        torch.accelerator.set_device_index(device)


def copied_to(value: Any, device: torch.device, copies: list[torch.Tensor]) -> Any:
    """Copy tensors and arrays in something to a device; dicts, lists and tuples of them stay such. `copies` lists the copies."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.Tensor):
        copies.append(value.to(device, non_blocking=value.is_pinned(), copy=True))
        return copies[-1]
    if isinstance(value, dict):
        return {name: copied_to(part, device, copies) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named one
        return type(value)(*(copied_to(part, device, copies) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(copied_to(part, device, copies) for part in value)
    return value
