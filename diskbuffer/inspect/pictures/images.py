"""PNG, and what every drawing needs: pillow, fonts, sizes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.inspect.pictures.frames import UInt8, as_picture
from diskbuffer.plugin import require

if TYPE_CHECKING:
    from PIL import Image, ImageFont

INK, MUTED, PAPER = (33, 37, 41), (108, 117, 125), (255, 255, 255)  # of everything that is drawn here
_LARGEST = 2**14  # pixels each way, of pictures that are made


def png(frame: npt.NDArray[Any], *, scale: int = 1) -> bytes:
    """Return a frame as a PNG, pixel by pixel what `as_picture` returns.

    Parameters
    ----------
    frame : array
        A row of a picture column.
    scale : int
        How many pixels, each way, one pixel becomes.

    Raises
    ------
    InputError
        The frame is no picture, or would be larger than 16,384 pixels.
    MissingPackageError
        pillow is not installed.
    """
    return encoded(enlarged(as_picture(frame), scale))


def encoded(pixels: UInt8) -> bytes:
    """Return pixels, (H, W) or (H, W, 3), as a PNG."""
    return saved(pillow().fromarray(np.ascontiguousarray(pixels)))


def saved(image: Image.Image) -> bytes:
    """Return an image as a PNG."""
    file = io.BytesIO()
    image.save(file, "PNG", optimize=image.width * image.height < 2**20)
    return file.getvalue()


def enlarged(pixels: UInt8, scale: int) -> UInt8:
    """Repeat every pixel `scale` times, each way; the last two axes but for colours are height and width."""
    rows = pixels.ndim - 2 - (pixels.shape[-1] == 3 and pixels.ndim > 2)
    check_size(pixels.shape[rows] * scale, pixels.shape[rows + 1] * scale)
    return pixels if scale == 1 else pixels.repeat(scale, axis=rows).repeat(scale, axis=rows + 1)


def check_size(height: int, width: int) -> None:
    """Refuse what is too large to be a picture, with an InputError."""
    if max(height, width) > _LARGEST:
        raise InputError(f"a picture may be {_LARGEST:,} pixels wide and high, and this one is {width:,} x {height:,}; draw less")


def pillow() -> Any:
    """Return ``PIL.Image``; a MissingPackageError where pillow is not installed."""
    return require("PIL.Image", "pillow", "notebook", "to draw pictures")


def font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """Return the font that pillow brings along."""
    found: ImageFont.ImageFont | ImageFont.FreeTypeFont = require("PIL.ImageFont", "pillow", "notebook").load_default(size)
    return found


def shortened(text: str, width: float, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    """Cut a text, on one line, so that it is `width` pixels wide at most."""
    text = "".join(c if c.isprintable() else " " for c in text[:200])
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
