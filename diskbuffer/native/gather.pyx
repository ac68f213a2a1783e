"""Fields of what is gathered, see `runs.hpp`: runs are arrays, (runs, RUN_FIELDS) int64, targets (stores, targets, TARGET_FIELDS)."""

cimport numpy as cnp
from libc.stdint cimport int64_t

from diskbuffer.native.arrays cimport int64s, length
from diskbuffer.native.libraries cimport attach_libraries
from diskbuffer.native.runs cimport Run, Source, Target

cnp.import_array()
attach_libraries()

cdef extern from *:
    """
    #include <cstddef>
    #define RUN(field) static_cast<int>(offsetof(diskbuffer::Run, field) / 8)
    #define TARGET(field) static_cast<int>(offsetof(diskbuffer::Target, field) / 8)
    """
    int Run_file "RUN(file)"
    int Run_lane "RUN(lane)"
    int Run_row "RUN(row)"
    int Run_count "RUN(count)"
    int Run_stream "RUN(stream)"
    int Run_position "RUN(position)"
    int Run_store "RUN(store)"
    int Target_column "TARGET(column)"
    int Target_row_bytes "TARGET(row_bytes)"
    int Target_skip "TARGET(skip)"
    int Target_rows "TARGET(rows)"
    int Target_out "TARGET(out)"
    int Target_chunk_rows "TARGET(chunk_rows)"
    int Target_chunks "TARGET(chunks)"
    int Target_tail "TARGET(tail)"
    int Target_zeros "TARGET(zeros)"
    int Target_flag "TARGET(flag)"
    int Target_checksums "TARGET(checksums)"
    int Target_salt "TARGET(salt)"
    int Target_tail_rows "TARGET(tail_rows)"
    int Target_height "TARGET(height)"
    int Target_width "TARGET(width)"
    int Target_webp "TARGET(webp)"
    int Target_lanes "TARGET(lanes)"
    int Target_lane_rows "TARGET(lane_rows)"

# Fields of a run.
FILE = Run_file
LANE = Run_lane
ROW = Run_row
COUNT = Run_count
STREAM = Run_stream
POSITION = Run_position
STORE = Run_store
RUN_FIELDS = sizeof(Run) // sizeof(int64_t)

# Fields of a target.
COLUMN = Target_column
ROW_BYTES = Target_row_bytes
SKIP = Target_skip
ROWS = Target_rows
OUT = Target_out
CHUNK_ROWS = Target_chunk_rows
CHUNKS = Target_chunks
TAIL = Target_tail
ZEROS = Target_zeros
FLAG = Target_flag
CHECKSUMS = Target_checksums
SALT = Target_salt
TAIL_ROWS = Target_tail_rows
HEIGHT = Target_height
WIDTH = Target_width
GET_INFO = Target_webp  # addresses of libwebp's functions
DECODE_INTO = Target_webp + 1
LANES = Target_lanes
LANE_ROWS = Target_lane_rows
TARGET_FIELDS = sizeof(Target) // sizeof(int64_t)

cdef extern from "byte_ranges.hpp" namespace "diskbuffer" nogil:
    struct Pages:
        pass

    int64_t join_pages_ "diskbuffer::join_pages"(const Source* pieces, int64_t n, int64_t page_bytes, Pages* stretches)


def join_pages(pieces, int64_t page_bytes):
    """Return the stretches of pages, (n, 2), first and after the last, that pieces of memory, (addresses, bytes), lie in."""
    cdef const Source* memory = <const Source*>int64s(pieces, 2)
    cdef cnp.npy_intp shape[2]
    shape[0], shape[1] = length(pieces), 2
    if length(pieces, 1) != 2:
        raise ValueError(f"expected addresses and sizes, found {pieces.shape}")
    stretches = cnp.PyArray_EMPTY(2, shape, cnp.NPY_INT64, 0)
    cdef Pages* pages = <Pages*>int64s(stretches, 2)
    return stretches[: join_pages_(memory, shape[0], page_bytes, pages)]
