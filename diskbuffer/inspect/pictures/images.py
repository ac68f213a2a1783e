"""PNG, and what every drawing needs: pillow, and sizes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from diskbuffer.errors import InputError
from diskbuffer.inspect.pictures.frames import UInt8
from diskbuffer.plugin import require

if TYPE_CHECKING:
    from PIL import Image

_LARGEST = 2**14  # pixels each way, of pictures that are made


def pillow() -> Any:
    """Return ``PIL.Image``; a MissingPackageError where pillow is not installed."""
    return require("PIL.Image", "pillow", "notebook", "to draw pictures")


def png(image: Image.Image, *, quick: bool = False) -> bytes:
    """Return an image of pillow's as a PNG: or, with `quick`, as a larger one, several times as fast."""
    file, small = io.BytesIO(), not quick and image.width * image.height < 2**20
    image.save(file, "PNG", optimize=small, compress_level=1 if quick else 6)
    return file.getvalue()


def enlarged(pixels: UInt8, scale: int) -> UInt8:
    """Repeat every pixel of pictures, (n, H, W) or (n, H, W, 3), `scale` times, each way."""
    check_size(pixels.shape[1] * scale, pixels.shape[2] * scale)
    return pixels if scale == 1 else pixels.repeat(scale, axis=1).repeat(scale, axis=2)


def fitting(pixels: UInt8, height: int) -> UInt8:
    """Return pictures, (n, H, W) or (n, H, W, 3), about so high: enlarged by a whole number, or made smaller."""
    if pixels.shape[1] <= 1.5 * height:
        return enlarged(pixels, max(1, round(height / pixels.shape[1])))
    size = (max(1, round(pixels.shape[2] * height / pixels.shape[1])), height)
    image = pillow()
    return np.stack([np.asarray(image.fromarray(each).resize(size, image.Resampling.BOX)) for each in pixels])


def check_size(height: int, width: int) -> None:
    """Refuse what is too large to be a picture, with an InputError."""
    if max(height, width) > _LARGEST:
        raise InputError(f"a picture may be {_LARGEST:,} pixels wide and high, and this one is {width:,} x {height:,}; draw less")
