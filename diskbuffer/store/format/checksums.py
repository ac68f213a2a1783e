"""What tells whether something on the disk is what was written there: for rows, and for entries of the segment table.

A row has two words of CRC32C, kept in the column ``row_checksum``: of its observation, which is final when the row comes to
be, and of what was done there, which is final with the step. Both start from a number that only this row of this store
has, so that neither a row from elsewhere nor one that was here before passes for it. As long as nothing was done at a row, and
something may be, its second word is 0. A third word is no checksum: it tells when the step was added, for a capacity of several
environments together.

What is computed for every row is native: `diskbuffer.native.checksums`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from diskbuffer.native import checksums as native
from diskbuffer.native.arrays import address_of
from diskbuffer.schema.schema import CHECKSUM, Schema, is_observation

Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]

OBS, STEP, TIME = 0, 1, 2  # words of a row's checksum, and when its step was added
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD, _HASHED = 2**64 - 1, 2**33 - 1


def mix(number: int) -> int:
    """Scramble 64 bits: the finalizer of splitmix64 (Steele, Lea and Flood, 2014)."""
    mixed = _mix(number & _WORD)
    return mixed - 2**64 if mixed >> 63 else mixed


def _mix(x: int) -> int:
    x = (x ^ (x >> 30)) * FIRST & _WORD
    x = (x ^ (x >> 27)) * SECOND & _WORD
    return x ^ (x >> 31)


def fold(*fields: Any) -> UInt64:
    """Fold numbers, or arrays of one length, into words of 64 bits, (n,)."""
    if all(isinstance(field, int) for field in fields):
        number = 0
        for field in fields:
            number = _mix(number + field + GOLDEN & _WORD)
        return np.array([number], np.uint64)
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(field)) for field in fields))
    words = np.zeros(arrays[0].shape, np.uint64)
    for array in arrays:
        words = _mix_all(words + array.astype(np.uint64) + np.uint64(GOLDEN))
    return words


def _mix_all(x: UInt64) -> UInt64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    return x ^ (x >> np.uint64(31))


def length_word(seed: int, rows: int, no_reset: bool = False) -> int:
    """Return what is stored for a segment's length; 0 for none.

    The rows are in the lower 32 bits. The lowest of the upper ones is set where no reset step can follow the last row; the others
    are a hash of these.
    """
    hashed = rows | no_reset << 32
    return 0 if rows == 0 else (mix(seed + hashed) & ~_HASHED) | hashed


def are_length_words(seeds: UInt64, words: UInt64) -> Bools:
    """Return which of many words are such."""
    hashed = words & np.uint64(_HASHED)
    expected = (_mix_all(seeds + hashed) & ~np.uint64(_HASHED)) | hashed
    return np.asarray(np.where(hashed & np.uint64(0xFFFFFFFF) == 0, words == 0, words == expected))


class Summed:
    """Rows in a column of which only the checksums are known.

    Parameters
    ----------
    crcs : (n,) uint32
        The CRC32C of each row's bytes.
    row_bytes : int
    """

    def __init__(self, crcs: UInt32, row_bytes: int) -> None:
        self.crcs, self.shape = crcs, (len(crcs), row_bytes)
        self._zeros = bytes(row_bytes)
        self._of_zeros = int(google_crc32c.value(self._zeros))

    def extend(self, crc: int, row: int) -> int:
        """Return the checksum of what has `crc`, and a row after it. CRC is linear: zeros tell what becomes of `crc`."""
        return int(google_crc32c.extend(crc, self._zeros)) ^ self._of_zeros ^ int(self.crcs[row])


def _row_seeds(salt: int, stream: int, positions: Int64, word: int) -> UInt64:
    """Return the numbers that the checksums of rows start from."""
    mixed = _mix_all(_mix_all(positions.view(np.uint64)) + np.uint64(2 * stream + word))
    return _mix_all(mixed + np.uint64(salt)) & np.uint64(0xFFFFFFFF)


def row_checksums(
    schema: Schema,
    salt: int,
    stream: int,
    first: int,
    n: int,
    rows: Mapping[str, npt.NDArray[Any] | Summed],
    word: int,
    apart: int = 1,
) -> UInt32:
    """Return a word of the checksums of `n` rows, (n,), at positions `first`, ``first + apart`` and so on of a stream.

    `rows` has the values, (n, ...), of each column that belongs to the word, or their checksums. About 20 ns a row of narrow
    columns.
    """
    columns = [rows[path] for path in covered(schema, word)]
    if any(isinstance(column, Summed) for column in columns):
        seeds = _row_seeds(salt, stream, first + apart * np.arange(n), word)
        return _with_checksums(seeds, [c if isinstance(c, Summed) else _bytes_of(c, n) for c in columns])
    arrays = [_bytes_of(column, n) for column in columns]
    checksums = np.empty(n, np.uint32)
    places = np.array([(address_of(array), array.shape[1]) for array in arrays], np.int64).reshape(-1, 2)
    native.checksum_rows(salt, stream, first, apart, word, places, checksums)
    return checksums


def settle_row(schema: Schema, salt: int, stream: int, position: int, row: Callable[[str], npt.NDArray[np.uint8]]) -> None:
    """Clear what was done at a stream's newest row, and write its checksum; only the flag of an episode's last row stays.

    ``row(path)`` returns where the row lies in a column, (row_bytes,).
    """
    is_over = row("is_last").copy()
    for path in covered(schema, STEP):
        row(path)[:] = 0
    row("is_last")[:] = is_over
    rows = {path: row(path)[None] for path in covered(schema, STEP)}
    word = row_checksums(schema, salt, stream, position, 1, rows, STEP)
    row(CHECKSUM).view(np.uint32)[STEP] = word[0] if is_over.any() else 0


def _with_checksums(seeds: UInt64, arrays: list[Any]) -> UInt32:
    """Return the checksums of rows, (n,), of some of whose columns only the checksums are known."""
    zeros = bytes(-sum(array.shape[1] for array in arrays) % 8)
    checksums = seeds.tolist()
    for row, crc in enumerate(checksums):
        for array in arrays:
            crc = array.extend(crc, row) if isinstance(array, Summed) else google_crc32c.extend(crc, array[row].tobytes())
        checksums[row] = google_crc32c.extend(crc, zeros) if zeros else crc
    return np.array(checksums, np.uint32)


def _bytes_of(values: Any, n: int) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(n, -1).view(np.uint8)


def replace_rows(rows: npt.NDArray[Any], targets: Int64, ends: Int64, which: Int64) -> Int64:
    """Copy rows, (n, ...) and contiguous, to addresses; return what that changes in the checksums of their files.

    Row i lies in the file ``which[i]``, which ends at the address ``ends[which[i]]``: its CRC32C becomes what it was, exclusive
    or what is returned for it. That takes a microsecond or two a row, however large the file is. (A CRC is linear; after
    ``crc32_combine`` of zlib.)
    """
    changes = np.zeros(len(ends), np.int64)
    native.replace_rows(address_of(rows), rows.nbytes // max(len(rows), 1), targets, ends, which, changes)
    return changes


def covered(schema: Schema, word: int) -> tuple[str, ...]:
    """Return the columns that a word covers, in their order."""
    return tuple(p for p in schema.recorded if is_observation(p) == (word == OBS) and p != CHECKSUM)
