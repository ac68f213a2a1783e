"""Pictures that Minari has written as JPEG, one a row."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.plugin import Rows, require

_MODES = {1: "L", 3: "RGB", 4: "CMYK"}


class Jpegs:
    """Pictures, decoded when they are sliced, as Minari decodes them.

    Parameters
    ----------
    encoded : Rows
        One row of bytes each, or an array of arrays of bytes.
    shape : tuple of int
        Of a picture: height and width, and colours where it has them.
    where : str
        For messages.
    """

    def __init__(self, encoded: Rows, shape: tuple[int, ...], where: str) -> None:
        self._image: Any = require("PIL.Image", "pillow", "minari", "to read JPEG")
        self._encoded, self._where = encoded, where
        self.shape = (encoded.shape[0], *shape)
        self.dtype = np.dtype("uint8")

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        encoded = self._encoded[rows]
        pictures = np.empty((len(encoded), *self.shape[1:]), np.uint8)
        for row, one in enumerate(encoded):
            pictures[row] = self._decode(bytes(one))
        return pictures

    def _decode(self, encoded: bytes) -> npt.NDArray[Any]:
        height, width, *colours = self.shape[1:]
        try:
            with warnings.catch_warnings():  # of huge sizes, which are refused below
                warnings.simplefilter("ignore")
                picture = self._image.open(io.BytesIO(encoded), formats=["JPEG"])
            if picture.size != (width, height) or picture.mode != _MODES.get(*colours or [1]):
                raise SourceError(
                    f"{self._where}: a picture is {picture.mode} of {picture.size[0]} x {picture.size[1]}, and should be of "
                    f"the shape {list(self.shape[1:])}"
                )
            return np.asarray(picture).reshape(self.shape[1:])
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(f"{self._where}: a picture is no JPEG, or is cut short: {error}") from error
