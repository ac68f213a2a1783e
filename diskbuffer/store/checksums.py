"""What tells whether something on the disk is what was written there: for rows, and for entries of the segment table.

A row has two words of CRC32C, kept in the column ``row_checksum``: of its observation, which is settled when the row comes to
be, and of what was done there, which is settled with the step. Both start from a number that only this row of this store
has, so that neither a row from elsewhere nor one that was here before passes for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native import address_of, compiled, crc32c_extend
from diskbuffer.schema import CHECKSUM, Schema, is_obs

Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]

OBS, STEP = 0, 1  # words of a row's checksum
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
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(field)) for field in fields))
    found = np.zeros(arrays[0].shape, np.uint64)
    for array in arrays:
        found = _mix_all(found + array.astype(np.uint64) + np.uint64(_GOLDEN))
    return found


def _mix_all(x: UInt64) -> UInt64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


@compiled
def length_word(seed: int, rows: int) -> int:
    """Return what is stored for a segment's length: the rows, and what vouches for them in the upper 32 bits; 0 for none."""
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
def _seed_rows(salt: int, stream: int, first: int, word: int, out: Any) -> None:
    for i in range(out.shape[0]):
        out[i] = row_seed(salt, stream, first + i, word)


@compiled
def _extend_rows(crcs: Any, address: int, row_bytes: int) -> None:
    for i in range(crcs.shape[0]):
        crcs[i] = crc32c_extend(crcs[i], address + i * row_bytes, row_bytes)


def row_checksums(
    schema: Schema, salt: int, stream: int, first: int, n: int, rows: Mapping[str, npt.NDArray[Any]], word: int
) -> UInt32:
    """Return a word of the checksums of `n` consecutive rows, (n,), from position `first` of a stream on.

    `rows` has the values, (n, ...), of each column that belongs to the word.
    """
    found = np.empty(n, np.uint32)
    _seed_rows(salt, stream, first, word, found)
    for path in covered(schema, word):
        array = np.ascontiguousarray(rows[path])
        _extend_rows(found, address_of(array.reshape(-1).view(np.uint8)), schema[path].row_bytes)
    return found


def covered(schema: Schema, word: int) -> tuple[str, ...]:
    """Return the columns that a word covers, in their order."""
    return tuple(p for p in schema.recorded if is_obs(p) == (word == OBS) and p != CHECKSUM)
