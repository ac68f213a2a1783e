"""Looking steps, episodes and rows up in the table of an `Index`; see `lookup.hpp`. Results are written into arrays."""

cimport numpy as cnp
from libc.stdint cimport int64_t

from diskbuffer.native.arrays cimport int64s, length
from diskbuffer.native.table cimport Located, Table, located_of, table_of

cnp.import_array()

cdef extern from "lookup.hpp" namespace "diskbuffer" nogil:
    int64_t count_steps_ "diskbuffer::count_steps"(Table table)
    void locate_ "diskbuffer::locate"(Table table, const int64_t* ordinals, int64_t n, Located located)
    int64_t locate_recent_ "diskbuffer::locate_recent"(
        Table table, const int64_t* streams, const int64_t* ages, int64_t n, Located located
    )
    void locate_episodes_ "diskbuffer::locate_episodes"(Table table, const int64_t* ordinals, int64_t n, Located located)
    void find_episodes_ "diskbuffer::find_episodes"(
        Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t* starts, int64_t* lasts
    )
    void episodes_along_ "diskbuffer::episodes_along"(
        Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t length, int64_t* firsts, int64_t* lasts
    )
    void find_rows_ "diskbuffer::find_rows"(
        Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t segment_rows, int64_t* rows
    )


cdef int same_length(int64_t n, int64_t expected) except -1:
    if n != expected:
        raise ValueError(f"expected arrays of one length, found {n} and {expected}")
    return 0


def count_steps(table):
    """Return the number of steps that can be sampled."""
    return count_steps_(table_of(table))


def locate(table, ordinals, located):
    """Find steps by their place among all; see `Index.locate`. `located`, (4, n), is filled."""
    cdef Table streams = table_of(table)
    cdef int64_t* places = int64s(ordinals)
    cdef int64_t n = length(ordinals)
    cdef Located out = located_of(located, n)
    with nogil:
        locate_(streams, places, n, out)


def locate_recent(table, streams, ages, located):
    """Find steps by how many came after them; return which is the first that does not exist, or -1. `located`, (4, n), is filled."""
    cdef Table all_streams = table_of(table)
    cdef int64_t* numbers = int64s(streams)
    cdef int64_t* later = int64s(ages)
    cdef int64_t n = length(ages), missing
    same_length(length(streams), n)
    cdef Located out = located_of(located, n)
    with nogil:
        missing = locate_recent_(all_streams, numbers, later, n, out)
    return missing


def locate_episodes(table, ordinals, located):
    """Find episodes by their place among all; see `Index.locate_episodes`. `located`, (4, n), is filled."""
    cdef int64_t* places = int64s(ordinals)
    locate_episodes_(table_of(table), places, length(ordinals), located_of(located, length(ordinals)))


def find_episodes(table, streams, positions, starts, lasts):
    """Find the first and last rows of the episodes of steps, -1 where a step cannot be sampled; `starts` and `lasts` are filled."""
    cdef Table all_streams = table_of(table)
    cdef int64_t* numbers = int64s(streams)
    cdef int64_t* rows = int64s(positions)
    cdef int64_t* first_rows = int64s(starts)
    cdef int64_t* last_rows = int64s(lasts)
    cdef int64_t n = length(positions)
    for array in (streams, starts, lasts):
        same_length(length(array), n)
    with nogil:
        find_episodes_(all_streams, numbers, rows, n, first_rows, last_rows)


def episodes_along(table, streams, positions, firsts, lasts):
    """Find the first and last rows of the episodes of rows one after the other; `firsts` and `lasts`, (n, length), are filled."""
    cdef Table all_streams = table_of(table)
    cdef int64_t* numbers = int64s(streams)
    cdef int64_t* rows = int64s(positions)
    cdef int64_t* first_rows = int64s(firsts, 2)
    cdef int64_t* last_rows = int64s(lasts, 2)
    cdef int64_t n = length(positions), along = length(firsts, 1)
    for array in (streams, firsts, lasts):
        same_length(length(array), n)
    same_length(length(lasts, 1), along)
    with nogil:
        episodes_along_(all_streams, numbers, rows, n, along, first_rows, last_rows)


def find_rows(table, streams, positions, int64_t segment_rows, rows):
    """Find rows in the store, ``slot * segment_rows + offset``, of positions that exist; `rows` is filled."""
    cdef Table all_streams = table_of(table)
    cdef int64_t* numbers = int64s(streams)
    cdef int64_t* places = int64s(positions)
    cdef int64_t* out = int64s(rows)
    cdef int64_t n = length(positions)
    for array in (streams, rows):
        same_length(length(array), n)
    with nogil:
        find_rows_(all_streams, numbers, places, n, segment_rows, out)
