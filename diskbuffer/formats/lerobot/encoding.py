"""Videos, encoded one frame after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.errors import InputError
from diskbuffer.formats.lerobot.decoding import av
from diskbuffer.formats.lerobot.pixels import Pixels, UInt8

CODECS = ("libsvtav1", "h264", "hevc")  # of LeRobot's own, lossy
_MORE = {"libsvtav1": {"preset": "12"}, "hevc": {"x265-params": "log-level=none"}}
_SMALLEST_SIDE = 64  # that the encoder of AV1 takes
_KEY_FRAMES = 10  # apart, of lossless videos: a reader that picks a frame decodes half as many. LeRobot's lossy ones: 2
_FULL = 2  # the range of colours: 0 to 255


def check(name: str, pixels: Pixels, codec: str) -> None:
    """Raise an InputError where a lossy codec does not take pictures of this size."""
    smallest = _SMALLEST_SIDE if codec == "libsvtav1" else 2
    if pixels.height % 2 or pixels.width % 2 or min(pixels.height, pixels.width) < smallest:
        raise InputError(
            f"{codec} takes pictures with even sides of {smallest} and more, and those of {name!r} are {pixels.width} x "
            f"{pixels.height}; choose pictures='lossless' or 'image'"
        )


class Video:
    """An MP4 that is being written.

    Lossless ones are H.264 at its quantizer 0: grey pictures as luma alone, at full range, and RGB ones as planes of green, blue
    and red. FFmpeg, and all that is made with it, decodes both to the same bytes.

    Parameters
    ----------
    path : pathlib.Path
    pixels : Pixels
    fps : int
    codec : str or None
        A lossy one of `CODECS`, used as LeRobot does; None for a lossless video.
    """

    def __init__(self, path: Path, pixels: Pixels, fps: int, codec: str | None) -> None:
        self._path, self._pixels, self._fps = path, pixels, fps
        self.frames = 0
        self._container = av().open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        try:
            self._begin(codec)
        except BaseException:
            self._container.close()
            raise

    def _begin(self, codec: str | None) -> None:
        if codec is None:
            # Slower presets make videos of cameras 12 % smaller, which take three times as long to decode.
            options = {"qp": "0", "preset": "ultrafast", "g": str(_KEY_FRAMES)}
            name, kind = ("libx264", "gray") if self._pixels.grey else ("libx264rgb", "rgb24")
            self._kind = kind
        else:
            options = {"g": "2", "crf": "30"} | _MORE.get(codec, {})
            name, kind, self._kind = codec, "yuv420p", "rgb24"
        self._stream = self._container.add_stream(name, rate=self._fps, options=options)
        self._stream.width, self._stream.height, self._stream.pix_fmt = self._pixels.width, self._pixels.height, kind
        if codec is None:
            self._stream.codec_context.color_range = _FULL

    @property
    def size(self) -> int:
        """Bytes that are written so far, about."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:  # the encoder holds back the first pictures
            return 0

    def add(self, pixels: UInt8) -> None:
        """Add pictures, (n, H, W) or (n, H, W, 3)."""
        for each in pixels:
            if self._pixels.grey and self._kind == "rgb24":
                each = np.repeat(each[..., None], 3, axis=-1)
            frame = av().VideoFrame.from_ndarray(np.ascontiguousarray(each), format=self._kind)
            if self._kind == "gray":
                frame.color_range = _FULL
            self._container.mux(self._stream.encode(frame))
            self.frames += 1

    def finish(self) -> None:
        """Write what is left, and close the file."""
        self._container.mux(self._stream.encode())
        self._container.close()

    def close(self) -> None:
        """Close the file, whole or not."""
        self._container.close()


def described(pixels: Pixels, fps: int, codec: str | None) -> dict[str, Any]:
    """Describe a video as LeRobot does in info.json."""
    lossless = "yuvj420p" if pixels.grey else "gbrp"  # as decoders see them
    return {
        "video.height": pixels.height,
        "video.width": pixels.width,
        "video.codec": {None: "h264", "libsvtav1": "av1"}.get(codec, codec),
        "video.pix_fmt": lossless if codec is None else "yuv420p",
        "video.is_depth_map": False,
        "video.fps": fps,
        "video.channels": 3,
        "has_audio": False,
    }
