"""Chunks of columns that are compressed with a loss: one picture each, as a WebP file.

    byte 0                        4
    | CRC32C of the row as given  | WebP file, or the row as it was given | CRC32C of all before, 4 bytes |

A row is there as it was given where it has as many bytes as a row: where WebP would not make it smaller, and where its chunk is
not complete, so that it can go back into the tail. The checksum in front stands for the values that are lost: with it, a row's
own checksum is verified (see `diskbuffer.store.format.checksums.Summed`). So it is known whose picture this is, and what was
given is never compared with what comes out.

Here chunks are encoded, and decoded one at a time. `diskbuffer.store.format.pictures_kernel` decodes them for batches.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from diskbuffer.native import c_functions, webp
from diskbuffer.schema import Column
from diskbuffer.store.format.codec import BAD_CHECKSUM, BAD_PICTURE, CHECKSUM, checksum

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

CODEC = "diskbuffer.webp"  # its name in the Zarr metadata; see `diskbuffer.zarr_codec`
HEADER = 4


def quality_of(column: Column) -> int:
    """Return the quality of a column's pictures, from 1 to 100."""
    return int(str(column.codec).partition(":")[2])


# Encoding


def encode(row: bytes, column: Column, *, exact: bool = False) -> bytes:
    """Return the chunk of a row's bytes; with `exact`, as it is."""
    picture = row if exact else webp.encode(np.frombuffer(row, np.uint8).reshape(column.shape), quality_of(column))
    chunk = _summed(row) + (picture if len(picture) < len(row) else row)
    return chunk + _summed(chunk)


def _summed(data: bytes) -> bytes:
    return checksum(np.frombuffer(data, np.uint8)).to_bytes(4, "little")


def encode_chunks(source: int, first: int, ring: int, column: Column, out: Bytes, entries: Int64, *, exact: bool = False) -> int:
    """Compress rows, for a live shard, one after the other into `out`: as many as there are `entries`.

    Arguments and result are those of `codec_kernel.encode_chunks`. Holds no GIL for most of the time.
    """
    at = 0
    for i in range(len(entries)):
        row = ctypes.string_at(source + (first + i * column.row_bytes) % ring, column.row_bytes)
        chunk = encode(row, column, exact=exact)
        out[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
        entries[i] = at, len(chunk)
        at += len(chunk)
    return at


# Decoding


def verify(chunk: int, size: int) -> int:
    """Verify the checksum of a chunk of `size` bytes at an address, without decoding it; return 0 or what is wrong."""
    body = size - CHECKSUM
    if body <= HEADER:
        return BAD_PICTURE
    expected = int.from_bytes(ctypes.string_at(chunk + body, CHECKSUM), "little")
    return 0 if c_functions.crc32c_extend(0, chunk, body) == expected else BAD_CHECKSUM


def decode(chunk: int, size: int, column: Column, target: Bytes) -> int:
    """Decode a chunk of `size` bytes at an address to `target`, (row_bytes,); return 0 or what is wrong."""
    return verify(chunk, size) or decode_body(ctypes.string_at(chunk, size - CHECKSUM), column, target)


def decode_body(chunk: bytes, column: Column, target: Bytes) -> int:
    """Do the same with a chunk without the checksum at its end, which is not verified."""
    picture = chunk[HEADER:]
    if len(picture) == column.row_bytes:
        target[...] = np.frombuffer(picture, np.uint8)
        return 0
    is_one = 0 < len(picture) < column.row_bytes and webp.decode(picture, target.reshape(column.shape))
    return 0 if is_one else BAD_PICTURE


def sum_of_given(chunk: Bytes) -> int:
    """Return the checksum of the row that a chunk was made of."""
    return int.from_bytes(chunk[:HEADER].tobytes(), "little")
