"""Where a frame is compressed, and where it is decompressed: one chunk of rows, as Blosc and a CRC32C after it.

(Pictures that are compressed with a loss are in `diskbuffer.store.format.pictures`, what both have in common in
`diskbuffer.store.format.chunks`.)

A chunk is LZ4 while its segment is live, for that costs `add` 2 us a frame. Sealing, in the background, compresses it again by
another `Method`, to something smaller and faster to read. Which compressor a chunk has is in its own Blosc header, so that one
array may have chunks of several. Those of LZ4, whatever wrote them, are one block, of which the first rows can be decoded
without the rest:

    byte 0        16                 20             24
    | Blosc header | offset of block | size of LZ4 | LZ4 ... | CRC32C of all before, 4 bytes |

Here chunks are decoded one at a time, in plain Python, to look into a store. `diskbuffer.store.format.codec_kernel` does the
same, compiled, for batches; and compresses.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.native import c_functions
from diskbuffer.schema import Column

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Method(NamedTuple):
    """How a chunk is compressed when it is sealed: by one of Blosc's compressors, `PICTURES`, or `COPY` (as it is)."""

    compressor: str
    level: int = 0
    item: int = 1  # bytes of an item, where those of several are shuffled

    def __str__(self) -> str:
        level = f":{self.level}" if self.level and self.compressor != "lz4" else ""
        return f"{self.compressor}{level}{', shuffled' if self.item > 1 else ''}"


LIVE = Method("lz4", 1)
SEALED = Method("lz4hc", 7)  # what the array's metadata say, unless a column has a codec of its own
PICTURES = Method("pictures")  # LZ4 by `lz4_pictures`
COPY = Method("copy")  # the live chunk
NONE = Method("none")  # not compressed

HEADER = 16
CHECKSUM = 4

# What is wrong with a chunk. Zero is nothing.
BAD_ENTRY, BAD_CHECKSUM, BAD_HEADER, BAD_STREAM, BAD_PICTURE = 1, 2, 3, 4, 5
REASONS = {
    BAD_ENTRY: "its entry in the shard's index points outside of the file",
    BAD_CHECKSUM: "its checksum does not match",
    BAD_HEADER: "its Blosc header is not that of a chunk of this column",
    BAD_STREAM: "it cannot be decompressed",
    BAD_PICTURE: "it is no picture of this column",
}
MOST = 2**31 - 1  # bytes that LZ4 and Blosc can be told of: their sizes are 32 bits with a sign
MEMCPYED, SHUFFLED, LZ4 = 0x2, 0x5, 1  # flags of a Blosc header, and the number of a compressor in their upper three bits
_MORE_THAN_BLOSC_ADDS = HEADER + CHECKSUM


def given_method(column: Column) -> Method | None:
    """Return how a column is compressed by its codec, None where that is to be chosen."""
    if column.codec is None or column.codec == "none":
        return None if column.codec is None else NONE
    compressor, _, level = column.codec.partition(":")
    return Method(compressor, int(level or 9), column.np_dtype.itemsize)  # of WebP, the level is the quality


def live_method(column: Column) -> Method:
    """Return how a column's live chunks are compressed."""
    return NONE if column.codec == "none" else LIVE


def bound(chunk_bytes: int) -> int:
    """Return the most bytes that a chunk can take on disk."""
    return chunk_bytes + _MORE_THAN_BLOSC_ADDS


def decode(chunk: int, size: int, chunk_bytes: int, target: int) -> int:
    """Decode a chunk of `size` bytes at an address to the address `target`; return 0 or what is wrong."""
    body = size - CHECKSUM
    if not HEADER <= body <= min(HEADER + chunk_bytes, MOST):
        return BAD_HEADER
    if c_functions.crc32c_extend(0, chunk, body) != int.from_bytes(ctypes.string_at(chunk + body, CHECKSUM), "little"):
        return BAD_CHECKSUM
    flags, item, nbytes, block, cbytes = struct.unpack("<xxBBIII", ctypes.string_at(chunk, HEADER))
    if nbytes != chunk_bytes or cbytes != body or block == 0:
        return BAD_HEADER
    if flags & MEMCPYED:
        if body != HEADER + chunk_bytes:
            return BAD_HEADER
        ctypes.memmove(target, chunk + HEADER, chunk_bytes)
        return 0
    if flags >> 5 == LZ4 and item == 1 and block == chunk_bytes and not flags & SHUFFLED:
        return _decode_block(chunk, body, chunk_bytes, target)
    return 0 if c_functions.blosc_decompress(chunk, target, chunk_bytes, 1) == chunk_bytes else BAD_STREAM


def _decode_block(chunk: int, body: int, chunk_bytes: int, target: int) -> int:
    """Decode a chunk that is one block of LZ4, by LZ4 itself."""
    at = int.from_bytes(ctypes.string_at(chunk + HEADER, 4), "little")
    if not HEADER + 4 <= at <= body - 4:
        return BAD_HEADER
    n = int.from_bytes(ctypes.string_at(chunk + at, 4), "little")
    if at + 4 + n > body:
        return BAD_HEADER
    if n == chunk_bytes:  # did not become smaller, and so was stored as it is
        ctypes.memmove(target, chunk + at + 4, chunk_bytes)
        return 0
    decoded = c_functions.lz4_decompress_partial(chunk + at + 4, target, n, chunk_bytes, chunk_bytes)
    return 0 if decoded == chunk_bytes else BAD_STREAM


def checksum(data: Any, crc: int = 0) -> int:
    """Return the CRC32C of a contiguous array's bytes, after others whose checksum is `crc`. Holds no GIL."""
    return int(c_functions.crc32c_extend(crc, data.ctypes.data, data.nbytes))
