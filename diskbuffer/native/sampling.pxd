"""Drawing steps, as other modules take it."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from diskbuffer.native.index cimport Index, Located

cdef extern from "random_numbers.hpp" namespace "diskbuffer" nogil:
    cppclass CppPhilox "diskbuffer::Philox":
        CppPhilox()
        CppPhilox(uint64_t key0, uint64_t key1, uint64_t third, uint64_t fourth)
        uint64_t next_uint64()
        uint32_t next_uint32()
        double next_double()

    const int64_t MOST_STEPS "diskbuffer::MOST_BELOW"

cdef extern from "drawing.hpp" namespace "diskbuffer" nogil:
    int64_t draw_steps_ "diskbuffer::draw_steps"(Index& index, CppPhilox& random, int64_t n, Located located) except +


cdef extern from "numpy/random/bitgen.h":
    struct bitgen:
        void* state
        uint64_t (*next_uint64)(void*) noexcept nogil
        uint32_t (*next_uint32)(void*) noexcept nogil
        double (*next_double)(void*) noexcept nogil
        uint64_t (*next_raw)(void*) noexcept nogil


cdef class Philox:
    cdef CppPhilox random
    cdef uint64_t key0, key1
    cdef bitgen functions
    cdef readonly object capsule, lock
