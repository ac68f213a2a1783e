"""libwebp, which Pillow carries: single pictures, compressed with a loss.

Pillow compresses, as it takes care of libwebp's structures, which another version may have otherwise. Pictures are decoded by two
plain functions that have been the same since libwebp 0.2, and need nothing but addresses. Both are looked up when the first store
needs them, as the package may be missing. `diskbuffer.native.webp_calls` calls them from compiled code.
"""

from __future__ import annotations

import ctypes
import io
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import MissingPackageError
from diskbuffer.native.c_functions import find
from diskbuffer.runtime.packages import needed

Picture = npt.NDArray[np.uint8]  # (height, width, 3)

# Of libwebp's 0 to 6. Photographs of 224x224 took 6.9 ms and 13,533 bytes with 2, 13.6 ms and 13,320 bytes with 4, the default.
EFFORT = 2


class Functions(NamedTuple):
    """Addresses of ``WebPGetInfo`` and ``WebPDecodeRGBInto``."""

    get_info: int
    decode_into: int


@cache
def _library() -> Any:
    """Return the functions as ctypes has them; a MissingPackageError where there are none."""
    needed("PIL._webp", "pillow", "webp", "a column of the codec webp")
    try:
        get_info, decode_into = find("PIL._webp", "WebPGetInfo"), find("PIL._webp", "WebPDecodeRGBInto")
    except ImportError as error:
        raise MissingPackageError(
            f"a column of the codec webp needs Pillow with a shared libwebp, as its wheels have it ({error}); "
            "pip install --force-reinstall --only-binary :all: pillow"
        ) from error
    at, size = ctypes.c_ssize_t, ctypes.c_size_t
    get_info.restype, get_info.argtypes = ctypes.c_int, (at, size, at, at)
    decode_into.restype, decode_into.argtypes = at, (at, size, at, size, ctypes.c_int)
    return get_info, decode_into


@cache
def functions() -> Functions:
    """Return what compiled code calls; a MissingPackageError where Pillow is not installed."""
    return Functions(*(int(ctypes.cast(found, ctypes.c_void_p).value or 0) for found in _library()))


def encode(picture: Picture, quality: int) -> bytes:
    """Compress a picture. Some 100 to 170 ns a pixel, most of them without the GIL."""
    height, width = picture.shape[:2]
    image = needed("PIL.Image", "pillow", "webp", "a column of the codec webp")
    found = io.BytesIO()
    image.frombuffer("RGB", (width, height), picture, "raw", "RGB", 0, 1).save(found, "WEBP", quality=quality, method=EFFORT)
    return found.getvalue()


def decode(file: bytes, target: Picture) -> bool:
    """Decode a file to a picture; return whether it is one, of that size. Holds no GIL."""
    height, width = target.shape[:2]
    get_info, decode_into = _library()
    source, size, found = np.frombuffer(file, np.uint8).ctypes.data, len(file), np.zeros(2, np.int32)
    if not get_info(source, size, found.ctypes.data, found.ctypes.data + 4) or found.tolist() != [width, height]:
        return False
    return bool(decode_into(source, size, target.ctypes.data, target.nbytes, 3 * width))
