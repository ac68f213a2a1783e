"""The last of a batch's way: a function of the caller's over it, and to the device where it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
