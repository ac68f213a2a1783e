"""To devices: batches are copied there.

To an accelerator (CUDA, ROCm, XPU, ...) they are copied from pinned memory, by a loader on a stream of its own. Frames that
``obs`` and ``next_obs`` share are sent once, and become two views there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from diskbuffer.reading.batches.base import Arrays
from diskbuffer.reading.batches.pool import ArraysPool
from diskbuffer.reading.delivery import Delivery, Sent, Transform


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
        tensors, block = [*map(torch.from_numpy, arrays.arrays())], arrays.block
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


def delivery_to_device(device: torch.device, transform: Transform | None, pool: ArraysPool, *, aside: bool) -> Delivery:
    """Return the way to a device; `aside` where it has time until the learner asks for the batch."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device.type:
        return DeviceDelivery(pool, transform, device)
    try:
        return AcceleratorDelivery(pool, transform, device, aside=aside)
    except (NotImplementedError, RuntimeError):  # an accelerator of one stream
        return DeviceDelivery(pool, transform, device)


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
