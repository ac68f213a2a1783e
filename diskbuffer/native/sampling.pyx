"""Drawing steps: random numbers, shuffled orders, sum trees, and the steps that they stand for; see `drawing.hpp`.

A sum tree is an array of `tree_bytes` bytes, zeros at first, which begins with a cache line, and the number of its items.
"""

import threading

import numpy as np

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_New
from libcpp cimport bool as cbool
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from diskbuffer.native.arrays cimport bools, float32s, float64s, int64s, length, uint64s, uint8s
from diskbuffer.native.table cimport Located, Stream, Table, located_of, table_of

cnp.import_array()

cdef extern from "permutation.hpp" namespace "diskbuffer" nogil:
    void permute_ "diskbuffer::permute"(
        uint64_t first, uint64_t n, int half_bits, const uint64_t* keys, int64_t rounds, int64_t* numbers, int64_t count
    )

cdef extern from "powers.hpp" namespace "diskbuffer" nogil:
    void power_ "diskbuffer::power"(const double* numbers, int64_t n, double exponent, double* powers)

cdef extern from "sum_tree.hpp" namespace "diskbuffer" nogil:
    cppclass SumTree:
        SumTree(uint8_t* memory, int64_t size)
        @staticmethod
        int64_t bytes(int64_t size)
        double total()
        float least()
        int64_t set(const int64_t* items, const double* weights, int64_t n)
        int64_t fill(int64_t first, const double* weights, int64_t n)
        int64_t get(const int64_t* items, double* weights, int64_t n)
        void clear(int64_t first, int64_t n)
        void find(const double* masses, int64_t n, int64_t* items, double* weights)
        void take_over(const SumTree& smaller)

cdef extern from "drawing.hpp" namespace "diskbuffer" nogil:
    struct Segment:
        pass

    struct Seen:
        pass

    void draw_rows_ "diskbuffer::draw_rows"(
        const SumTree& weights, Table table, const Segment* segments, int64_t segment_rows, const double* random, int64_t n,
        Located located, double* ratios
    )
    bint has_changed_ "diskbuffer::has_changed"(Table table, const Seen* seen)
    void find_starts_ "diskbuffer::find_starts"(
        const Stream& stream, int64_t position, int64_t length, int64_t period, cbool* is_start, int64_t n
    )
    int64_t find_weighted_ "diskbuffer::find_weighted"(
        const SumTree& weights, Table table, int64_t segment_rows, const int64_t* ids, int64_t n, int64_t* rows
    )
    bint all_within_ "diskbuffer::all_within"(const double* numbers, int64_t n, double limit)
    double write_rows_ "diskbuffer::write_rows"(
        float** segments, int64_t segment_rows, const int64_t* rows, const float* values, int64_t n, double largest
    )

cdef uint64_t _next_uint64(void* state) noexcept nogil:
    return (<CppPhilox*>state).next_uint64()


cdef uint32_t _next_uint32(void* state) noexcept nogil:
    return (<CppPhilox*>state).next_uint32()


cdef double _next_double(void* state) noexcept nogil:
    return (<CppPhilox*>state).next_double()


cdef class Philox:
    """A bit generator for `numpy.random.Generator`: numpy's Philox, but for `start`, which takes 0.1 us; setting a state, some 10."""

    def __init__(self, uint64_t key0, uint64_t key1):
        self.key0, self.key1 = key0, key1
        self.start(0, 0)
        self.functions.state = &self.random
        self.functions.next_uint64 = self.functions.next_raw = _next_uint64
        self.functions.next_uint32, self.functions.next_double = _next_uint32, _next_double
        self.capsule, self.lock = PyCapsule_New(&self.functions, "BitGenerator", NULL), threading.Lock()

    def start(self, uint64_t third, uint64_t fourth):
        """Go on with the numbers from the counter (0, 0, third, fourth) on."""
        self.random = CppPhilox(self.key0, self.key1, third, fourth)


MOST_BELOW = MOST_STEPS  # steps of which native code can draw


def draw_steps(table, Philox random not None, located):
    """Draw steps, (4, n), of all that can be sampled; return how many there are: none were drawn if 0, or above 2**32."""
    cdef Table streams = table_of(table)
    int64s(located, 2)
    cdef int64_t n = length(located, 1), steps
    cdef Located out = located_of(located, n)
    with nogil:
        steps = draw_steps_(streams, random.random, n, out)
    return steps


def draw_rows(nodes, int64_t size, table, segments, int64_t segment_rows, random, located, ratios):
    """Draw rows in proportion to weights, from numbers from 0 to 1; fill in their steps, (4, n), and the least weight over theirs."""
    cdef uint8_t* memory = uint8s(nodes)
    cdef Table streams = table_of(table)
    cdef const Segment* begins = <const Segment*>int64s(segments, 2)
    cdef double* numbers = float64s(random)
    cdef double* out_ratios = float64s(ratios)
    cdef int64_t n = length(random)
    cdef Located out = located_of(located, n)
    with nogil:
        draw_rows_(SumTree(memory, size), streams, begins, segment_rows, numbers, n, out, out_ratios)


def has_changed(table, seen):
    """Return whether a stream is not as it was seen: `seen`, (streams, 4), has its head, whether that ended, its low and its floor."""
    return has_changed_(table_of(table), <const Seen*>int64s(seen, 2))


def find_starts(table, int64_t stream, int64_t position, int64_t steps, int64_t period, is_start):
    """Fill in which rows from a position on may be the first of so many steps; see `drawing.hpp`."""
    cdef cbool* out = <cbool*>bools(is_start)
    cdef Table streams = table_of(table)
    find_starts_(streams.streams[stream], position, steps, period, out, length(is_start))


def find_weighted(nodes, int64_t size, table, int64_t segment_rows, ids, rows):
    """Fill in the rows in the store of steps, -1 where one is not there, or weighs nothing; return how many others there are."""
    cdef uint8_t* memory = uint8s(nodes)
    return find_weighted_(SumTree(memory, size), table_of(table), segment_rows, int64s(ids), length(ids), int64s(rows))


def all_within(numbers, double limit):
    """Return whether all numbers, (n,) float64, are at least 0, and below a limit; NaN is not."""
    return all_within_(float64s(numbers), length(numbers), limit)


def write_rows(addresses, int64_t segment_rows, rows, values, double largest):
    """Write values, (n,) float32, of rows of the store, each slot of which has an address; return the largest, or `largest`."""
    return write_rows_(<float**>int64s(addresses), segment_rows, int64s(rows), float32s(values), length(rows), largest)


def power(numbers, double exponent):
    """Return numbers, (n,) float64, finite and at least 0, to the power of an exponent from 0 to 16; see `powers.hpp`."""
    cdef double* values = float64s(numbers)
    cdef int64_t n = length(numbers)
    powers = np.empty(n)
    cdef double* out = float64s(powers)
    with nogil:
        power_(values, n, exponent, out)
    return powers


def permute(uint64_t first, uint64_t n, int half_bits, keys, numbers):
    """Compute the numbers, (count,), from a place `first` on of a shuffled order of those below `n`; `keys`, (rounds,) uint64."""
    cdef uint64_t* words = uint64s(keys)
    cdef int64_t* out = int64s(numbers)
    cdef int64_t rounds = length(keys), count = length(numbers)
    with nogil:
        permute_(first, n, half_bits, words, rounds, out, count)


def tree_bytes(int64_t size):
    """Return how many bytes a tree of `size` items takes."""
    return SumTree.bytes(size)


def tree_total(nodes, int64_t size):
    """Return the sum of all weights."""
    return SumTree(uint8s(nodes), size).total()


def tree_least(nodes, int64_t size):
    """Return the smallest weight above zero, or zero where there is none."""
    return SumTree(uint8s(nodes), size).least()


def tree_set(nodes, int64_t size, items, weights):
    """Set the weights of items, or nothing; return the place of the first item or weight that is out of range, or -1."""
    return SumTree(uint8s(nodes), size).set(int64s(items), float64s(weights), length(items))


def tree_get(nodes, int64_t size, items, weights):
    """Fill in the weights of items; return the place of the first item that is out of range, or -1."""
    return SumTree(uint8s(nodes), size).get(int64s(items), float64s(weights), length(items))


def tree_fill(nodes, int64_t size, int64_t first, weights):
    """Set the weights of a range, or nothing; return the place of the first weight that is out of range, or -1."""
    return SumTree(uint8s(nodes), size).fill(first, float64s(weights), length(weights))


def tree_clear(nodes, int64_t size, int64_t first, int64_t n):
    """Set the weights of `n` items, at least one, to zero."""
    SumTree(uint8s(nodes), size).clear(first, n)


def tree_find(nodes, int64_t size, masses, items, weights):
    """Fill in the items that masses fall on, and their weights; the total must be above zero."""
    cdef uint8_t* memory = uint8s(nodes)
    cdef double* values = float64s(masses)
    cdef int64_t* which = int64s(items)
    cdef double* out = float64s(weights)
    cdef int64_t n = length(masses)
    with nogil:
        SumTree(memory, size).find(values, n, which, out)


def tree_take_over(nodes, int64_t size, smaller, int64_t smaller_size):
    """Take over the weights of a smaller tree into an empty one."""
    cdef uint8_t* memory = uint8s(nodes)
    cdef uint8_t* source = uint8s(smaller)
    with nogil:
        SumTree(memory, size).take_over(SumTree(source, smaller_size))
