"""The index of streams, as other modules take it."""

from libc.stdint cimport int64_t
from libcpp.vector cimport vector

from diskbuffer.native.arrays cimport int64s, length

cdef extern from "table.hpp" namespace "diskbuffer" nogil:
    struct LeadIn:
        pass

    struct Segment:
        int64_t first, number

    struct Stream:
        int64_t head, ended, low, floor, episodes, segments, lead_ins, store, own, begin, steps_offset, changed
        const int64_t* starts
        const Segment* segment_list
        const LeadIn* lead_places

    struct Table:
        const Stream* streams
        int64_t n

cdef extern from "sums.hpp" namespace "diskbuffer" nogil:
    cppclass Sums:
        Sums(int64_t n)
        int64_t total() const
        int64_t before(int64_t stream) const
        int64_t of(int64_t stream) const
        int64_t find(int64_t number) const
        void assign(const int64_t* counts)
        void set(const int64_t* streams, const int64_t* counts, int64_t n)

cdef extern from "index.hpp" namespace "diskbuffer" nogil:
    cppclass Index:
        Index(Stream* streams, int64_t n, int64_t segment_rows, int64_t lanes, int64_t context) except +
        Table table()
        const Stream& stream(int64_t number)
        int64_t bytes()
        int64_t segment_rows, lanes, context
        void add_starts(const int64_t* streams, const int64_t* positions, int64_t n) except +
        void add_segments(const int64_t* streams, const Segment* segments, int64_t n) except +
        void add_leads(const int64_t* streams, const LeadIn* leads, int64_t n) except +
        void advance(const int64_t* streams, const int64_t* heads, const int64_t* ended, int64_t n)
        void set_first_steps(const int64_t* streams, const int64_t* steps, int64_t n)
        void drop_segments(const int64_t* streams, const int64_t* counts, int64_t n) except +
        int64_t drop_below(const int64_t* positions) except +
        bint begin_at(int64_t stream, int64_t position) except +
        void take(int64_t first, const Index& other, int64_t since, int64_t store, const int64_t* numbers) except +
        void clear(int64_t first, int64_t n) except +
        void advanced(const int64_t* streams, int64_t n)
        void all_advanced()
        int64_t version()
        vector[int64_t] changed_since(int64_t version) except +
        const Sums& steps() except +
        const Sums& episodes() except +

cdef extern from "lookup.hpp" namespace "diskbuffer" nogil:
    struct Located:
        int64_t* streams
        int64_t* positions
        int64_t* starts
        int64_t* lasts

    int64_t locate_recent(Table table, const int64_t* streams, const int64_t* ages, int64_t n, Located located)
    void find_episodes(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t* starts, int64_t* lasts)


cdef class NativeIndex:
    cdef Index* native
    cdef readonly object table
    cdef public int64_t dropped
    cdef object streams_of(self, object streams, int64_t n)
    cdef const Stream* one(self, int64_t stream) except NULL


cdef inline Located located_of(object array, int64_t n) except *:
    """Return an array, (4, n) int64, as the arrays of where steps lie; ValueError where it is another."""
    cdef int64_t* first = int64s(array, 2)
    if length(array) != 4 or length(array, 1) != n:
        raise ValueError(f"expected an array of shape (4, {n}), found {array.shape}")
    return Located(first, first + n, first + 2 * n, first + 3 * n)
