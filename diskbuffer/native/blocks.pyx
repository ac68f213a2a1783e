"""Blocks of memory; see `blocks.hpp`."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uintptr_t
from libcpp cimport bool as truth

from diskbuffer.native.arrays cimport bools, int64s, length

cnp.import_array()

cdef extern from "blocks.hpp" namespace "diskbuffer" nogil:
    struct Watched:
        pass

    void scatter_ "diskbuffer::scatter"(const uint8_t* rows, int64_t row_bytes, uint8_t** targets, int64_t n)
    truth is_unchanged(const Watched& watched)
    void count_bytes_ "diskbuffer::count_bytes"(const uint8_t* bytes, int64_t outer, int64_t places, int64_t inner, int64_t* counts)


def scatter(uintptr_t rows, int64_t row_bytes, targets):
    """Copy rows, which lie one after the other from an address on, to the addresses `targets`, (n,)."""
    cdef uint8_t** addresses = <uint8_t**>int64s(targets)
    cdef int64_t n = length(targets)
    with nogil:
        scatter_(<const uint8_t*>rows, row_bytes, addresses, n)


def count_bytes(const uint8_t[::1] bytes, int64_t places, int64_t inner, counts):
    """Add to `counts`, (places * 256,) int64, how often there is each value in each place; a place has `inner` bytes at a time."""
    cdef int64_t outer = len(bytes) // (places * inner)
    cdef int64_t* out = int64s(counts)
    if outer * places * inner != len(bytes) or length(counts) != 256 * places:
        raise ValueError(f"expected times {places} places of {inner} bytes, and {256 * places} counts")
    if outer:
        with nogil:
            count_bytes_(&bytes[0], outer, places, inner, out)


def note_changes(watched, groups, changed):
    """Set ``changed[groups[i]]`` for each of `watched`, (n, 3), in which two addresses no longer have the same bytes."""
    cdef Watched* blocks = <Watched*>int64s(watched, 2)
    cdef int64_t* group_of = int64s(groups)
    cdef uint8_t* out = bools(changed)
    cdef int64_t i, n = length(groups), n_groups = length(changed)
    if length(watched) != n or length(watched, 1) != 3:
        raise ValueError(f"expected an array of shape ({n}, 3), found {watched.shape}")
    for i in range(n):
        if not 0 <= group_of[i] < n_groups:
            raise ValueError(f"expected numbers below {n_groups}, found {group_of[i]}")
    with nogil:
        for i in range(n):
            if not is_unchanged(blocks[i]):
                out[group_of[i]] = True
