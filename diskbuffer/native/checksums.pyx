"""Checksums of rows; see `checksums.hpp`."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool

from diskbuffer.native.arrays cimport int64s, length, uint32s
from diskbuffer.native.libraries cimport attach_libraries

cnp.import_array()
attach_libraries()

cdef extern from "checksums.hpp" namespace "diskbuffer" nogil:
    struct Rows:
        pass

    int64_t length_word_ "diskbuffer::length_word"(uint64_t seed, uint64_t rows, cbool no_reset)
    uint32_t row_seed_ "diskbuffer::row_seed"(uint64_t salt, uint64_t stream, uint64_t position, uint64_t word)
    uint32_t crc32c_ "diskbuffer::crc32c"(uint32_t crc, const void* data, size_t size)
    void checksum_rows_ "diskbuffer::checksum_rows"(
        uint64_t salt, uint64_t stream, uint64_t first, uint64_t apart, uint64_t word, const Rows* columns, int64_t n_columns,
        uint32_t* checksums, int64_t n
    )
    void replace_rows_ "diskbuffer::replace_rows"(
        const uint8_t* rows, int64_t row_bytes, uint8_t** targets, int64_t n, const uint8_t** ends, const int64_t* which, int64_t* changes
    )


def checksum_rows(int64_t salt, int64_t stream, int64_t first, int64_t apart, int64_t word, columns, checksums):
    """Compute a word of the checksums of rows, (n,) uint32; `columns`, (columns, 2) int64, has addresses and bytes of a row."""
    cdef Rows* rows = <Rows*>int64s(columns, 2)
    cdef int64_t n_columns = length(columns), n = length(checksums)
    cdef uint32_t* out = uint32s(checksums)
    with nogil:
        checksum_rows_(salt, stream, first, apart, word, rows, n_columns, out, n)


def replace_rows(int64_t rows, int64_t row_bytes, targets, ends, which, changes):
    """Copy rows at an address to others, and combine `changes` with what that changes in the checksums of their files."""
    cdef int64_t n = length(targets)
    cdef uint8_t** to = <uint8_t**>int64s(targets)
    cdef const uint8_t** file_ends = <const uint8_t**>int64s(ends)
    cdef int64_t* files = int64s(which)
    cdef int64_t* out = int64s(changes)
    with nogil:
        replace_rows_(<const uint8_t*>rows, row_bytes, to, n, file_ends, files, out)


def crc32c(uint32_t crc, uintptr_t address, size_t size):
    """Return the CRC32C of bytes at an address, after others whose checksum is `crc`."""
    with nogil:
        crc = crc32c_(crc, <const void*>address, size)
    return crc


def length_word(uint64_t seed, uint64_t rows, cbool no_reset=False):
    """Return what is stored for a segment's length; `no_reset` tells that no reset step can follow its last row."""
    return length_word_(seed, rows, no_reset)


def row_seed(uint64_t salt, uint64_t stream, uint64_t position, uint64_t word):
    """Return the number that a row's checksum starts from."""
    return row_seed_(salt, stream, position, word)
