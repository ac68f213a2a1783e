"""Pictures and curves in a terminal: half blocks, two pixels each, and lines of bars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from diskbuffer.commands.output import EIGHTHS
from diskbuffer.inspect.pictures import as_pictures
from diskbuffer.plugin import require

_NARROWEST = 32  # characters that a frame is wide, where there is room


def frames_across(width: int) -> int:
    """Return how many frames fit side by side in a terminal of so many characters."""
    return max(1, (width + 1) // (_NARROWEST + 1))


class Strip:
    """Frames side by side, as half blocks, for rich to show.

    Parameters
    ----------
    frames : (n, ...) array
        Rows of a picture column.
    width : int
        Characters that there are.
    """

    def __init__(self, frames: npt.NDArray[Any], width: int) -> None:
        image = require("PIL.Image", "pillow", "cli", "to show pictures")
        pixels = as_pictures(frames)
        across = max(1, (width - len(pixels) + 1) // len(pixels))
        tall, wide = pixels.shape[1:3]
        across = min(across, wide)
        high = max(2, round(tall * across / wide / 2) * 2)
        self._frames = [
            np.asarray(image.fromarray(np.ascontiguousarray(each)).convert("RGB").resize((across, high), image.Resampling.BOX))
            for each in pixels
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield what rich writes."""
        for y in range(0, len(self._frames[0]), 2):
            for frame in self._frames:
                for upper, lower in zip(frame[y].tolist(), frame[y + 1].tolist(), strict=True):
                    yield Segment("▀", Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower)))
                yield Segment(" ")
            yield Segment.line()


def bars(values: npt.NDArray[Any], width: int) -> str:
    """Return numbers as a line of bars; of those that share a character, the one farthest from the mean is shown."""
    numbers = np.asarray(values, np.float64)
    finite = np.isfinite(numbers)
    if not finite.any():
        return " " * min(width, len(numbers))
    low, high, mean = numbers[finite].min(), numbers[finite].max(), numbers[finite].mean()
    found = []
    for part in np.array_split(np.where(finite, numbers, mean), min(width, len(numbers))):
        value = part[np.argmax(np.abs(part - mean))]
        found.append(EIGHTHS[1 + round((value - low) / (high - low) * 7)] if high > low else EIGHTHS[4])
    return "".join(found)


def shares(values: npt.NDArray[Any], most: int = 18) -> str | None:
    """Return how often each of a few whole numbers comes, None where they are many, or no whole numbers."""
    if values.ndim != 1 or values.dtype.kind not in "bui":
        return None
    found, counts = np.unique(values, return_counts=True)
    if len(found) > most:
        return None
    return "  ".join(f"{one}: {n / len(values):.0%}" for one, n in zip(found.tolist(), counts.tolist(), strict=True))
