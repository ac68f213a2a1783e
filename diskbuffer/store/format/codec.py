"""Where a frame is compressed, and where it is decompressed: one chunk of rows, as Blosc and a CRC32C after it.

A chunk is one Blosc block of LZ4, whoever wrote it: LZ4 while its segment is live, for that costs `add` 2 us a frame, and
LZ4HC, which is smaller and faster to read, once the segment is sealed in the background. Both are the same format, "lz4" in
Blosc's header. One block means that the first rows of a chunk can be decoded without the rest.

    byte 0        16                 20             24
    | Blosc header | offset of block | size of LZ4 | LZ4 ... | CRC32C of all before, 4 bytes |
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import blosc_compress, blosc_decompress, crc32c_extend, lz4_decompress_partial, memcpy
from diskbuffer.native.memory import address_of, load_u8, load_u32, store_u32

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

LIVE = ("lz4", 1)
SEALED = ("lz4hc", 7)
HURRIED_LEVEL = 4  # where sealing cannot keep up: pictures in colour take half the time, and 7 % more of the disk
HEADER = 16
CHECKSUM = 4

# What is wrong with a chunk. Zero is nothing.
BAD_ENTRY, BAD_CHECKSUM, BAD_HEADER, BAD_STREAM = 1, 2, 3, 4
REASONS = {
    BAD_ENTRY: "its entry in the shard's index points outside of the file",
    BAD_CHECKSUM: "its checksum does not match",
    BAD_HEADER: "its Blosc header is not that of a chunk of this column",
    BAD_STREAM: "it cannot be decompressed",
}
_MEMCPYED, _SHUFFLED, _LZ4 = 0x2, 0x5, 1
_TRIED = 2  # chunks that LZ4 could not make smaller are given to LZ4HC; if it cannot either, the others are copied
_MOST = 2**31 - 1  # bytes that LZ4 and Blosc can be told of: their sizes are 32 bits with a sign

_cnames = {name: ctypes.create_string_buffer(name.encode()) for name in ("lz4", "lz4hc")}
_addresses = {name: ctypes.addressof(buffer) for name, buffer in _cnames.items()}
_MORE_THAN_BLOSC_ADDS = HEADER + CHECKSUM


def bound(chunk_bytes: int) -> int:
    """Return the most bytes that a chunk can take on disk."""
    return chunk_bytes + _MORE_THAN_BLOSC_ADDS


@compiled
def decode(chunk: int, size: int, chunk_bytes: int, wanted: int, target: int, scratch: int) -> int:
    """Decode the first `wanted` bytes of a chunk of `size` bytes to the address `target`; return 0 or what is wrong.

    `scratch` has room for `chunk_bytes`; `target` need only have room for what is wanted.
    """
    body = size - CHECKSUM
    if body < HEADER or body > HEADER + chunk_bytes or body > _MOST:
        return BAD_HEADER
    if crc32c_extend(0, chunk, body) != load_u32(chunk + body):
        return BAD_CHECKSUM
    flags = load_u8(chunk + 2)
    if load_u32(chunk + 4) != chunk_bytes or load_u32(chunk + 12) != body or load_u32(chunk + 8) == 0:
        return BAD_HEADER
    if flags & _MEMCPYED:
        if body != HEADER + chunk_bytes:
            return BAD_HEADER
        memcpy(target, chunk + HEADER, wanted)
        return 0
    if (flags >> 5) == _LZ4 and load_u8(chunk + 3) == 1 and load_u32(chunk + 8) == chunk_bytes and not flags & _SHUFFLED:
        at = np.int64(load_u32(chunk + HEADER))
        if at < HEADER + 4 or at + 4 > body:
            return BAD_HEADER
        n = np.int64(load_u32(chunk + at))
        if at + 4 + n > body:
            return BAD_HEADER
        if n == chunk_bytes:  # did not become smaller, and so was stored as it is
            memcpy(target, chunk + at + 4, wanted)
            return 0
        if lz4_decompress_partial(chunk + at + 4, target, n, wanted, wanted) != wanted:
            return BAD_STREAM
        return 0
    if blosc_decompress(chunk, scratch, chunk_bytes, 1) != chunk_bytes:
        return BAD_STREAM
    memcpy(target, scratch, wanted)
    return 0


@compiled
def encode(source: int, chunk_bytes: int, target: int, cname: int, clevel: int) -> int:
    """Compress a chunk, checksum and all, to `target`, which has room for `bound`; return its size, or 0 or less."""
    n = blosc_compress(clevel, 0, 1, chunk_bytes, source, target, chunk_bytes + HEADER, cname, chunk_bytes, 1)
    if n > 0:
        store_u32(target + n, crc32c_extend(0, target, n))
        n += CHECKSUM
    return n


@compiled
def _encode_run(
    source: int, first: int, ring: int, chunk_bytes: int, target: int, cname: int, clevel: int, entries: Int64
) -> int:
    at = 0
    for i in range(entries.shape[0]):
        n = encode(source + (first + i * chunk_bytes) % ring, chunk_bytes, target + at, cname, clevel)
        if n <= 0:
            return -1
        entries[i, 0], entries[i, 1] = at, n
        at += n
    return at


@compiled
def _recode_run(
    shard: int, entries: Int64, chunk_bytes: int, scratch: int, target: int, cname: int, clevel: int, out: Int64
) -> int:
    at, tried, became_smaller = 0, 0, False
    for i in range(entries.shape[0]):
        wrong = decode(shard + entries[i, 0], entries[i, 1], chunk_bytes, chunk_bytes, scratch, scratch + chunk_bytes)
        if wrong:
            return -1 - i
        n, stored = entries[i, 1], entries[i, 1] >= chunk_bytes
        if stored and tried >= _TRIED and not became_smaller:
            memcpy(target + at, shard + entries[i, 0], n)
        else:
            n = encode(scratch, chunk_bytes, target + at, cname, clevel)
            if n <= 0:
                return -1 - i
            if stored:
                tried, became_smaller = tried + 1, became_smaller or n < chunk_bytes
        out[i, 0], out[i, 1] = at, n
        at += n
    return at


def encode_chunks(source: int, first: int, ring: int, chunk_bytes: int, out: Bytes, entries: Int64) -> int:
    """Compress chunks, for a live shard, one after the other into `out`: as many as there are `entries`.

    They lie one after the other, from byte `first` on, in a ring of `ring` bytes at the address `source`. `entries[i]`
    becomes (offset in `out`, size). Returns the bytes written. Holds no GIL.
    """
    cname, clevel = LIVE
    size = int(_encode_run(source, first, ring, chunk_bytes, address_of(out), _addresses[cname], clevel, entries))
    if size < 0:
        raise RuntimeError("c-blosc failed to compress a chunk")
    return size


def recode_chunks(
    shard: int, entries: Int64, chunk_bytes: int, scratch: Bytes, out: Bytes, moved: Int64, *, hurried: bool = False
) -> int:
    """Compress chunks of a live shard, mapped at `shard`, again, for a sealed one, into `out`; faster and worse if `hurried`.

    `scratch` holds two chunks. `moved[i]` becomes (offset in `out`, size). Returns the bytes written, or -1 - i where
    chunk i cannot be decoded.
    """
    cname, clevel = SEALED
    at, name = address_of(scratch), _addresses[cname]
    level = HURRIED_LEVEL if hurried else clevel
    return int(_recode_run(shard, entries, chunk_bytes, at, address_of(out), name, level, moved))


def decode_entry(shard: Any, entries: Int64, chunk: int, raw: Bytes, scratch: Bytes) -> int:
    """Decode a chunk of a mapped shard into `raw`, as large as `scratch`; return what is wrong, or 0."""
    at, size = entries[chunk].tolist()
    if not 0 <= at <= at + size <= shard.size - entries.nbytes:
        return BAD_ENTRY
    return int(decode(shard.address + at, size, raw.nbytes, raw.nbytes, address_of(raw), address_of(scratch)))


@compiled
def _checksum(crc: int, address: int, size: int) -> int:
    return int(crc32c_extend(crc, address, size))


def checksum(data: Any, crc: int = 0) -> int:
    """Return the CRC32C of a contiguous array's bytes, after others whose checksum is `crc`. Holds no GIL."""
    return int(_checksum(crc, address_of(data), data.nbytes))
