"""Memory that is sent to an accelerator as one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 64  # bytes, of arrays


class Block:
    """Memory of a batch for an accelerator, for all that is sent there together: one copy takes it. Pinned where there is one.

    Parameters
    ----------
    nbytes : int, optional
        Without it there is no memory: what is taken is only counted.

    Attributes
    ----------
    taken : int
        Bytes from the beginning on that were taken.
    """

    def __init__(self, nbytes: int | None = None) -> None:
        pin = torch.accelerator.is_available()
        self._memory = None if nbytes is None else torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pin)
        self.taken = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return memory for an array."""
        begin, end = self.taken, self.taken + math.prod(shape) * dtype.itemsize
        self.taken = _aligned(end)
        if self._memory is None:
            return np.empty(shape, dtype)
        return self._memory[begin:end].numpy().view(dtype).reshape(shape)

    def has_room(self, nbytes: int) -> bool:
        """Return whether so many bytes can still be taken."""
        return self._memory is not None and self.taken + _aligned(nbytes) <= self._memory.nbytes

    def contents(self) -> torch.Tensor:
        """Return what was taken, as bytes."""
        assert self._memory is not None
        return self._memory[: self.taken]

    def find(self, tensor: torch.Tensor, copied: torch.Tensor) -> torch.Tensor | None:
        """Return what a tensor of this block is in a copy of it, no view, for autograd; None where it is none of these."""
        begin = tensor.data_ptr() - self.contents().data_ptr()
        if not 0 <= begin <= copied.nbytes - tensor.nbytes:
            return None
        found = torch.empty(0, dtype=tensor.dtype, device=copied.device)
        return found.set_(copied.untyped_storage(), begin // tensor.itemsize, tensor.shape, tensor.stride())


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
