# kernels: blocks
"""Blocks of memory; see `blocks.hpp`."""

import numpy as np

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uintptr_t
from libc.string cimport memcpy
from libcpp cimport bool as truth
from libcpp.vector cimport vector

from diskbuffer.native.arrays cimport bools, int64s, length

cnp.import_array()

cdef extern from "blocks.hpp" namespace "diskbuffer" nogil:
    struct Watched:
        pass

    void scatter_ "diskbuffer::scatter"(const uint8_t* rows, int64_t row_bytes, uint8_t** targets, int64_t n)
    void find_set_ "diskbuffer::find_set"(
        const uint8_t* const* runs, const int64_t* counts, int64_t n, vector[int64_t]& which, vector[int64_t]& places
    ) except +
    truth is_unchanged(const Watched& watched)


def scatter(uintptr_t rows, int64_t row_bytes, targets):
    """Copy rows, which lie one after the other from an address on, to the addresses `targets`, (n,)."""
    cdef uint8_t** addresses = <uint8_t**>int64s(targets)
    cdef int64_t n = length(targets)
    with nogil:
        scatter_(<const uint8_t*>rows, row_bytes, addresses, n)


def find_set(runs, counts):
    """Find the bytes that are not zero in runs of ``counts[i]`` bytes from the addresses ``runs[i]`` on.

    Returns which run each is in, and its place there, (n,) int64, in their order.
    """
    cdef const uint8_t** addresses = <const uint8_t**>int64s(runs)
    cdef int64_t* sizes = int64s(counts)
    cdef int64_t n = length(runs)
    cdef vector[int64_t] which, places
    if length(counts) != n:
        raise ValueError(f"expected {n} counts, found {length(counts)}")
    with nogil:
        find_set_(addresses, sizes, n, which, places)
    return array_of(which), array_of(places)


cdef object array_of(const vector[int64_t]& values):
    array = np.empty(<int64_t>values.size(), np.int64)
    if values.size():
        memcpy(int64s(array), values.data(), values.size() * sizeof(int64_t))
    return array


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
