"""How rows of a column are pixels of a picture, and how pixels are rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.plugin import is_observation, picture_kind

UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Pixels:
    """Grey pictures, (n, H, W), or RGB ones, (n, H, W, 3), as rows of a column.

    Attributes
    ----------
    height, width : int
    grey : bool
    axis : int or None
        The rows' axis of channels, 0 or 2; None where there is none.
    """

    height: int
    width: int
    grey: bool
    axis: int | None

    @classmethod
    def of(cls, path: str, column: Column) -> Pixels | None:
        """Return how a column is a picture: observations of bytes, grey or RGB. None where it is none."""
        kind = picture_kind(column.shape, column.np_dtype)
        if kind is None or kind.planes not in (1, 3) or column.np_dtype != np.uint8 or not is_observation(path):
            return None
        return cls(kind.height, kind.width, kind.planes == 1, kind.axis)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a picture."""
        return (self.height, self.width) if self.grey else (self.height, self.width, 3)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        if self.axis is None:
            return (self.height, self.width)
        sides, planes = [self.height, self.width], 1 if self.grey else 3
        sides.insert(self.axis, planes)
        return tuple(sides)

    def from_rows(self, rows: npt.NDArray[Any]) -> UInt8:
        """Return rows as pixels."""
        if self.axis is None:
            return rows
        if self.grey:
            return rows[:, 0] if self.axis == 0 else rows[..., 0]
        return np.ascontiguousarray(np.moveaxis(rows, 1, -1)) if self.axis == 0 else rows

    def to_rows(self, pixels: UInt8) -> UInt8:
        """Return pixels as rows."""
        if self.axis is None:
            return pixels
        if self.grey:
            return pixels[:, None] if self.axis == 0 else pixels[..., None]
        return np.ascontiguousarray(np.moveaxis(pixels, -1, 1)) if self.axis == 0 else pixels
