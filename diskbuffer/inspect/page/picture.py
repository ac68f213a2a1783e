"""A frame as a PNG, or the stack of frames that an agent sees, side by side."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import EvictedError
from diskbuffer.inspect.pictures.frames import UInt8, as_pictures
from diskbuffer.inspect.pictures.images import pillow
from diskbuffer.inspect.view import StoreView

Int64 = npt.NDArray[np.int64]
_GAP, _GREY = 2, 128  # pixels between frames, and their colour


def frame(view: StoreView, column: str, step: int, *, stacked: bool) -> bytes:
    """Return the picture of a step's observation; with `stacked` all frames of its stack, the oldest on the left.

    Raises
    ------
    InputError, EvictedError, CorruptionError
        As `StoreView.read`; InputError, too, where the column is no picture.
    """
    newest = view.read(column, [step])
    if not stacked or view.layout.frame_stack == 1:
        return to_png(as_pictures(newest)[0])
    steps, missing = stack_of(view, step)
    frames = view.read(column, steps)
    first = frames[:1] if view.layout.padding == "first" else np.zeros_like(frames[:1])
    return to_png(side_by_side(as_pictures(np.concatenate([first.repeat(missing, axis=0), frames]))))


def stack_of(view: StoreView, step: int) -> tuple[Int64, int]:
    """Return the rows of a step's stack that are there, the oldest first, and how many are to be filled up before them.

    The step's own row is there; an EvictedError where no episode that it was part of is, any more.
    """
    streams = view.layout.streams
    stream, position = step % streams, step // streams
    starts = view.index.starts(stream)
    started = int(np.searchsorted(starts, position, side="right"))
    if not started:
        raise EvictedError(f"step {step} is not there any more: its episode was evicted, or cleared")
    start = int(starts[started - 1])
    wanted = position - view.layout.frame_stack + 1
    first = max(wanted, _lead_in(view, stream, start, wanted), 0)
    return np.arange(first, position + 1) * streams + stream, first - wanted


def _lead_in(view: StoreView, stream: int, start: int, wanted: int) -> int:
    """Return where an episode's lead-in begins: rows of earlier frames before its first row; `start` where it has none."""
    low = int(view.lows[stream])
    rows = np.arange(max(wanted, low), start)
    if not len(rows):
        return start
    names = rows * view.layout.streams + stream
    lead = (view.read("is_last", names) != 0) & (view.read("truncated", names) != 0)
    others = np.flatnonzero(~lead)
    first = int(rows[others[-1]]) + 1 if len(others) else int(rows[0])
    begins = np.flatnonzero(view.read("terminated", names)[first - int(rows[0]) :] != 0)
    return first + int(begins[-1]) if len(begins) else first


def side_by_side(frames: UInt8) -> UInt8:
    """Put frames, (n, H, W) or (n, H, W, 3), beside each other."""
    gap = np.full((frames.shape[1], _GAP, *frames.shape[3:]), _GREY, np.uint8)
    return np.concatenate([part for one in frames for part in (gap, one)][1:], axis=1)


def to_png(pixels: UInt8) -> bytes:
    """Compress pixels lightly: a frame is shown once, and comes over loopback."""
    out = io.BytesIO()
    pillow().fromarray(pixels).save(out, "PNG", compress_level=1)
    return out.getvalue()
