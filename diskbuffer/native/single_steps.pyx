"""Single steps of flat columns, found and copied at once; see `single_steps.hpp`.

All functions take the table of an `Index`, where files are mapped, the rows of a segment, `columns`, (arrays, 4) int64, and a tuple: the
arrays to fill, and after them one for the steps' numbers. They return whether all could be copied; otherwise a plan tells why not.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t
from libcpp.vector cimport vector

from diskbuffer.native.arrays cimport as_int64s, int64s, length
from diskbuffer.native.runs cimport Layout, MappedFiles, mapped_files
from diskbuffer.native.sampling cimport MOST_STEPS, Philox, draw_steps_
from diskbuffer.native.table cimport Located, Table, table_of

cnp.import_array()

cdef extern from "lookup.hpp" namespace "diskbuffer" nogil:
    int64_t locate_recent(Table table, const int64_t* streams, const int64_t* ages, int64_t n, Located located)
    void find_episodes(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t* starts, int64_t* lasts)

cdef extern from "single_steps.hpp" namespace "diskbuffer" nogil:
    struct StepColumn:
        int64_t row_bytes

    bint copy_steps(
        Table table, const MappedFiles& mapped, const Layout& layout, const StepColumn* columns, int64_t n_columns,
        uint8_t* const* arrays, const int64_t* streams, const int64_t* positions, int64_t n, int64_t* ids
    )


def allocate(list kinds, int64_t n):
    """Return a tuple of arrays of so many rows, each of which is of a kind: its shape, a tuple, and its dtype."""
    cdef cnp.npy_intp shape[32]
    cdef tuple after
    cdef cnp.dtype dtype
    cdef int i
    arrays = []
    shape[0] = n
    for after, dtype in kinds:
        if len(after) > 31:
            raise ValueError(f"expected at most 31 dimensions of a row, found {len(after)}")
        for i in range(len(after)):
            shape[i + 1] = after[i]
        arrays.append(cnp.PyArray_EMPTY(len(after) + 1, shape, dtype.type_num, 0))
    return tuple(arrays)


cdef object new_int64s(int64_t rows, int64_t n):
    cdef cnp.npy_intp shape[2]
    shape[0], shape[1] = rows, n
    return cnp.PyArray_EMPTY(2, shape, cnp.NPY_INT64, 0)


cdef bint copy(table, mapped, int64_t segment_rows, columns, tuple filled, int64_t* streams, int64_t* positions, int64_t n) except *:
    """Copy steps to arrays, each of which is checked to be as large as what is copied there."""
    cdef Table streams_table = table_of(table)
    cdef MappedFiles files = mapped_files(mapped)
    cdef const StepColumn* described = <const StepColumn*>int64s(columns, 2)
    cdef int64_t n_columns = length(columns), c
    cdef int64_t* ids = int64s(filled[n_columns])
    cdef Layout layout
    cdef vector[uint8_t*] arrays
    cdef cnp.ndarray array
    cdef bint copied
    if length(columns, 1) * sizeof(int64_t) != sizeof(StepColumn) or length(filled[n_columns]) != n:
        raise ValueError(f"expected (arrays, 4) and {n} numbers, found {columns.shape} and {filled[n_columns].shape}")
    for c in range(n_columns):
        array = <cnp.ndarray?>filled[c]
        if not cnp.PyArray_IS_C_CONTIGUOUS(array) or cnp.PyArray_NBYTES(array) != n * described[c].row_bytes:
            raise ValueError(f"expected a contiguous array of {n * described[c].row_bytes} bytes, found {array.nbytes}")
        arrays.push_back(<uint8_t*>cnp.PyArray_DATA(array))
    layout.segment_rows, layout.lanes = segment_rows, 1
    with nogil:
        copied = copy_steps(streams_table, files, layout, described, n_columns, arrays.data(), streams, positions, n, ids)
    return copied


def copy_drawn(table, mapped, int64_t segment_rows, columns, tuple filled, streams, positions):
    """Copy steps that exist, by their streams and positions."""
    streams, positions = as_int64s(streams), as_int64s(positions)
    cdef int64_t n = length(positions)
    if length(streams) != n:
        raise ValueError(f"expected as many streams as positions, found {length(streams)} and {n}")
    return copy(table, mapped, segment_rows, columns, filled, int64s(streams), int64s(positions), n)


def copy_random(table, mapped, int64_t segment_rows, columns, tuple filled, Philox random not None):
    """Copy steps that are drawn of all that can be sampled, each as likely as any other; of too many, or none, nothing is copied."""
    cdef Table streams_table = table_of(table)
    cdef int64_t n = length(filled[len(filled) - 1]), steps
    places = new_int64s(4, n)
    cdef int64_t* first = int64s(places, 2)
    cdef Located located = Located(first, first + n, first + 2 * n, first + 3 * n)
    with nogil:
        steps = draw_steps_(streams_table, random.random, n, located)
    return 0 < steps <= MOST_STEPS and copy(table, mapped, segment_rows, columns, filled, located.streams, located.positions, n)


def copy_recent(table, mapped, int64_t segment_rows, columns, tuple filled, ages, streams):
    """Copy steps by how many steps of their streams came after them."""
    ages, streams = as_int64s(ages), as_int64s(streams)
    cdef Table streams_table = table_of(table)
    cdef int64_t n = length(ages)
    if length(streams) != n:
        raise ValueError(f"expected as many streams as ages, found {length(streams)} and {n}")
    places = new_int64s(4, n)
    cdef int64_t* first = int64s(places, 2)
    cdef Located located = Located(first, first + n, first + 2 * n, first + 3 * n)
    cdef const int64_t* numbers = int64s(streams)
    cdef const int64_t* later = int64s(ages)
    cdef int64_t missing
    with nogil:
        missing = locate_recent(streams_table, numbers, later, n, located)
    if missing >= 0:
        return False
    return copy(table, mapped, segment_rows, columns, filled, located.streams, located.positions, n)


def copy_numbered(table, mapped, int64_t segment_rows, columns, tuple filled, ids):
    """Copy steps by their numbers in the store."""
    ids = as_int64s(ids)
    cdef Table streams_table = table_of(table)
    cdef int64_t n = length(ids), i, number
    cdef int64_t* numbers = int64s(ids)
    places = new_int64s(4, n)
    cdef int64_t* streams = int64s(places, 2)
    cdef int64_t* positions = streams + n
    cdef int64_t* starts = positions + n
    for i in range(n):
        number = numbers[i]
        streams[i], positions[i] = number % streams_table.n, number // streams_table.n  # as Python does it: a negative one is no step
    with nogil:
        find_episodes(streams_table, streams, positions, n, starts, starts + n)
    for i in range(n):
        if starts[i] < 0:
            return False
    return copy(table, mapped, segment_rows, columns, filled, streams, positions, n)
