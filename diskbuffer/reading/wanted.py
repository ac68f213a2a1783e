"""What callers want of a batch: tensors or arrays, a function of theirs over these, and a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from diskbuffer.arguments.inputs import device_of, truth
from diskbuffer.errors import InputError
from diskbuffer.reading.batches.pool import ArraysPool
from diskbuffer.reading.delivery import Delivery, Transform

if TYPE_CHECKING:
    import torch


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
