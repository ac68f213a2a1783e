"""Pictures in parquet files: PNG."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import DiskBufferError, SourceError
from diskbuffer.formats.lerobot.arrays import pyarrow
from diskbuffer.formats.lerobot.pixels import Pixels, UInt8
from diskbuffer.plugin import require

_FORMATS = ("PNG", "JPEG", "WEBP")


def pillow() -> Any:
    """Return pillow's `Image`."""
    return require("PIL.Image", "pillow", "lerobot", "pictures in LeRobot's format")


def image_type() -> Any:
    """Return Arrow's type of a picture."""
    pa = pyarrow()
    return pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def to_arrow(pixels: UInt8, first: int) -> Any:
    """Return pictures as an array of `image_type`; `first` is the number of the first one in its episode."""
    image, pa = pillow(), pyarrow()
    files = []
    for each in pixels:
        file = io.BytesIO()
        image.fromarray(np.ascontiguousarray(each)).save(file, "PNG")
        files.append(file.getvalue())
    names = [f"frame-{first + n:06d}.png" for n in range(len(pixels))]
    return pa.StructArray.from_arrays([pa.array(files, pa.binary()), pa.array(names)], names=["bytes", "path"])


def from_arrow(array: Any, pixels: Pixels, what: str) -> UInt8:
    """Return the pictures of an array of `image_type`; a SourceError where they are none, or have another size."""
    files = array.field("bytes")
    if array.null_count or files.null_count:
        raise SourceError(f"{what}: expected a picture in every row, found rows without one, or with one in another file")
    pictures = np.empty((len(array), *pixels.shape), np.uint8)
    for number, file in enumerate(files):
        pictures[number] = _decoded(file.as_buffer(), pixels, what)
    return pictures


def _decoded(file: Any, pixels: Pixels, what: str) -> npt.NDArray[Any]:
    image = pillow()
    try:
        with image.open(io.BytesIO(file), formats=_FORMATS) as opened:
            if opened.size != (pixels.width, pixels.height):
                width, height = opened.size
                raise SourceError(f"{what}: expected pictures of {pixels.width} x {pixels.height}, found {width} x {height}")
            if opened.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
                raise SourceError(f"{what}: expected pictures of 8 bits a channel, found one of the kind {opened.mode}")
            if pixels.grey and opened.mode not in ("1", "L"):
                raise SourceError(f"{what}: expected grey pictures, found one of the kind {opened.mode}")
            return np.asarray(opened.convert("L" if pixels.grey else "RGB"))
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError, image.DecompressionBombWarning) as error:
        if isinstance(error, DiskBufferError):
            raise
        raise SourceError(f"{what}: a picture is damaged ({error})") from error
