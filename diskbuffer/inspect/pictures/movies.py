"""Movies of frames: GIF by pillow, MP4 by PyAV."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from fractions import Fraction
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.inspect.pictures.frames import UInt8, as_pictures
from diskbuffer.inspect.pictures.images import enlarged, pillow
from diskbuffer.plugin import require

_FASTEST = {"gif": 50, "mp4": 240}  # frames a second: browsers slow down GIFs that are faster
_COLOURS = 256  # of a GIF
_QUALITY = "16"  # of x264: 0 loses nothing, 23 is its default, and 18 is said to look like the original
_KEY_FRAMES = 25  # apart, so that a player can jump
_BT601, _LIMITED = 6, 1  # what a player is told of the colours, or it guesses by the size


def has_video() -> bool:
    """Return whether MP4 can be made: whether PyAV is installed."""
    return importlib.util.find_spec("av") is not None


def movie(frames: npt.NDArray[Any], kind: str, fps: float = 15, *, scale: int = 1) -> bytes:
    """Return frames as a movie.

    Parameters
    ----------
    frames : (n, ...) array
        Rows of a picture column, as `as_pictures` takes them.
    kind : str
        "mp4" (H.264), in which the last pixels of a side are repeated where that is an odd number. Or "gif", which plays for
        ever, with the exact colours where all frames together have 256 at most, as grey ones have; else with the nearest of 256.
    fps : float
        Frames a second: up to 240; of a GIF, which counts hundredths of a second, up to 50.
    scale : int
        How many pixels, each way, one pixel becomes.

    Raises
    ------
    InputError
        The frames are no pictures, or there are none, or they are too large, or `fps` is not from 1 to that.
    MissingPackageError
        PyAV, or pillow, is not installed.
    """
    if not 1 <= fps <= _FASTEST[kind]:
        raise InputError(f"fps must be from 1 to {_FASTEST[kind]}, found {fps!r}; leave frames out to make it faster")
    if not len(frames):
        raise InputError("expected frames to make a movie of, found none")
    pixels, file = enlarged(as_pictures(frames), scale), io.BytesIO()
    if kind == "mp4":
        write_mp4(file, iter([pixels]), fps)
    else:
        images = _with_palette(pixels)
        ends = np.rint(np.arange(1, len(images) + 1) * 100 / fps).astype(np.int64) * 10  # milliseconds
        lasting = np.diff(ends, prepend=0).tolist()
        images[0].save(file, "GIF", save_all=True, append_images=images[1:], duration=lasting, loop=0, optimize=False)
    return file.getvalue()


def write_mp4(file: IO[bytes], blocks: Iterator[UInt8], fps: float) -> None:
    """Write an MP4 to a binary file, from blocks of consecutive frames, each (n, H, W) or (n, H, W, 3) uint8, at least one."""
    av = require("av", "av", "video", "to make an MP4")
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.options = {"crf": _QUALITY, "preset": "veryfast", "threads": "1"}  # with more, films differ from run to run
        stream.gop_size = _KEY_FRAMES
        for number, pixels in enumerate(blocks):
            odd = [(0, 0), (0, pixels.shape[1] % 2), (0, pixels.shape[2] % 2), (0, 0)]
            pixels = np.pad(pixels, odd[: pixels.ndim], "edge")
            if not number:
                stream.height, stream.width, stream.pix_fmt = *pixels.shape[1:3], "yuv420p"
                stream.codec_context.colorspace, stream.codec_context.color_range = _BT601, _LIMITED  # as frames are converted
            for each in pixels:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(each), format="gray" if each.ndim == 2 else "rgb24")
                container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _with_palette(pixels: UInt8) -> list[Any]:
    """Return images of 256 colours at most: the exact ones where there are no more in all frames together."""
    image = pillow()
    if pixels.ndim == 3:
        return [image.fromarray(each) for each in pixels]
    packed = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colours, numbers = np.unique(packed, return_inverse=True)
    if len(colours) > _COLOURS:
        return [image.fromarray(each).quantize(_COLOURS, dither=image.Dither.NONE) for each in pixels]
    images = [image.fromarray(each) for each in numbers.reshape(packed.shape).astype(np.uint8)]
    for each in images:
        each.putpalette(np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1).astype(np.uint8).tobytes())
    return images
