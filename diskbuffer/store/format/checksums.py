"""What tells whether something on the disk is what was written there: for rows, and for entries of the segment table.

A row has two words of CRC32C, kept in the column ``row_checksum``: of its observation, which is final when the row comes to
be, and of what was done there, which is final with the step. Both start from a number that only this row of this store
has, so that neither a row from elsewhere nor one that was here before passes for it. As long as nothing was done at a row, and
something may be, its second word is another: or a power loss that took a step, and not the row after it, would leave a step at
which nothing was done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import crc32c_extend
from diskbuffer.native.memory import address_of
from diskbuffer.schema import CHECKSUM, Schema, is_obs

Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]

_NARROW = 256  # bytes of a row that are put together first
_ZEROS = np.zeros(8, np.uint8)
OBS, STEP = 0, 1  # words of a row's checksum
NOT_YET = 0x5A5A5A5A  # combined with the second word, by exclusive or, of a stream's newest row if its episode is not over
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@compiled
def mix(number: int) -> int:
    """Scramble 64 bits: the finalizer of splitmix64 (Steele, Lea and Flood, 2014)."""
    x = np.uint64(number)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return np.int64(x ^ (x >> np.uint64(31)))  # type: ignore[return-value]


def fold(*fields: Any) -> UInt64:
    """Fold numbers, or arrays of one length, into words of 64 bits, (n,)."""
    if all(isinstance(field, int) for field in fields):
        return np.array([_fold_numbers(np.array(fields, np.int64))], np.int64).view(np.uint64)
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(field)) for field in fields))
    found = np.zeros(arrays[0].shape, np.uint64)
    for array in arrays:
        found = _mix_all(found + array.astype(np.uint64) + np.uint64(_GOLDEN))
    return found


@compiled
def _fold_numbers(fields: Int64) -> int:
    found = np.uint64(0)
    for field in fields:
        found = np.uint64(mix(found + np.uint64(field) + np.uint64(_GOLDEN)))  # type: ignore[arg-type]
    return np.int64(found)  # type: ignore[return-value]


def _mix_all(x: UInt64) -> UInt64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


@compiled
def length_word(seed: int, rows: int) -> int:
    """Return what is stored for a segment's length: the rows, and their hash in the upper 32 bits; 0 for none."""
    if rows == 0:
        return 0
    return (mix(seed + rows) & ~0xFFFFFFFF) | rows


def length_words(seeds: UInt64, rows: Int64) -> UInt64:
    """Return the words of many lengths."""
    counts = rows.astype(np.uint64)
    words = (_mix_all(seeds + counts) & ~np.uint64(0xFFFFFFFF)) | counts
    return np.where(rows == 0, np.uint64(0), words)


@compiled
def row_seed(salt: int, stream: int, position: int, word: int) -> int:
    """Return the number that a row's checksum starts from."""
    return mix(salt + mix(mix(position) + 2 * stream + word)) & 0xFFFFFFFF


@compiled
def pad(crc: int, size: int) -> int:
    """Go on with zeros, up to the next multiple of 8 of the `size` bytes before: the library is thrice as fast on whole words."""
    return int(crc32c_extend(crc, _ZEROS.ctypes.data, -size % 8))


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
    """Return a word of the checksums of `n` rows, (n,), at positions `first`, ``first + apart`` and so on of a stream.

    `rows` has the values, (n, ...), of each column that belongs to the word. About 20 ns a row of narrow columns.
    """
    paths = covered(schema, word)
    arrays = [np.ascontiguousarray(rows[path]).reshape(n, -1).view(np.uint8) for path in paths]
    if sum(schema[path].row_bytes for path in paths) <= _NARROW:
        arrays = [_side_by_side(n, arrays)]
    found, places = np.empty(n, np.uint32), np.array([(address_of(array), array.shape[1]) for array in arrays], np.int64)
    _checksum_rows(salt, stream, first, apart, word, places.reshape(-1, 2), found)
    return found


def _side_by_side(n: int, arrays: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """Put rows of bytes together, with zeros after, up to a multiple of 8: one call of the library for each row."""
    total, at = sum(array.shape[1] for array in arrays), 0
    together = np.zeros((n, -(-total // 8) * 8), np.uint8)
    for array in arrays:
        size = array.shape[1]
        unit = f"u{math.gcd(size, 8)}"  # copied so many bytes at a time
        together[:, at : at + size].view(unit)[...] = array.view(unit)
        at += size
    return together


def covered(schema: Schema, word: int) -> tuple[str, ...]:
    """Return the columns that a word covers, in their order."""
    return tuple(p for p in schema.recorded if is_obs(p) == (word == OBS) and p != CHECKSUM)
