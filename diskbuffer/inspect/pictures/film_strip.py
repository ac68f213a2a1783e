"""Film strips: frames side by side, with a label below each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.inspect.pictures.frames import as_pictures
from diskbuffer.inspect.pictures.images import check_size, fitting, pillow, png
from diskbuffer.plugin import require

_INK, _PAPER = (33, 37, 41), (255, 255, 255)
_GAP, _TEXT = 6, 13  # pixels: between frames, and of letters


def spread(total: int, n: int | None) -> npt.NDArray[np.int64]:
    """Choose `n` of so many, evenly, the first and the last among them; all where there are no more, or n is None."""
    if n is not None and n < 1:
        raise InputError(f"a film strip has at least 1 frame, found n={n}")
    if n is None or total <= n:
        return np.arange(total)
    return np.rint(np.linspace(0, total - 1, n)).astype(np.int64) if n > 1 else np.zeros(1, np.int64)


def film_strip(
    frames: npt.NDArray[Any], labels: Sequence[str], *, title: str = "", height: int = 160, width: int = 1200
) -> bytes:
    """Draw frames side by side, in as many rows as they need; return a PNG.

    Parameters
    ----------
    frames : (n, ...) array
        Rows of a picture column, as `as_pictures` takes them.
    labels : sequence of str
        A text below each of them, cut to its width.
    title : str
        A line above.
    height : int
        About so high is each frame: small ones are enlarged by a whole number, large ones made smaller.
    width : int
        So wide is the strip at most, if a frame is not wider itself.

    Raises
    ------
    InputError
        The frames are no pictures, or there are none.
    MissingPackageError
        pillow is not installed.
    """
    if not len(frames):
        raise InputError("expected frames to draw, found none")
    tiles = fitting(as_pictures(frames), height)
    tile_height, tile_width = tiles.shape[1:3]
    lines = -(-len(tiles) // max(1, (width - _GAP) // (tile_width + _GAP)))
    across = -(-len(tiles) // lines)  # the same in each line
    row_height, top = tile_height + _TEXT + 2 * _GAP, _TEXT + 2 * _GAP if title else _GAP
    size = (across * (tile_width + _GAP) + _GAP, top + lines * row_height)
    check_size(size[1], size[0])
    letters, image = require("PIL.ImageFont", "pillow", "notebook").load_default(_TEXT), pillow().new("RGB", size, _PAPER)
    draw = require("PIL.ImageDraw", "pillow", "notebook").Draw(image)
    if title:
        draw.text((_GAP, _GAP), _shortened(title, size[0] - 2 * _GAP, letters), _INK, letters)
    for at, (tile, label) in enumerate(zip(tiles, labels, strict=True)):
        x, y = _GAP + at % across * (tile_width + _GAP), top + at // across * row_height
        image.paste(pillow().fromarray(np.ascontiguousarray(tile)), (x, y))
        text = _shortened(label, tile_width, letters)
        draw.text((x + (tile_width - letters.getlength(text)) / 2, y + tile_height + _GAP // 2), text, _INK, letters)
    return png(image)


def _shortened(text: str, width: float, font: Any) -> str:
    """Cut a text, on one line, so that it is `width` pixels wide at most."""
    whole = text = "".join(c if c.isprintable() else " " for c in text[:200])
    while text and font.getlength(text + ("" if text == whole else "...")) > width:
        text = text[:-1]
    return text if text == whole else text + "..."
