"""A frame as a PNG, or the stack of frames that an agent sees, side by side."""

from __future__ import annotations

import io

import numpy as np

from diskbuffer.inspect.pictures.frames import UInt8, as_pictures
from diskbuffer.inspect.pictures.images import pillow
from diskbuffer.plugin import Reader

_GAP, _GREY = 2, 128  # pixels between frames, and their colour


def frame(reader: Reader, column: str, step: int, *, stacked: bool) -> bytes:
    """Return the picture of a step's observation; with `stacked` all frames of its stack, the oldest on the left.

    Raises
    ------
    InputError, EvictedError, CorruptionError
        As `Reader.read`; InputError, too, where the column is no picture.
    """
    newest, info = reader.read(column, [step]), reader.info
    if not stacked or info.frame_stack == 1:
        return to_png(as_pictures(newest)[0])
    frames = reader.read(column, reader.stack(step))
    first = frames[:1] if info.padding == "first" else np.zeros_like(frames[:1])
    return to_png(side_by_side(as_pictures(np.concatenate([first.repeat(info.frame_stack - len(frames), axis=0), frames]))))


def side_by_side(frames: UInt8) -> UInt8:
    """Put frames, (n, H, W) or (n, H, W, 3), beside each other."""
    gap = np.full((frames.shape[1], _GAP, *frames.shape[3:]), _GREY, np.uint8)
    return np.concatenate([part for one in frames for part in (gap, one)][1:], axis=1)


def to_png(pixels: UInt8) -> bytes:
    """Compress pixels lightly: a frame is shown once, and comes over loopback."""
    out = io.BytesIO()
    pillow().fromarray(pixels).save(out, "PNG", compress_level=1)
    return out.getvalue()
