"""Which columns are pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_SMALLEST_SIDE, _SMALLEST_FLOAT_SIDE = 8, 16  # pixels: what is smaller is a matrix of numbers
_MOST_PLANES = 16  # on the axis of channels: more is no picture


@dataclass(frozen=True)
class PictureKind:
    """How a row of a column is seen as a picture.

    Attributes
    ----------
    height, width : int
        Pixels.
    axis : int or None
        The axis of channels, 0 or 2, as in (C, H, W) and (H, W, C); None where there is none.
    planes : int
        How long that axis is: 1 is grey, 3 is RGB, a multiple of 3 is a stack of RGB frames, and anything else a stack of grey
        ones. Of a stack the newest, which is the last, is shown. Boolean planes are shown in one colour each.
    """

    height: int
    width: int
    axis: int | None = None
    planes: int = 1

    @property
    def colour(self) -> bool:
        """Whether the pixels of numbers are coloured."""
        return self.planes % 3 == 0


def picture_kind(shape: tuple[int, ...], dtype: npt.DTypeLike) -> PictureKind | None:
    """Return how rows of a shape and dtype are pictures; None where they are none.

    Pictures are (H, W), (C, H, W) and (H, W, C), of at least 8 pixels each way, of floats 16, and with 16 channels at most. Where
    both ends could be the channels, the shorter is.
    """
    kind = np.dtype(dtype).kind
    if kind not in "buif" or len(shape) not in (2, 3):
        return None
    axis = None if len(shape) == 2 else 0 if shape[0] < shape[2] else 2
    planes = 1 if axis is None else shape[axis]
    height, width = (n for at, n in enumerate(shape) if at != axis)
    if min(height, width) < (_SMALLEST_FLOAT_SIDE if kind == "f" else _SMALLEST_SIDE) or planes > _MOST_PLANES:
        return None
    return PictureKind(height, width, axis, planes)
