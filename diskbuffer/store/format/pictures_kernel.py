"""Chunks that are compressed with a loss, compiled: decoded for batches, and copied when a segment is sealed.

What such a chunk looks like is in `diskbuffer.store.format.pictures`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.native import webp_calls
from diskbuffer.native.arrays import address_of
from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import crc32c_extend, memcpy
from diskbuffer.native.memory import load_any_u32
from diskbuffer.store.format.codec import BAD_CHECKSUM, BAD_PICTURE, CHECKSUM
from diskbuffer.store.format.pictures import HEADER

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@compiled
def verify(chunk: int, size: int) -> int:
    """Do what `pictures.verify` does."""
    body = size - CHECKSUM
    if body <= HEADER:
        return BAD_PICTURE
    return 0 if crc32c_extend(0, chunk, body) == load_any_u32(chunk + body) else BAD_CHECKSUM


@compiled
def decode(chunk: int, size: int, width: int, height: int, target: int, get_info: int, decode_into: int) -> int:
    """Decode a chunk of `size` bytes to the address `target`, for a picture of that size; return 0 or what is wrong.

    The last two are the addresses of libwebp's functions.
    """
    wrong = verify(chunk, size)
    if wrong:
        return wrong
    picture, bytes_, row_bytes = chunk + HEADER, size - HEADER - CHECKSUM, 3 * width * height
    if bytes_ == row_bytes:
        memcpy(target, picture, row_bytes)
        return 0
    found = np.zeros(2, np.int32)
    at = found.ctypes.data
    if bytes_ > row_bytes or not webp_calls.get_info(get_info, picture, bytes_, at, at + 4):
        return BAD_PICTURE
    if found[0] != width or found[1] != height:
        return BAD_PICTURE
    return 0 if webp_calls.decode_into(decode_into, picture, bytes_, target, row_bytes, 3 * width) else BAD_PICTURE


@compiled
def _copy_run(shard: int, entries: Int64, row_bytes: int, out: int, moved: Int64) -> int:
    at = 0
    for i in range(entries.shape[0]):
        source, size = shard + entries[i, 0], entries[i, 1]
        if size > HEADER + row_bytes + CHECKSUM or verify(source, size):
            return -1 - i
        memcpy(out + at, source, size)
        moved[i, 0], moved[i, 1] = at, size
        at += size
    return at


def copy_chunks(shard: int, entries: Int64, row_bytes: int, out: Bytes, moved: Int64) -> int:
    """Copy the chunks at `entries` of a live shard, mapped at the address `shard`, into `out`: pictures lose only once.

    `row_bytes` are a row's, as it was given: no chunk is larger by more than its checksums. `moved[i]` becomes (offset in `out`,
    size). Returns the bytes written, or -1 - i where chunk i is damaged. Holds no GIL.
    """
    return int(_copy_run(shard, entries, row_bytes, address_of(out), moved))
