"""A column of a storage in memory, by place, for who looks at all of it for every batch, as TorchRL's samplers do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.adapters.torchrl.places import Ring

Int64 = npt.NDArray[np.int64]
Read = Callable[[Int64], npt.NDArray[Any]]  # (n,) places to (n, lanes) values


class Kept:
    """A number of each step, in the places of a ring, brought up to date by the steps that are new.

    It is mapped from a file without a name in the store's directory, so what it takes is memory that the system may have back.

    Parameters
    ----------
    directory : Path
        Where the file is; where temporary ones are, if nothing can be written there.
    shape : tuple of int
        Of the places, and one step's number.
    dtype : numpy.dtype
    """

    def __init__(self, directory: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._directory, self._shape, self._dtype = directory, shape, dtype
        self._begin()

    def _begin(self) -> None:
        writable = os.access(self._directory, os.W_OK)
        with tempfile.TemporaryFile(dir=self._directory if writable else None) as file:
            self._values = np.memmap(file, self._dtype, "w+", shape=self._shape)
        self._tensor = torch.from_numpy(self._values)
        self._ring: Ring | None = None
        self._process = os.getpid()

    def up_to(self, ring: Ring, read: Read) -> torch.Tensor:
        """Return the column, (filled, ...), as it is now: a view, which goes on to be what is stored."""
        if self._process != os.getpid() or self._tensor._version:  # a fork's, or changed in place
            self._begin()
        steps = None if self._ring is None else ring.since(self._ring)
        for places in ring.newest_places(ring.filled if steps is None else steps):
            self._values[places] = read(places).reshape(-1, *self._shape[1:])
        self._ring = ring
        return self._tensor[: ring.filled]
