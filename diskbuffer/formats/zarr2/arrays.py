"""Arrays of Zarr v2 from anyone, read chunk by chunk.

zarr-python reads such arrays, too. It decompresses whatever a chunk decompresses to, and runs any codec that an array names,
pickles among them. Here some codecs are read, and none writes more than a chunk has.
"""

from __future__ import annotations

import bz2
import itertools
import lzma
import math
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.formats.untrusted import damaged
from diskbuffer.formats.zarr2 import jpegxl
from diskbuffer.formats.zarr2.files import GroupFiles

_LARGEST_CHUNK = 1024**3  # bytes
_LARGEST_DICTIONARY = 128 * 1024**2  # bytes that LZMA takes: its highest level needs 65 MiB, and a file can ask for 4 GiB
_INFLATING: dict[str, Callable[[], Any]] = {
    "zlib": zlib.decompressobj,
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "bz2": bz2.BZ2Decompressor,
    "lzma": lambda: lzma.LZMADecompressor(memlimit=_LARGEST_DICTIONARY),
}
_HEADER, _COPIED, _MOST = 16, 2, 2**31 - 1  # of a chunk of Blosc: bytes of its header, a flag, and bytes that it can hold


class ZarrRows:
    """The rows of an array; an item of its first axis is one. The chunks that were read last are kept.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        In this machine's byte order.
    kept : int
        Bytes that are kept, once some were read.
    """

    def __init__(self, files: GroupFiles, name: str) -> None:
        self._files, self.name = files, name
        where, metadata = f"{files.path}: {name}", files.metadata(f"{name}/.zarray")
        try:
            self.shape = tuple(int(n) for n in metadata["shape"])
            self._chunks = tuple(int(n) for n in metadata["chunks"])
            self._dtype = np.dtype(_text(metadata["dtype"]))
            self._codec = metadata["compressor"] and _text(metadata["compressor"]["id"])
            self._configuration = metadata["compressor"]
            self._order = _text(metadata["order"])
            self._separator = _text(metadata.get("dimension_separator", "."))
            fill = metadata["fill_value"]
            self._fill = (
                np.zeros((), self._dtype) if fill is None or self._dtype.kind not in "biufc" else np.array(fill, self._dtype)
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SourceError(f"{where}/.zarray is not the metadata of a Zarr v2 array: {error!r}") from error
        self.dtype = self._dtype.newbyteorder("=")
        self._chunk_bytes = math.prod(self._chunks) * self._dtype.itemsize
        across = [-(-n // c) * c for n, c in zip(self.shape[1:], self._chunks[1:], strict=False) if c > 0]
        self.kept = (self._chunks[0] if self._chunks else 1) * math.prod(across) * self._dtype.itemsize
        if (
            metadata.get("zarr_format") != 2
            or len(self.shape) != len(self._chunks)
            or min(self.shape, default=0) < 0
            or min(self._chunks, default=1) < 1
            or self._order not in ("C", "F")
            or self._separator not in (".", "/")
            or self._fill.shape
        ):
            raise SourceError(f"{where}/.zarray is not the metadata of a Zarr v2 array")
        if self._chunk_bytes > _LARGEST_CHUNK or self.kept > _LARGEST_CHUNK:
            raise SourceError(f"{where} has chunks of {max(self._chunk_bytes, self.kept):,} bytes, of at most {_LARGEST_CHUNK:,}")
        if metadata.get("filters") or self._codec not in (None, jpegxl.ID, *_SIZED, *_INFLATING):
            raise SourceError(
                f"{where} is compressed by {self._codec!r}, filters {metadata.get('filters')}, which is not read here"
            )
        self._rows: tuple[int, npt.NDArray[Any]] = (-1, np.zeros(0))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self._dtype.itemsize

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        values = np.empty((max(0, last - first), *self.shape[1:]), self.dtype)
        at, length = first, self._chunks[0]
        while at < last:
            number = at // length
            end = min(last, (number + 1) * length)
            values[at - first : end - first] = self._row_of_chunks(number)[at - number * length : end - number * length]
            at = end
        return values

    def _row_of_chunks(self, number: int) -> npt.NDArray[Any]:
        """Return the rows of the chunks with this number along the first axis."""
        if self._rows[0] != number:
            grid = [range(-(-n // c)) for n, c in zip(self.shape[1:], self._chunks[1:], strict=True)]
            whole = np.empty((self._chunks[0], *self.shape[1:]), self._dtype)
            for place in itertools.product(*grid):
                into = tuple(slice(p * c, (p + 1) * c) for p, c in zip(place, self._chunks[1:], strict=True))
                inside = tuple(
                    slice(0, min(c, n - p * c)) for p, c, n in zip(place, self._chunks[1:], self.shape[1:], strict=True)
                )
                whole[(slice(None), *into)] = self._chunk((number, *place))[(slice(None), *inside)]
            self._rows = (number, whole)
        return self._rows[1]

    def _chunk(self, place: tuple[int, ...]) -> npt.NDArray[Any]:
        name = f"{self.name}/{self._separator.join(map(str, place))}"
        data = self._files.read(name, 2 * self._chunk_bytes + 65536)
        if data is None:
            return np.full(self._chunks, self._fill, self._dtype)
        with damaged(self._files.path, "a Zarr group"):
            if self._codec == jpegxl.ID:
                values = np.empty(self._chunks, self._dtype)
                jpegxl.decode(data, values)
                return values
            data = self._decoded(data)
            if len(data) != self._chunk_bytes:
                raise SourceError(f"{self._files.path}: {name} should have {self._chunk_bytes:,} bytes, and has others")
            return np.frombuffer(data, self._dtype).reshape(self._chunks, order="F" if self._order == "F" else "C")

    def _decoded(self, data: bytes) -> bytes:
        """Return a chunk's bytes; where they are too many, not all of them."""
        if self._codec is None:
            return data
        if self._codec in _INFLATING:
            inflated: bytes = _INFLATING[self._codec]().decompress(data, self._chunk_bytes + 1)
            return inflated
        if _SIZED[self._codec](data) != self._chunk_bytes:
            return b""
        import numcodecs

        return bytes(numcodecs.get_codec({"id": self._codec}).decode(data))


def _blosc_size(data: bytes) -> int:
    """Return how many bytes a chunk of Blosc's tells that it holds; -1 where its header does not fit what is there.

    c-blosc gets the chunk's address alone, and takes its length from the header.
    """
    if len(data) < _HEADER:
        return -1
    flags, size, block, length = data[2], *struct.unpack_from("<III", data, 4)
    if length != len(data) or not 0 < size <= _MOST or not 0 < block <= size:
        return -1
    blocks = 0 if flags & _COPIED else -(-size // block)
    needed = _HEADER + (size if flags & _COPIED else 4 * blocks)  # the chunk as it is, or where each of its blocks begins
    return size if needed <= len(data) else -1


def _zstd_size(data: bytes) -> int:
    """Return how many bytes a frame of Zstandard tells that it holds; -1 where it does not."""
    if data[:4] != b"\x28\xb5\x2f\xfd":
        return -1
    descriptor = data[4]
    single = descriptor >> 5 & 1
    length = {0: single, 1: 2, 2: 4, 3: 8}[descriptor >> 6]
    begin = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(data[begin : begin + length], "little") + (256 if length == 2 else 0)
    return size if length else -1


# Those that tell how much they hold, which is believed only where it is what a chunk has.
_SIZED: dict[str, Callable[[bytes], int]] = {
    "blosc": _blosc_size,
    "lz4": lambda data: int.from_bytes(data[:4], "little"),
    "zstd": _zstd_size,
}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r:.100}")
    return value
