"""Planning batches and gathering them; see `runs.hpp`, which has the fields of runs and targets, and `gather.hpp`.

Runs are arrays, (runs, RUN_FIELDS) int64, sources (runs, columns, 2) int64, and targets (stores, targets, TARGET_FIELDS) int64.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t
from libcpp.vector cimport vector

from diskbuffer.native.arrays cimport as_int64s, int64s, length, uint8s
from diskbuffer.native.libraries cimport attach_libraries
from diskbuffer.native.runs cimport Layout, MappedFiles, Run, Source, Target, mapped_files
from diskbuffer.native.sampling cimport MOST_STEPS, Philox, draw_steps_
from diskbuffer.native.table cimport Located, Table, table_of

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

cdef extern from "runs.hpp" namespace "diskbuffer" nogil:
    struct Batch:
        const Target* targets
        int64_t stores, n_targets
        const Run* runs
        int64_t n_runs
        const Source* sources
        int64_t columns

cdef extern from "plan.hpp" namespace "diskbuffer" nogil:
    struct Windows:
        const int64_t* streams
        const int64_t* positions
        const int64_t* starts
        const int64_t* lasts
        int64_t n, before, rows

    int64_t find_runs(Table table, const Windows& windows, const Layout& layout, int64_t first_stream, Run* runs)
    void sort_runs(const Run* runs, int64_t n, const Layout& layout, int64_t* keys, Run* sorted)
    bint find_sources_ "diskbuffer::find_sources"(const MappedFiles& mapped, const Run* runs, int64_t n, Source* sources)

cdef extern from "gather.hpp" namespace "diskbuffer" nogil:
    struct Scratch:
        uint8_t* memory
        int64_t largest

    cppclass Progress:
        int64_t target, run, chunk

    cppclass SharedBatch:
        Batch batch
        int64_t parts
        Progress progress

cdef extern from "helper_threads.hpp" namespace "diskbuffer" nogil:
    cppclass Board:
        Board(Scratch scratch)
        void serve()
        void call()
        void end()

    int gather_together(SharedBatch& shared, Board* const* boards, int64_t n, Scratch scratch)

cdef extern from "byte_ranges.hpp" namespace "diskbuffer" nogil:
    struct Pages:
        pass

    int64_t join_pages_ "diskbuffer::join_pages"(const Source* pieces, int64_t n, int64_t page_bytes, Pages* stretches)
    void request_pages_ "diskbuffer::request_pages"(const Batch& batch, int64_t page_bytes)


cdef Batch batch_of(targets, runs, sources) except *:
    """Return arrays as a batch; ValueError where they do not fit together."""
    cdef Batch batch
    batch.targets, batch.runs, batch.sources = <const Target*>int64s(targets, 3), <const Run*>int64s(runs, 2), <const Source*>int64s(sources, 3)
    batch.stores, batch.n_targets, batch.n_runs, batch.columns = length(targets), length(targets, 1), length(runs), length(sources, 1)
    if (
        length(targets, 2) * sizeof(int64_t) != sizeof(Target)
        or length(runs, 1) * sizeof(int64_t) != sizeof(Run)
        or length(sources) != batch.n_runs
        or length(sources, 2) != 2
    ):
        raise ValueError(f"expected targets, runs and sources, found {targets.shape}, {runs.shape} and {sources.shape}")
    check_columns(batch)
    return batch


cdef int check_columns(const Batch& batch) except -1:
    """Refuse targets of columns that sources do not have, and runs of stores that targets do not have."""
    cdef int64_t i
    for i in range(batch.stores * batch.n_targets):
        if not (0 <= batch.targets[i].column < batch.columns and -1 <= batch.targets[i].checksums < batch.columns):
            raise ValueError(f"expected one of {batch.columns} columns, found {batch.targets[i].column}, {batch.targets[i].checksums}")
    for i in range(batch.n_runs):
        if not (0 <= batch.runs[i].store < batch.stores and batch.runs[i].lane >= 0):
            raise ValueError(f"expected one of {batch.stores} stores, found {batch.runs[i].store}")
    return 0


cdef object new_int64s(int64_t rows, int64_t n, int64_t fields=0):
    """Return an array, (rows, n) or (rows, n, fields)."""
    cdef cnp.npy_intp shape[3]
    shape[0], shape[1], shape[2] = rows, n, fields
    return cnp.PyArray_EMPTY(3 if fields else 2, shape, cnp.NPY_INT64, 0)


# Planning


def plan(
    table, mapped, streams, positions, starts, lasts, int64_t before, int64_t rows, int64_t segment_rows, int64_t first_stream,
    int64_t lanes=1
):
    """Plan windows of `rows` rows around drawn steps, each of which is number `before` of its window.

    Returns runs, sorted by where they lie, their sources, and whether all of these are mapped; None where a step was evicted.
    """
    streams, positions, starts, lasts = as_int64s(streams), as_int64s(positions), as_int64s(starts), as_int64s(lasts)
    cdef Table streams_table = table_of(table)
    cdef MappedFiles files = mapped_files(mapped)
    cdef Windows windows
    windows.streams, windows.positions, windows.starts, windows.lasts = int64s(streams), int64s(positions), int64s(starts), int64s(lasts)
    windows.n, windows.before, windows.rows = length(positions), before, rows
    if length(streams) != windows.n or length(starts) != windows.n or length(lasts) != windows.n:
        raise ValueError("expected as many streams, first and last rows as positions")
    cdef Layout layout
    layout.segment_rows, layout.lanes = segment_rows, lanes
    unsorted = new_int64s(windows.n * (rows // segment_rows + 2), sizeof(Run) // sizeof(int64_t))
    cdef Run* run_array = <Run*>int64s(unsorted, 2)
    cdef int64_t n
    with nogil:
        n = find_runs(streams_table, windows, layout, first_stream, run_array)
    if n < 0:
        return None
    runs, keys, sources = new_int64s(n, sizeof(Run) // sizeof(int64_t)), new_int64s(1, n), new_int64s(n, files.columns, 2)
    cdef Run* planned = <Run*>int64s(runs, 2)
    cdef int64_t* order = int64s(keys, 2)
    cdef Source* found_sources = <Source*>int64s(sources, 3)
    cdef bint complete
    with nogil:
        sort_runs(run_array, n, layout, order, planned)
        complete = find_sources_(files, planned, n, found_sources)
    return runs, sources, complete


def find_sources(mapped, runs, sources):
    """Look up where the files of runs are mapped; return whether all of them are."""
    cdef MappedFiles files = mapped_files(mapped)
    cdef const Run* planned = <const Run*>int64s(runs, 2)
    cdef Source* source_array = <Source*>int64s(sources, 3)
    cdef int64_t n = length(runs)
    if length(sources) != n or length(sources, 1) != files.columns:
        raise ValueError(f"expected sources of {n} runs and {files.columns} columns, found {sources.shape}")
    cdef bint complete
    with nogil:
        complete = find_sources_(files, planned, n, source_array)
    return complete


# Gathering


cdef Scratch scratch_of(scratch) except *:
    """Return memory for two chunks, (2, largest)."""
    cdef Scratch memory
    memory.memory, memory.largest = uint8s(scratch, 2), length(scratch, 1)
    if length(scratch) != 2:
        raise ValueError(f"expected room for two chunks, found {scratch.shape}")
    return memory


cdef class Helper:
    """What a thread that helps shares with those whom it helps; `scratch` is (2, bytes of the largest chunk)."""

    cdef Board* board  # never deleted: the thread may be waiting there when the process ends
    cdef object scratch

    def __cinit__(self, scratch):
        self.scratch = scratch
        self.board = new Board(scratch_of(scratch))

    def serve(self):
        """Help until the end."""
        with nogil:
            self.board.serve()

    def call(self):
        """Make the thread spin for work that comes soon."""
        self.board.call()

    def end(self):
        """End the thread, which must be idle."""
        self.board.end()


def gather(targets, runs, sources, scratch, int64_t parts=1, list helpers=[]):
    """Fill the memory of a batch, beside helpers, split into `parts`; when this returns, none of them looks at it any more.

    Returns None, or where a chunk cannot be read: why, the target, the run, and the number of the chunk.
    """
    cdef SharedBatch shared
    shared.batch, shared.parts = batch_of(targets, runs, sources), parts
    cdef Scratch own = scratch_of(scratch)
    cdef vector[Board*] boards
    cdef Helper helper
    for helper in helpers:
        boards.push_back(helper.board)
    cdef int reason
    with nogil:
        reason = gather_together(shared, boards.data(), boards.size(), own)
    return (reason, shared.progress.target, shared.progress.run, shared.progress.chunk) if reason else None


def gather_random(
    table, mapped, targets, scratch, Philox random not None, int64_t before, int64_t rows, int64_t segment_rows, ids
):
    """Draw as many steps as there is room for ids, plan windows around them, as `plan` does, and gather them, in this thread.

    Returns whether all could be read; otherwise a plan tells why not.
    """
    cdef Table streams = table_of(table)
    cdef MappedFiles files = mapped_files(mapped)
    cdef int64_t* numbers = int64s(ids)
    cdef int64_t n = length(ids), room = n * (rows // segment_rows + 2), steps, n_runs, i
    cdef Scratch own = scratch_of(scratch)
    cdef Layout layout = Layout(segment_rows, 1)
    cdef SharedBatch shared
    cdef Batch* batch = &shared.batch
    cdef vector[int64_t] places, keys
    cdef vector[Run] unsorted, runs
    cdef vector[Source] sources
    places.resize(4 * n)
    keys.resize(room)
    unsorted.resize(room)
    runs.resize(room)
    sources.resize(room * files.columns)
    cdef int64_t* first = places.data()
    cdef Located located = Located(first, first + n, first + 2 * n, first + 3 * n)
    cdef Windows windows = Windows(first, first + n, first + 2 * n, first + 3 * n, n, before, rows)
    batch.targets, batch.stores, batch.n_targets = <const Target*>int64s(targets, 3), length(targets), length(targets, 1)
    if length(targets, 2) * sizeof(int64_t) != sizeof(Target):
        raise ValueError(f"expected targets, found {targets.shape}")
    batch.runs, batch.sources, batch.columns, shared.parts = runs.data(), sources.data(), files.columns, 1
    batch.n_runs = 0
    check_columns(shared.batch)
    cdef bint complete = False
    with nogil:
        steps = draw_steps_(streams, random.random, n, located)
        if 0 < steps <= MOST_STEPS:
            n_runs = find_runs(streams, windows, layout, 0, unsorted.data())
            if n_runs >= 0:
                batch.n_runs = n_runs
                sort_runs(unsorted.data(), n_runs, layout, keys.data(), runs.data())
                complete = (
                    find_sources_(files, runs.data(), n_runs, sources.data()) and gather_together(shared, NULL, 0, own) == 0
                )
        for i in range(n):
            numbers[i] = located.positions[i] * streams.n + located.streams[i]
    return complete


# What a batch reads


def join_pages(pieces, int64_t page_bytes):
    """Return the stretches of pages, (n, 2), first and after the last, that pieces of memory, (addresses, bytes), lie in."""
    cdef const Source* memory = <const Source*>int64s(pieces, 2)
    cdef int64_t n = length(pieces)
    if length(pieces, 1) != 2:
        raise ValueError(f"expected addresses and sizes, found {pieces.shape}")
    stretches = new_int64s(n, 2)
    cdef Pages* pages = <Pages*>int64s(stretches, 2)
    return stretches[: join_pages_(memory, n, page_bytes, pages)]


def request_pages(targets, runs, sources, int64_t page_bytes):
    """Ask the system for all pages of a batch, so that the disk reads many at a time."""
    cdef Batch batch = batch_of(targets, runs, sources)
    with nogil:
        request_pages_(batch, page_bytes)
