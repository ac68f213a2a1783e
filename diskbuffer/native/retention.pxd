"""Retention, as the recorder calls it."""

from libc.stdint cimport int64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr

from diskbuffer.native.table cimport Stream

cdef extern from "retention.hpp" namespace "diskbuffer" nogil:
    struct Kept:
        Stream* table
        int64_t streams, context, segment_rows
        int64_t* firsts
        int64_t* losses

    cppclass Rule "diskbuffer::Retention":
        Rule(Kept kept) except +
        void set_capacity(int64_t capacity, cbool each)
        void restore(int64_t stream, const int64_t* runs, int64_t n) except +
        void set_time(int64_t now)
        void detach() except +
        void recount() except +
        cbool give_up() except +


cdef class Retention:
    cdef unique_ptr[Rule] rule
    cdef list kept
    cdef int64_t streams
