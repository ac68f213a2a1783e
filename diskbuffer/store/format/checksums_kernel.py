"""The checksums of `diskbuffer.store.format.checksums`, compiled: for every row that is added or sampled."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import crc32c_extend, memcpy
from diskbuffer.native.memory import address_of
from diskbuffer.schema import Schema
from diskbuffer.store.format.checksums import FIRST, SECOND, UInt32, covered_bytes

Int64 = npt.NDArray[np.int64]
_ZEROS = np.zeros(8, np.uint8)


@compiled
def mix(number: int) -> int:
    """Scramble 64 bits: the finalizer of splitmix64 (Steele, Lea and Flood, 2014)."""
    x = np.uint64(number)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    return np.int64(x ^ (x >> np.uint64(31)))  # type: ignore[return-value]


@compiled
def length_word(seed: int, rows: int) -> int:
    """Return what is stored for a segment's length: the rows, and their hash in the upper 32 bits; 0 for none."""
    if rows == 0:
        return 0
    return (mix(seed + rows) & ~0xFFFFFFFF) | rows


@compiled
def row_seed(salt: int, stream: int, position: int, word: int) -> int:
    """Return the number that a row's checksum starts from."""
    return mix(salt + mix(mix(position) + 2 * stream + word)) & 0xFFFFFFFF


@compiled
def pad(crc: int, size: int) -> int:
    """Go on with zeros, up to the next multiple of 8 of the `size` bytes before: the library is thrice as fast on whole words."""
    return int(crc32c_extend(crc, _ZEROS.ctypes.data, -size % 8))


@compiled
def _remainder(start: int, address: int, size: int) -> int:
    """Return what CRC32C makes of bytes, from a start, without its inversions: linear in both, over the integers modulo 2."""
    return (~int(crc32c_extend(~start & 0xFFFFFFFF, address, size))) & 0xFFFFFFFF


@compiled
def _zero_bytes() -> Any:
    """Return, (40, 32), what 2**k zero bytes make of each bit of a remainder."""
    found = np.zeros((40, 32), np.int64)
    for bit in range(32):
        found[0, bit] = _remainder(1 << bit, _ZEROS.ctypes.data, 1)
    for k in range(1, 40):
        for bit in range(32):
            found[k, bit] = _combined(found[k - 1], found[k - 1, bit])
    return found


@compiled
def _combined(of_bits: Any, remainder: int) -> int:
    found = 0
    for bit in range(32):
        if remainder >> bit & 1:
            found ^= of_bits[bit]
    return found


@compiled
def _replace_rows(source: int, row_bytes: int, targets: Any, ends: Any, which: Any, changes: Any, zeros: Any) -> None:
    for i in range(targets.shape[0]):
        at, new = targets[i], source + i * row_bytes
        change = _remainder(0, at, row_bytes) ^ _remainder(0, new, row_bytes)
        after, k = ends[which[i]] - at - row_bytes, 0
        while after:
            if after & 1:
                change = _combined(zeros[k], change)
            after, k = after >> 1, k + 1
        memcpy(at, new, row_bytes)
        changes[which[i]] ^= change


def replace_rows(rows: npt.NDArray[Any], targets: Int64, ends: Int64, which: Int64) -> Int64:
    """Copy rows, (n, ...) and contiguous, to addresses; return what that changes in the checksums of their files.

    Row i lies in the file ``which[i]``, which ends at the address ``ends[which[i]]``: its CRC32C becomes what it was, exclusive
    or what is returned for it. That takes a microsecond or two a row, however large the file is. (A CRC is linear; after
    ``crc32_combine`` of zlib.)
    """
    changes = np.zeros(len(ends), np.int64)
    _replace_rows(address_of(rows), rows.nbytes // max(len(rows), 1), targets, ends, which, changes, _zeros())
    return changes


@functools.cache
def _zeros() -> Int64:
    return np.asarray(_zero_bytes())


@compiled
def _checksum_rows(salt: int, stream: int, first: int, apart: int, word: int, places: Any, out: Any) -> None:
    """Go row by row over columns that begin at ``places[:, 0]`` and have ``places[:, 1]`` bytes a row."""
    total = places[:, 1].sum()
    for i in range(out.shape[0]):
        crc = row_seed(salt, stream, first + i * apart, word)
        for c in range(places.shape[0]):
            crc = crc32c_extend(crc, places[c, 0] + i * places[c, 1], places[c, 1])
        if total % 8:
            crc = pad(crc, total)
        out[i] = crc


def row_checksums(
    schema: Schema,
    salt: int,
    stream: int,
    first: int,
    n: int,
    rows: Mapping[str, npt.NDArray[Any]],
    word: int,
    apart: int = 1,
) -> UInt32:
    """Do what `checksums.row_checksums` does. About 20 ns a row of narrow columns."""
    arrays = covered_bytes(schema, n, rows, word)
    found, places = np.empty(n, np.uint32), np.array([(address_of(array), array.shape[1]) for array in arrays], np.int64)
    _checksum_rows(salt, stream, first, apart, word, places.reshape(-1, 2), found)
    return found
