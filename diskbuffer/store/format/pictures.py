"""Chunks of columns that are compressed with a loss: one picture each, as a WebP file.

    byte 0                        4
    | CRC32C of the row as given  | WebP file, or the row as it was given | CRC32C of all before, 4 bytes |

A row is there as it was given where it has as many bytes as a row: where WebP would not make it smaller, and where its chunk is
not complete, so that it can go back into the tail. The checksum in front stands for the values that are lost: with it, a row's
own checksum is verified (see `diskbuffer.store.format.checksums.Summed`). So it is known whose picture this is, and what was
given is never compared with what comes out.

`diskbuffer.native.codec` decodes them, for batches, too.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from diskbuffer.native import codec as native
from diskbuffer.native import webp
from diskbuffer.native.arrays import address_of
from diskbuffer.schema.schema import Column
from diskbuffer.store.format.codec import checksum

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

CODEC = "diskbuffer.webp"  # its name in the Zarr metadata; see `diskbuffer.zarr_codec`
HEADER = native.PICTURE_HEADER


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

    Arguments and result are those of `encoding.encode_chunks`. Holds no GIL for most of the time.
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


def decode(chunk: int, size: int, column: Column, target: Bytes) -> int:
    """Decode a chunk of `size` bytes at an address to `target`, (row_bytes,); return 0 or what is wrong."""
    height, width, _ = column.shape
    return native.decode_picture(chunk, size, width, height, address_of(target), *webp.functions())


def decode_body(chunk: bytes, column: Column, target: Bytes) -> int:
    """Decode a chunk without the checksum at its end, which is not verified."""
    height, width, _ = column.shape
    file = np.frombuffer(chunk, np.uint8)[HEADER:]
    return native.decode_file(address_of(file), len(file), width, height, address_of(target), *webp.functions())


def sum_of_given(chunk: Bytes) -> int:
    """Return the checksum of the row that a chunk was made of."""
    return int.from_bytes(chunk[:HEADER].tobytes(), "little")
