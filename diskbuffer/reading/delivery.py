"""The last of a batch's way: a function of the caller's over it, and to the device where it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from diskbuffer.arguments.inputs import device_of, truth
from diskbuffer.errors import InputError
from diskbuffer.reading.batches.base import Arrays, Batch, Request
from diskbuffer.reading.batches.pool import ArraysPool

if TYPE_CHECKING:
    import torch

Transform = Callable[[Batch], Any]


class Sent(NamedTuple):
    """A batch on its way to the learner."""

    batch: Any
    arrays: Arrays  # that it is in, or was copied from
    copies: Sequence[torch.Tensor] = ()  # on the device
    copied: torch.Event | None = None  # after them


class Delivery:
    """To the CPU: the batch is the memory that it was gathered into, in tensors or arrays, or what a function made of it.

    Attributes
    ----------
    nbytes : int
        Sent to a device so far.
    """

    pinned = False  # and sent ahead

    def __init__(self, pool: ArraysPool, transform: Transform | None = None, *, numpy: bool = False) -> None:
        self._pool, self._transform, self._numpy = pool, transform, numpy
        self.nbytes = 0

    def take(self, request: Request) -> Arrays:
        """Return arrays that nobody uses."""
        return self._pool.take(request, self.pinned)

    def send(self, arrays: Arrays) -> Sent:
        """Send filled arrays on their way."""
        batch = arrays.batch(numpy=self._numpy)
        return Sent(batch if self._transform is None else self._transform(batch), arrays)

    def deliver(self, sent: Sent) -> Any:
        """Return a batch to the learner, in its thread."""
        self._pool.give(sent.arrays)
        return sent.batch

    def delivered(self, arrays: Arrays) -> Any:
        """Send filled arrays, and return the batch."""
        return self.deliver(self.send(arrays))


class Wanted(NamedTuple):
    """What is to become of a batch: tensors, or arrays, what a function makes of them, and where they go; None for the CPU."""

    device: torch.device | None = None
    transform: Transform | None = None
    numpy: bool = False

    @classmethod
    def of(cls, device: Any, transform: Any, numpy: Any) -> Wanted:
        """Return what callers ask for; an InputError where there is no such thing."""
        if device is None and transform is None and numpy is False:  # most do, again and again
            return TENSORS
        wanted = cls(device_of(device), transform_of(transform), truth("numpy", numpy))
        if wanted.numpy and wanted.device is not None:
            raise InputError(f"numpy=True has arrays, which lie in RAM, and device={str(device)!r} tensors: give one of them")
        return wanted

    def delivery(self, pool: ArraysPool, *, aside: bool = False) -> Delivery:
        """Return the way there; `aside` where it has time until the learner asks for the batch."""
        if self.device is None:
            return Delivery(pool, self.transform, numpy=self.numpy)
        from diskbuffer.reading.devices import delivery_to_device

        return delivery_to_device(self.device, self.transform, pool, aside=aside)


TENSORS = Wanted()


def transform_of(transform: Any) -> Transform | None:
    """Return what is to be done with every batch; an InputError where that is no function."""
    if transform is not None and not callable(transform):
        raise InputError(f"transform must be a function of a batch, found {transform!r}")
    return transform  # type: ignore[no-any-return]
