"""The table of streams, as kernels take it."""

cimport numpy as cnp
from libc.stdint cimport int64_t

from diskbuffer.native.arrays cimport int64s, length

cdef extern from "table.hpp" namespace "diskbuffer" nogil:
    struct Stream:
        int64_t head, ended, low, floor, episodes, segments, stack_prefixes, store, store_stream, room
        int64_t* starts
        const int64_t* slots

    struct Table:
        const Stream* streams
        int64_t n


cdef extern from "lookup.hpp" namespace "diskbuffer" nogil:
    struct Located:
        int64_t* streams
        int64_t* positions
        int64_t* starts
        int64_t* lasts


cdef inline Located located_of(object array, int64_t n) except *:
    """Return an array, (4, n) int64, as the arrays of where steps lie; ValueError where it is another."""
    cdef int64_t* first = int64s(array, 2)
    if length(array) != 4 or length(array, 1) != n:
        raise ValueError(f"expected an array of shape (4, {n}), found {array.shape}")
    return Located(first, first + n, first + 2 * n, first + 3 * n)


cdef inline Table table_of(object array) except *:
    """Return an array, (streams, 13) int64, as a table; TypeError where it is another."""
    cdef Table table
    table.streams = <const Stream*>int64s(array, 2)
    table.n = length(array)
    if length(array, 1) * sizeof(int64_t) != sizeof(Stream):
        raise TypeError(f"expected a table of {sizeof(Stream) // sizeof(int64_t)} fields, found {array.shape}")
    return table
