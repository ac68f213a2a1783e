"""JPEG XL as a codec of Zarr v2, as UMI has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.plugin import require

ID = "imagecodecs_jpegxl"
# What UMI's class takes; imagecodecs' own takes more, which UMI would refuse.
_TAKEN = ("effort", "distance", "decodingspeed", "photometric", "planar", "usecontainer", "index", "keeporientation")
LOSSLESS: dict[str, Any] = {"level": None, "lossless": True, "effort": 2, "numthreads": 1}
LOSSY: dict[str, Any] = {"level": 99, "lossless": False, "numthreads": 1}  # UMI's own


def configuration(lossy: bool) -> dict[str, Any]:
    """Return what an array's metadata says of its codec."""
    return {"id": ID, **dict.fromkeys(_TAKEN), **(LOSSY if lossy else LOSSLESS)}


def encode(pictures: npt.NDArray[np.uint8], lossy: bool) -> bytes:
    """Return a chunk of one picture (1, height, width, channels).

    What should be lossless is decoded again and compared: libjxl's effort 1 loses some items of 1 in 200 noisy pictures.
    """
    jpegxl_encode = _imagecodecs().jpegxl_encode
    if lossy:
        return bytes(jpegxl_encode(pictures[0], **LOSSY))
    again = np.empty_like(pictures)
    for effort in (LOSSLESS["effort"], 3, 7):
        encoded = bytes(jpegxl_encode(pictures[0], **{**LOSSLESS, "effort": effort}))
        decode(encoded, again)
        if np.array_equal(again, pictures):
            return encoded
    raise SourceError("a picture did not come back from JPEG XL as it was; export as diffusion_policy, which does without")


def decode(data: bytes, into: npt.NDArray[Any]) -> None:
    """Decode a chunk; a ValueError or RuntimeError where it is damaged, or of another shape."""
    if into.shape[0] == 1:
        into = into[0]
    _imagecodecs().jpegxl_decode(data, out=into[..., 0] if into.shape[-1] == 1 else into, numthreads=1)


def register() -> None:
    """Register this codec with zarr-python and numcodecs in this process."""
    require("imagecodecs.numcodecs", "imagecodecs", "umi", "reading JPEG XL").register_codecs([ID], verbose=False)


def _imagecodecs() -> Any:
    return require("imagecodecs", "imagecodecs", "umi", "reading and writing JPEG XL")
