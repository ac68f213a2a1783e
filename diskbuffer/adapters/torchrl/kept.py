"""A column of a storage in memory, by place, for who looks at all of it for every batch, as TorchRL's samplers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.adapters.torchrl.places import Ring

Int64 = npt.NDArray[np.int64]
Read = Callable[[Int64], npt.NDArray[Any]]  # (n,) places to (n, lanes) values


class Kept:
    """A number of each step, in the places of a ring, brought up to date by the steps that are new.

    Parameters
    ----------
    shape : tuple of int
        Of the places, and one step's number.
    dtype : numpy.dtype
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._values = np.zeros(shape, dtype)  # of which there is memory once it is written to
        with torch.inference_mode(False):  # whose tensors do not tell that they were changed
            self._tensor = torch.from_numpy(self._values)
        self._ring: Ring | None = None

    def up_to(self, ring: Ring, read: Read) -> torch.Tensor | None:
        """Return the column, (filled, ...), as it is now: a view, which goes on to be what is stored.

        None where somebody has changed it in place: keep another one.
        """
        if self._tensor._version:
            return None
        for places in ring.newest_places(ring.new_since(self._ring)):
            self._values[places] = read(places).reshape(-1, *self._values.shape[1:])
        self._ring = ring
        return self._tensor[: ring.filled]
