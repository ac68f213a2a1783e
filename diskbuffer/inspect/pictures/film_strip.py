"""Film strips: frames side by side, with a label below each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.inspect.pictures.frames import UInt8, as_pictures
from diskbuffer.inspect.pictures.images import INK, MUTED, PAPER, check_size, enlarged, font, pillow, saved, shortened
from diskbuffer.plugin import require

_GAP, _TEXT = 6, 13  # pixels: between frames, and of letters
_TOO_TALL = 1.5  # frames that are so much taller than wanted are made smaller


def spread(total: int, n: int | None) -> npt.NDArray[np.int64]:
    """Choose `n` of so many, evenly, the first and the last among them; all where there are no more, or n is None."""
    if n is not None and n < 1:
        raise InputError(f"a film strip has at least 1 frame, found n={n}")
    if n is None or total <= n:
        return np.arange(total)
    return np.rint(np.linspace(0, total - 1, n)).astype(np.int64) if n > 1 else np.zeros(1, np.int64)


def film_strip(
    frames: npt.NDArray[Any],
    n: int | None = 8,
    labels: Sequence[str] | None = None,
    *,
    title: str = "",
    height: int = 160,
    width: int = 1200,
) -> bytes:
    """Draw frames side by side, in as many rows as they need.

    Parameters
    ----------
    frames : (frames, ...) array
        Rows of a picture column, as `as_pictures` takes them.
    n : int, optional
        How many to show, spread evenly, the first and the last among them; None shows all.
    labels : sequence of str, optional
        A text below each of `frames`, cut to its width. Their numbers, from 0 on, by default.
    title : str
        A line above.
    height : int
        About so high is each frame: small ones are enlarged by a whole number, large ones made smaller.
    width : int
        So wide is the strip at most, if a frame is not wider itself.

    Returns
    -------
    bytes
        A PNG.

    Raises
    ------
    InputError
        The frames are no pictures, or there are none, or there is not one label for each.
    MissingPackageError
        pillow is not installed.
    """
    if labels is not None and len(labels) != len(frames):
        raise InputError(f"expected a label for each of {len(frames)} frames, found {len(labels)}")
    if not len(frames):
        raise InputError("expected frames to draw, found none")
    shown = spread(len(frames), n)
    tiles = _fitting(as_pictures(frames[shown]), height)
    names = [str(at) if labels is None else labels[at] for at in shown.tolist()]
    tile_height, tile_width = tiles.shape[1:3]
    lines = -(-len(tiles) // max(1, (width - _GAP) // (tile_width + _GAP)))
    across = -(-len(tiles) // lines)  # the same in each line
    row_height = tile_height + _TEXT + 2 * _GAP
    top = _TEXT + 2 * _GAP if title else _GAP
    size = (across * (tile_width + _GAP) + _GAP, top + lines * row_height)
    check_size(size[1], size[0])
    letters, image = font(_TEXT), pillow().new("RGB", size, PAPER)
    draw = require("PIL.ImageDraw", "pillow", "notebook").Draw(image)
    if title:
        draw.text((_GAP, _GAP), shortened(title, size[0] - 2 * _GAP, letters), INK, letters)
    for at, (tile, name) in enumerate(zip(tiles, names, strict=True)):
        x, y = _GAP + at % across * (tile_width + _GAP), top + at // across * row_height
        image.paste(pillow().fromarray(np.ascontiguousarray(tile)), (x, y))
        text = shortened(name, tile_width, letters)
        draw.text((x + (tile_width - letters.getlength(text)) / 2, y + tile_height + _GAP // 2), text, MUTED, letters)
    return saved(image)


def _fitting(pixels: UInt8, height: int) -> UInt8:
    """Return pictures, (n, H, W) or (n, H, W, 3), about so high."""
    if pixels.shape[1] <= _TOO_TALL * height:
        return enlarged(pixels, max(1, round(height / pixels.shape[1])))
    size = (max(1, round(pixels.shape[2] * height / pixels.shape[1])), height)
    image = pillow()
    return np.stack([np.asarray(image.fromarray(each).resize(size, image.Resampling.BOX)) for each in pixels])
