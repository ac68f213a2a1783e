"""libwebp, which Pillow carries: single pictures, compressed with a loss.

Pillow compresses, as it takes care of libwebp's structures, which another version may have otherwise. Pictures are decoded by two
plain functions that have been the same since libwebp 0.2. Native code calls them by their addresses, which are looked up when the
first store needs them, as the package may be missing.
"""

from __future__ import annotations

import io
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import MissingPackageError
from diskbuffer.native.c_functions import address
from diskbuffer.runtime.packages import require

Picture = npt.NDArray[np.uint8]  # (height, width, 3)

# Of libwebp's 0 to 6. Photographs of 224x224 took 6.9 ms and 13,533 bytes with 2, 13.6 ms and 13,320 bytes with 4, the default.
EFFORT = 2


class Functions(NamedTuple):
    """Addresses of ``WebPGetInfo`` and ``WebPDecodeRGBInto``."""

    get_info: int
    decode_into: int


@cache
def functions() -> Functions:
    """Return what native code calls; a MissingPackageError where there is none."""
    require("PIL._webp", "pillow", "webp", "a column of the codec webp")
    try:
        return Functions(address("PIL._webp", "WebPGetInfo"), address("PIL._webp", "WebPDecodeRGBInto"))
    except ImportError as error:
        raise MissingPackageError(
            f"a column of the codec webp needs Pillow with a shared libwebp, as its wheels have it ({error}); "
            "pip install --force-reinstall --only-binary :all: pillow"
        ) from error


def encode(picture: Picture, quality: int) -> bytes:
    """Compress a picture. Some 100 to 170 ns a pixel, most of them without the GIL."""
    height, width = picture.shape[:2]
    image = require("PIL.Image", "pillow", "webp", "a column of the codec webp")
    output = io.BytesIO()
    image.frombuffer("RGB", (width, height), picture, "raw", "RGB", 0, 1).save(output, "WEBP", quality=quality, method=EFFORT)
    return output.getvalue()
