"""Which columns are pictures, and how their rows become grey or coloured pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import InputError
from diskbuffer.plugin import PictureKind, picture_kind

UInt8 = npt.NDArray[np.uint8]
# Of boolean planes, such as MinAtar's: colours that are told apart by everybody (Okabe and Ito, 2008), the light ones first.
_COLOURS = np.array(
    [(240, 228, 66), (86, 180, 233), (230, 159, 0), (0, 158, 115), (204, 121, 167), (213, 94, 0), (0, 114, 178), (255, 255, 255)],
    np.uint8,
)


def picture_columns(columns: Mapping[str, Column]) -> dict[str, PictureKind]:
    """Return those of a store's columns that are pictures, the observation's first; by path, as ``buffer.columns`` has them."""
    kinds = {path: kind for path, c in columns.items() if (kind := picture_kind(c.shape, c.np_dtype)) is not None}
    return dict(sorted(kinds.items(), key=lambda item: item[0].split("/")[0] != "obs"))


def as_pictures(frames: npt.NDArray[Any]) -> UInt8:
    """Turn rows of a picture column into pixels, the same way for all of them.

    Parameters
    ----------
    frames : (n, ...) array

    Returns
    -------
    (n, H, W) or (n, H, W, 3) uint8
        uint8 is shown as it is. Floats from 0 to 1 become 0 to 255, and floats from 0 to 255 are rounded. Everything else, such
        as a depth in uint16, is stretched, so that the smallest of all values is black and the largest white. What is no number
        is black.

    Raises
    ------
    InputError
        Rows of this shape and dtype are no pictures.
    """
    kind = picture_kind(frames.shape[1:], frames.dtype)
    if kind is None:
        raise InputError(
            f"expected frames of shape (n, H, W), (n, C, H, W) or (n, H, W, C), at least 8 pixels each way (floats: 16), found "
            f"{frames.dtype} of shape {frames.shape}, which are no pictures; see its values with buffer.at, or plot them"
        )
    planes = frames[:, None] if kind.axis is None else np.moveaxis(frames, kind.axis + 1, 1)  # (n, C, H, W)
    if frames.dtype == np.bool_ and kind.planes > 1:
        return _in_colours(planes)
    shown = planes[:, -3:] if kind.colour else planes[:, -1:]
    pixels = _to_bytes(shown)
    return np.ascontiguousarray(np.moveaxis(pixels, 1, -1) if kind.colour else pixels[:, 0])


def _to_bytes(values: npt.NDArray[Any]) -> UInt8:
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return np.where(values, np.uint8(255), np.uint8(0))
    low, high = 0.0, 255.0
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    if finite.any():
        smallest, largest = float(numbers[finite].min()), float(numbers[finite].max())
        if values.dtype.kind == "f" and smallest >= 0 and largest <= 1:
            high = 1.0
        elif values.dtype.kind != "f" or smallest < 0 or largest > 255:
            low, high = smallest, largest
    with np.errstate(invalid="ignore", over="ignore"):
        half = max(high / 2 - low / 2, np.finfo(np.float64).tiny)  # the whole may be infinite
        scaled = (numbers / 2 - low / 2) / half * 255
    pixels: UInt8 = np.rint(np.clip(np.where(finite, scaled, 0), 0, 255)).astype(np.uint8)
    return pixels


def _in_colours(planes: npt.NDArray[np.bool_]) -> UInt8:
    """Show the first plane that is set at each pixel, in its colour, and black where none is."""
    pixels = np.zeros((planes.shape[0], *planes.shape[2:], 3), np.uint8)
    for plane in range(planes.shape[1] - 1, -1, -1):
        pixels[planes[:, plane]] = _COLOURS[plane % len(_COLOURS)]
    return pixels
