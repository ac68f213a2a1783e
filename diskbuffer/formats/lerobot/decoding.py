"""Videos, decoded one frame after the other."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import DiskBufferError, SourceError
from diskbuffer.formats.lerobot.pixels import Pixels, UInt8
from diskbuffer.plugin import require

_THREADS = 2  # more need more memory, and pictures of a robot are small
_FULL_GREY = ("gray", "yuvj420p", "yuvj422p", "yuvj444p")  # whose first plane is the grey picture as it is


def av() -> Any:
    """Return PyAV."""
    return require("av", "av", "lerobot", "videos in LeRobot's format")


def frames(path: Path, pixels: Pixels, fps: float, first: int) -> Iterator[UInt8]:
    """Yield pictures of a video from number `first` on, (1, H, W) or (1, H, W, 3), until it ends.

    Parameters
    ----------
    path : pathlib.Path
    pixels : Pixels
        What they must be.
    fps : float
        Number n is the frame at n / fps seconds.
    first : int

    Raises
    ------
    SourceError
        There is no such file, it is damaged, has pictures of another size, or no frame at one of these times.
    """
    errors = (av().error.FFmpegError, OSError, ValueError, MemoryError)
    try:
        begun = yield from _from(path, pixels, fps, first, seek=first > 0)
        if not begun:  # its index is of no use
            yield from _from(path, pixels, fps, first, seek=False)
    except FileNotFoundError:
        raise SourceError(f"{path} is missing") from None
    except errors as error:
        if isinstance(error, DiskBufferError):
            raise
        raise SourceError(f"{path} is damaged, or no video ({error})") from error


def _from(path: Path, pixels: Pixels, fps: float, first: int, *, seek: bool) -> Generator[UInt8, None, bool]:
    """Yield pictures; return whether there was anything to decode that is not behind the first one."""
    number = first
    with av().open(str(path), format="mp4") as container:  # no other format: some of them name other files
        if not container.streams.video:
            raise SourceError(f"{path} has no video in it")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise SourceError(f"{path} has a video of a kind that FFmpeg does not know")
        _check_size(path, pixels, stream.codec_context.width, stream.codec_context.height)
        stream.codec_context.options = {"max_pixels": str(2 * (pixels.height + 64) * (pixels.width + 64))}
        stream.thread_type, stream.codec_context.thread_count = "AUTO", _THREADS
        if seek:
            container.seek(max(0, int((first - 0.5) / fps / stream.time_base)), stream=stream)
        reformatter = av().video.reformatter.VideoReformatter()
        for frame in container.decode(stream):
            if frame.pts is None:
                raise SourceError(f"{path} has frames without a time")
            at = float(frame.pts * stream.time_base) * fps
            if at < number - 0.5:
                continue
            if at > number + 0.5:
                if seek and number == first:
                    return False
                raise SourceError(f"{path} has no frame at {number / fps:.4f} seconds; the next one is at {at / fps:.4f}")
            if frame.is_corrupt:
                raise SourceError(f"{path} is damaged: its frame at {number / fps:.4f} seconds")
            _check_size(path, pixels, frame.width, frame.height)
            yield _pixels(frame, pixels, reformatter)[None]
            number += 1
    return True


def _check_size(path: Path, pixels: Pixels, width: int, height: int) -> None:
    if (width, height) != (pixels.width, pixels.height):
        raise SourceError(f"{path}: expected pictures of {pixels.width} x {pixels.height}, found {width} x {height}")


def _pixels(frame: Any, pixels: Pixels, reformatter: Any) -> UInt8:
    kind = frame.format.name
    if pixels.grey and kind in _FULL_GREY:
        return _plane(frame.planes[0], pixels)
    if not pixels.grey and kind == "gbrp":
        return np.stack([_plane(frame.planes[n], pixels) for n in (2, 0, 1)], axis=-1)
    image: UInt8 = reformatter.reformat(frame, format="gray" if pixels.grey else "rgb24").to_ndarray()
    return image


def _plane(plane: Any, pixels: Pixels) -> npt.NDArray[np.uint8]:
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    return rows[: pixels.height, : pixels.width]
