"""Where a frame is compressed, and where it is decompressed: one chunk of rows, as Blosc and a CRC32C after it.

(Pictures that are compressed with a loss are in `diskbuffer.store.format.pictures`, what both have in common in
`diskbuffer.store.format.chunks`.)

A chunk is LZ4 while its segment is live, for that costs `add` 2 us a frame. Sealing, in the background, compresses it again by
another `Method`, to something smaller and faster to read. Which compressor a chunk has is in its own Blosc header, so that one
array may have chunks of several. Those of LZ4, whatever wrote them, are one block, of which the first rows can be decoded
without the rest:

    byte 0        16                 20             24
    | Blosc header | offset of block | size of LZ4 | LZ4 ... | CRC32C of all before, 4 bytes |

`diskbuffer.native.codec` compresses and decodes; `diskbuffer.store.format.encoding` says which chunks, and how.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diskbuffer.native import codec as native
from diskbuffer.native.arrays import address_of
from diskbuffer.native.checksums import crc32c
from diskbuffer.schema.schema import Column


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
PICTURES = Method("pictures")  # LZ4 by an encoder of our own, `native/kernels/lz4_encoder.hpp`
COPY = Method("copy")  # the live chunk
NONE = Method("none")  # not compressed

HEADER, CHECKSUM = native.HEADER, native.CHECKSUM

# What is wrong with a chunk. Zero is nothing.
BAD_ENTRY, BAD_CHECKSUM, BAD_HEADER = native.BAD_ENTRY, native.BAD_CHECKSUM, native.BAD_HEADER
BAD_STREAM, BAD_PICTURE, OUTSIDE = native.BAD_STREAM, native.BAD_PICTURE, native.OUTSIDE
REASONS = {
    BAD_ENTRY: "its entry in the shard's index points outside of the file",
    BAD_CHECKSUM: "its checksum does not match",
    BAD_HEADER: "its Blosc header is not that of a chunk of this column",
    BAD_STREAM: "it cannot be decompressed",
    BAD_PICTURE: "it is no picture of this column",
    OUTSIDE: "the file that it should be in ends before it",
}
MOST = 2**31 - 1  # bytes that LZ4 and Blosc can be told of: their sizes are 32 bits with a sign
MEMCPYED = 0x2  # a flag of a Blosc header


def declared_method(column: Column) -> Method | None:
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
    return chunk_bytes + HEADER + CHECKSUM


def checksum(data: Any, crc: int = 0) -> int:
    """Return the CRC32C of a contiguous array's bytes, after others whose checksum is `crc`. Holds no GIL."""
    return crc32c(crc, address_of(data), data.nbytes)
