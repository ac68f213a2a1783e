"""Compressing and decompressing chunks, compiled: for many at a time, and for batches.

What a chunk looks like is in `diskbuffer.store.format.codec`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.arrays import address_of
from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import (
    blosc_compress,
    blosc_decompress,
    crc32c_extend,
    lz4_decompress_partial,
    memcmp,
    memcpy,
)
from diskbuffer.native.memory import load_u8, load_u32, store_u32
from diskbuffer.store.format import lz4_decoder, lz4_pictures
from diskbuffer.store.format.codec import (
    BAD_CHECKSUM,
    BAD_HEADER,
    BAD_STREAM,
    CHECKSUM,
    COPY,
    HEADER,
    LIVE,
    LZ4,
    MEMCPYED,
    MOST,
    NONE,
    PICTURES,
    SHUFFLED,
    Method,
)

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_cnames = {name: ctypes.create_string_buffer(name.encode()) for name in ("lz4", "lz4hc", "zstd")}
_addresses = {name: ctypes.addressof(buffer) for name, buffer in _cnames.items()} | {PICTURES.compressor: 0, COPY.compressor: 0}
_addresses[NONE.compressor] = _addresses["lz4"]  # at level 0
_LONG_MATCHES = 4  # how many times as small as its contents a block is at least whose matches our own decoder copies faster
TRIES, SHRANK = 0, 1
_VERSIONS = 0x0102  # of Blosc's format, and of LZ4's in it


def compressor(method: Method) -> tuple[int, int, int]:
    """Return what `encode` takes of a method: the address of the compressor's name, the level, and the bytes of an item."""
    return _addresses[method.compressor], method.level, method.item


@compiled
def decode(chunk: int, size: int, chunk_bytes: int, wanted: int, target: int, scratch: int) -> int:
    """Decode the first `wanted` bytes of a chunk of `size` bytes to the address `target`; return 0 or what is wrong.

    `scratch` has room for `chunk_bytes`; `target` need only have room for what is wanted.
    """
    body = size - CHECKSUM
    if body < HEADER or body > HEADER + chunk_bytes or body > MOST:
        return BAD_HEADER
    if crc32c_extend(0, chunk, body) != load_u32(chunk + body):
        return BAD_CHECKSUM
    flags = load_u8(chunk + 2)
    if load_u32(chunk + 4) != chunk_bytes or load_u32(chunk + 12) != body or load_u32(chunk + 8) == 0:
        return BAD_HEADER
    if flags & MEMCPYED:
        if body != HEADER + chunk_bytes:
            return BAD_HEADER
        memcpy(target, chunk + HEADER, wanted)
        return 0
    if (flags >> 5) == LZ4 and load_u8(chunk + 3) == 1 and load_u32(chunk + 8) == chunk_bytes and not flags & SHUFFLED:
        at: Any = np.int64(load_u32(chunk + HEADER))
        if at < HEADER + 4 or at + 4 > body:
            return BAD_HEADER
        n: Any = np.int64(load_u32(chunk + at))
        if at + 4 + n > body:
            return BAD_HEADER
        if n == chunk_bytes:  # did not become smaller, and so was stored as it is
            memcpy(target, chunk + at + 4, wanted)
            return 0
        if n * _LONG_MATCHES <= chunk_bytes:
            decoded: Any = lz4_decoder.decode_block(chunk + at + 4, n, target, wanted)
        else:
            decoded = np.int64(lz4_decompress_partial(chunk + at + 4, target, n, wanted, wanted))
        return 0 if decoded == wanted else BAD_STREAM
    place = target if wanted == chunk_bytes else scratch
    if blosc_decompress(chunk, place, chunk_bytes, 1) != chunk_bytes:
        return BAD_STREAM
    if place == scratch:
        memcpy(target, scratch, wanted)
    return 0


@compiled
def encode(source: int, chunk_bytes: int, target: int, cname: int, clevel: int, item: int) -> int:
    """Compress a chunk, checksum and all, to `target`, which has room for `bound`; return its size, or 0 or less."""
    n = blosc_compress(clevel, item > 1, item, chunk_bytes, source, target, chunk_bytes + HEADER, cname, chunk_bytes, 1)
    if n > 0:
        store_u32(target + n, crc32c_extend(0, target, n))
        n += CHECKSUM
    return n


@compiled
def encode_pictures(source: int, chunk_bytes: int, target: int, head: Any, chain: Any, near: Any) -> int:
    """Do the same by `lz4_pictures`, whose tables and distances these are; a chunk that does not become smaller is stored."""
    body = HEADER + 8
    n = lz4_pictures.encode(source, chunk_bytes, target + body, chunk_bytes - body - 2 * CHECKSUM, head, chain, near)
    flags = LZ4 << 5
    if n == 0:
        flags |= MEMCPYED
        memcpy(target + HEADER, source, chunk_bytes)
        size = HEADER + chunk_bytes
    else:
        store_u32(target + HEADER, body - 4)
        store_u32(target + body - 4, n)
        size = body + n
    store_u32(target, np.uint32(_VERSIONS | flags << 16 | 1 << 24))
    store_u32(target + 4, chunk_bytes)
    store_u32(target + 8, chunk_bytes)
    store_u32(target + 12, size)
    store_u32(target + size, crc32c_extend(0, target, size))
    return size + CHECKSUM


@compiled
def _encode_run(
    source: int, first: int, ring: int, chunk_bytes: int, target: int, cname: int, clevel: int, entries: Int64
) -> int:
    at = 0
    for i in range(entries.shape[0]):
        n = encode(source + (first + i * chunk_bytes) % ring, chunk_bytes, target + at, cname, clevel, 1)
        if n <= 0:
            return -1
        entries[i, 0], entries[i, 1] = at, n
        at += n
    return at


@compiled
def _comes_back(chunk: int, size: int, raw: int, chunk_bytes: int) -> bool:
    """Tell whether liblz4, which every reader knows, makes of a chunk of `encode_pictures` what it was made of.

    That lies at `raw`; after it there is room for as much.
    """
    if load_u8(chunk + 2) & MEMCPYED:
        return memcmp(raw, chunk + HEADER, chunk_bytes) == 0
    back, block = raw + chunk_bytes, chunk + HEADER + 8
    decoded = lz4_decompress_partial(block, back, chunk + size - CHECKSUM - block, chunk_bytes, chunk_bytes)
    return decoded == chunk_bytes and memcmp(raw, back, chunk_bytes) == 0


@compiled
def _recode_run(
    shard: int,
    entries: Int64,
    chunk_bytes: int,
    scratch: int,
    target: int,
    cname: int,
    clevel: int,
    item: int,
    tables: Any,
    copy: bool,
    stored: Int64,
    out: Int64,
) -> int:
    head, chain, near = tables
    at = 0
    for i in range(entries.shape[0]):
        source, n = shard + entries[i, 0], entries[i, 1]
        is_stored = n >= chunk_bytes
        copied = copy or (is_stored and stored[TRIES] <= 0 and stored[SHRANK] == 0)
        wanted = 0 if copied else chunk_bytes
        if decode(source, n, chunk_bytes, wanted, scratch, scratch + chunk_bytes):
            return -1 - i
        if copied:
            memcpy(target + at, source, n)
        else:
            if cname == 0:
                n = encode_pictures(scratch, chunk_bytes, target + at, head, chain, near)
                if not _comes_back(target + at, n, scratch, chunk_bytes):
                    n = entries[i, 1]  # so that a mistake of ours would cost space, and not what is stored
            else:
                n = encode(scratch, chunk_bytes, target + at, cname, clevel, item)
            if n <= 0:
                return -1 - i
            if is_stored:
                stored[TRIES] -= 1
                stored[SHRANK] += n < chunk_bytes
            if n >= entries[i, 1]:
                n = entries[i, 1]
                memcpy(target + at, source, n)
        out[i, 0], out[i, 1] = at, n
        at += n
    return at


def encode_chunks(source: int, first: int, ring: int, chunk_bytes: int, out: Bytes, entries: Int64, method: Method = LIVE) -> int:
    """Compress chunks, for a live shard, one after the other into `out`: as many as there are `entries`.

    They lie one after the other, from byte `first` on, in a ring of `ring` bytes at the address `source`. `entries[i]`
    becomes (offset in `out`, size). Returns the bytes written. Holds no GIL.
    """
    name = _addresses[method.compressor]
    size = int(_encode_run(source, first, ring, chunk_bytes, address_of(out), name, method.level, entries))
    if size < 0:
        raise RuntimeError("c-blosc failed to compress a chunk")
    return size


class Recoder:
    """Compress chunks of live shards of one column again, for sealed ones; for one thread at a time.

    Attributes
    ----------
    stored : (2,) int64
        Of chunks that LZ4 could not make smaller while they were live: at `TRIES`, how many are still tried until the others
        are copied as they are; at `SHRANK`, how many became smaller, after which all are tried.
    """

    def __init__(self, chunk_bytes: int, distances: tuple[int, int, int]) -> None:
        self._chunk_bytes = chunk_bytes
        self._scratch = np.empty(2 * chunk_bytes, np.uint8)
        self._tables = (*lz4_pictures.tables(), lz4_pictures.distances(*distances))
        self.stored = np.zeros(2, np.int64)

    def recode(self, shard: int, entries: Int64, out: Bytes, moved: Int64, method: Method) -> int:
        """Compress the chunks at `entries` of a live shard, mapped at the address `shard`, again, into `out`.

        One that would be no smaller than it was is copied. `moved[i]` becomes (offset in `out`, size). Returns the bytes
        written, or -1 - i where chunk i cannot be decoded. Holds no GIL.
        """
        name, level, item = _addresses[method.compressor], method.level, method.item
        at, target, size, copy = address_of(self._scratch), address_of(out), self._chunk_bytes, method == COPY
        return int(_recode_run(shard, entries, size, at, target, name, level, item, self._tables, copy, self.stored, moved))
