"""Batches that threads gather while their caller does something else: see `jobs.hpp`, and `finishing.hpp` for what is made of the rows."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t
from libcpp.deque cimport deque
from libcpp.vector cimport vector

from diskbuffer.native.arrays cimport as_int64s, int64s, length, uint8s
from diskbuffer.native.libraries cimport attach_libraries
from diskbuffer.native.runs cimport Layout, MappedFiles, Run, Source, Target, mapped_files
from diskbuffer.native.sampling cimport MOST_STEPS, Philox, draw_steps_
from diskbuffer.native.table cimport Located, Table, table_of

cnp.import_array()
attach_libraries()

cdef extern from "finishing.hpp" namespace "diskbuffer" nogil:
    enum class Finish(int64_t):
        SUM, FIRST, LAST, DISCOUNT, MASK, ZEROS, EDGE, UNSET

    enum class Number(int64_t):
        INT8

    struct Finishing:
        Finish what
        const uint8_t* source
        uint8_t* out
        int64_t samples, rows, row_bytes
        Number number, rounded
        int64_t extra
        const int64_t* begin
        const int64_t* end
        const double* factors

_FINISH = {
    "sum": <int64_t>Finish.SUM, "first": <int64_t>Finish.FIRST, "last": <int64_t>Finish.LAST, "discount": <int64_t>Finish.DISCOUNT,
    "mask": <int64_t>Finish.MASK, "zeros": <int64_t>Finish.ZEROS, "edge": <int64_t>Finish.EDGE, "unset": <int64_t>Finish.UNSET,
}
_NUMBERS = {name: n for n, name in enumerate("i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split())}  # as `finishing.hpp` numbers them

cdef extern from "plan.hpp" namespace "diskbuffer" nogil:
    struct Windows:
        const int64_t* streams
        const int64_t* positions
        const int64_t* starts
        const int64_t* lasts
        int64_t n, before, rows

    bint find_runs(Table table, const Windows& windows, const Layout& layout, int64_t first_stream, vector[Run]& runs) except +
    bint find_sources_ "diskbuffer::find_sources"(const MappedFiles& mapped, vector[Run]& runs, vector[Source]& sources) except +

cdef extern from "byte_ranges.hpp" namespace "diskbuffer" nogil:
    struct Pages:
        pass

    int64_t join_pages_ "diskbuffer::join_pages"(const Source* pieces, int64_t n, int64_t page_bytes, Pages* stretches)

cdef extern from "jobs.hpp" namespace "diskbuffer" nogil:
    cppclass Atomic "std::atomic<int>":
        int load()

    cppclass Progress:
        Atomic reason
        int64_t target, run, chunk

    cppclass Share:
        vector[Run] runs
        vector[Source] sources
        const Target* targets
        int64_t stores, n_targets, columns
        Progress progress

    cppclass microseconds "std::chrono::microseconds":
        microseconds(int64_t)

    cppclass CppJob "diskbuffer::Job":
        deque[Share] shares
        vector[Finishing] finishing
        int64_t largest, page_bytes
        void split(int64_t parts)
        void work(uint8_t* scratch)
        void cancel()
        bint is_over()
        int64_t waits()
        int64_t damaged()

    cppclass CppCrew "diskbuffer::Crew":
        void serve()
        void submit(CppJob& job, int most, bint urgent) except +
        bint wait(CppJob& job, microseconds most, uint8_t* scratch) except +
        void withdraw(CppJob& job) except +
        void call(int threads) except +
        void end() except +


cdef class Finishes:
    """What is to be done with the rows of a batch once they are there: see `finishing.hpp`."""

    cdef vector[Finishing] each
    cdef list held

    def __cinit__(self):
        self.held = []

    def add(
        self, str what, out, int64_t samples, int64_t rows, *, source=None, int64_t row_bytes=0, number="u1", rounded="f4",
        int64_t extra=0, begin=None, end=None, factors=None
    ):
        """Add something that is done for all samples; arrays are kept, and are to stay where they are."""
        cdef Finishing one
        one.what, one.number, one.rounded = <Finish><int64_t>_FINISH[what], <Number><int64_t>_NUMBERS[number], <Number><int64_t>_NUMBERS[rounded]
        one.samples, one.rows, one.row_bytes, one.extra = samples, rows, row_bytes, extra
        one.source, one.out = <const uint8_t*>start(source), <uint8_t*>start(out)
        one.begin, one.end, one.factors = <const int64_t*>start(begin), <const int64_t*>start(end), <const double*>start(factors)
        self.each.push_back(one)
        self.held.append((source, out, begin, end, factors))


cdef void* start(object array) except? NULL:
    """Return where a contiguous array begins; NULL for None."""
    if array is None:
        return NULL
    if not array.flags.c_contiguous:
        raise ValueError("expected a contiguous array")
    return cnp.PyArray_DATA(array)


cdef class Crew:
    """Threads that gather jobs."""

    cdef CppCrew* crew  # never deleted: a thread may be waiting there when the process ends

    def __cinit__(self):
        self.crew = new CppCrew()

    def serve(self):
        """Be one of them, until the end."""
        cdef CppCrew* crew = self.crew
        with nogil:
            crew.serve()

    def call(self, int threads):
        """Make so many of them spin for a job that comes soon."""
        self.crew.call(threads)

    def end(self):
        """End them, once there is nothing left to do."""
        self.crew.end()

    def renew(self):
        """In a fork, in which there are none of them: have none, and no job."""
        self.crew = new CppCrew()


cdef class Job:
    """A batch that is planned, and gathered by a crew or whoever waits for it. It keeps what it was given as long as it needs that."""

    cdef CppJob* job
    cdef Crew crew
    cdef CppCrew* handed  # to which threads
    cdef list held

    def __cinit__(self):
        self.job, self.held = new CppJob(), []

    def __del__(self):  # before anything is cleared: the collector of garbage clears what is held before it frees this
        if self.handed != NULL:
            self.withdraw()

    def __dealloc__(self):
        del self.job

    def withdraw(self):
        """Have it gathered by nobody any more; returns when no thread has it."""
        if self.is_handed_over():
            with nogil:
                self.handed.withdraw(self.job[0])
        self.handed = NULL

    def cancel(self):
        """Have no more of it gathered, and go on."""
        self.job.cancel()

    cdef bint is_handed_over(self) noexcept:
        return self.handed != NULL and self.handed == self.crew.crew  # not in a fork, whose crew is another, and has no jobs

    def plan(
        self, table, mapped, targets, streams, positions, starts, lasts, int64_t before, int64_t rows, int64_t segment_rows,
        int64_t first_stream, int64_t lanes=1
    ):
        """Add a share: windows of `rows` rows around drawn steps, each of which is number `before` of its window.

        `targets` are where they go. Returns whether all files are mapped, else `find_sources` is to be called again; None where a step
        was evicted.
        """
        streams, positions, starts, lasts = as_int64s(streams), as_int64s(positions), as_int64s(starts), as_int64s(lasts)
        cdef int64_t n = length(positions)
        cdef Windows windows = Windows(int64s(streams), int64s(positions), int64s(starts), int64s(lasts), n, before, rows)
        if length(streams) != n or length(starts) != n or length(lasts) != n:
            raise ValueError("expected as many streams, first and last rows as positions")
        return self._add(table_of(table), mapped_files(mapped), targets, windows, Layout(segment_rows, lanes), first_stream)

    def draw(self, table, mapped, targets, Philox random not None, int64_t before, int64_t rows, int64_t segment_rows, ids):
        """Draw as many steps as there is room for ids, which are filled in, and add a share of them, as `plan` does.

        None, too, where there are no steps, or too many to draw in this way.
        """
        cdef Table streams = table_of(table)
        cdef int64_t* numbers = int64s(ids)
        cdef int64_t n = length(ids), steps, i
        cdef vector[int64_t] places
        places.resize(4 * n)
        cdef int64_t* first = places.data()
        cdef Located located = Located(first, first + n, first + 2 * n, first + 3 * n)
        with nogil:
            steps = draw_steps_(streams, random.random, n, located)
            for i in range(n):
                numbers[i] = located.positions[i] * streams.n + located.streams[i]
        if not (0 < steps <= MOST_STEPS):
            return None
        cdef Windows windows = Windows(first, first + n, first + 2 * n, first + 3 * n, n, before, rows)
        return self._add(streams, mapped_files(mapped), targets, windows, Layout(segment_rows, 1), 0)

    cdef object _add(self, Table streams, MappedFiles files, targets, Windows windows, Layout layout, int64_t first_stream):
        self.job.shares.emplace_back()
        cdef Share* share = &self.job.shares.back()
        share.targets, share.stores, share.n_targets = <const Target*>int64s(targets, 3), length(targets), length(targets, 1)
        share.columns = files.columns
        cdef size_t i
        cdef bint is_there, complete = False
        try:
            check_targets(targets, share[0])
            with nogil:
                is_there = find_runs(streams, windows, layout, first_stream, share.runs)
                if is_there:
                    complete = find_sources_(files, share.runs, share.sources)
            for i in range(share.runs.size()):
                if not (0 <= share.runs[i].store < share.stores and share.runs[i].lane >= 0):
                    raise ValueError(f"expected one of {share.stores} stores, found {share.runs[i].store}")
        except BaseException:
            self.job.shares.pop_back()
            raise
        if not is_there:
            self.job.shares.pop_back()
            return None
        self.held.append(targets)
        return complete

    def files(self):
        """Return the files of the newest share: (n,) int64."""
        cdef Share* share = &self.job.shares.back()
        cdef cnp.npy_intp n = share.runs.size()
        found = cnp.PyArray_EMPTY(1, &n, cnp.NPY_INT64, 0)
        cdef int64_t* numbers = int64s(found)
        cdef int64_t i
        for i in range(n):
            numbers[i] = share.runs[i].file
        return found

    def find_sources(self, mapped):
        """Look up where the files of the newest share are mapped; return whether all of them are."""
        cdef MappedFiles files = mapped_files(mapped)
        cdef Share* share = &self.job.shares.back()
        if files.columns != share.columns:
            raise ValueError(f"expected {share.columns} columns, found {mapped.shape}")
        return find_sources_(files, share.runs, share.sources)

    def keep(self, what):
        """Keep something as long as this: what has the memory that it names."""
        self.held.append(what)

    @property
    def runs(self):
        """How many runs of rows are read, and written, in all shares."""
        cdef int64_t n = 0
        cdef size_t k
        for k in range(self.job.shares.size()):
            n += self.job.shares[k].runs.size()
        return n

    def finish(self, Finishes what not None):
        """Have something done once the rows are there."""
        self.job.finishing = what.each
        self.held.append(what)

    def submit(self, Crew crew not None, int64_t largest, int64_t parts, int threads, bint urgent=False, int64_t page_bytes=0):
        """Hand it over to threads, of which so many at most take parts; where a fork took place, once more."""
        if self.is_handed_over():
            raise ValueError("the job was handed over already")
        self.job.largest, self.job.page_bytes = largest, page_bytes
        self.job.split(parts)
        self.crew, self.handed = crew, crew.crew
        crew.crew.submit(self.job[0], threads, urgent)

    def run(self, scratch, int64_t page_bytes=-1):
        """Gather all of it in this thread, and return whether it could be read.

        `scratch` is room for two chunks, (2, bytes of the largest) uint8. Pages that were waited for are counted where `page_bytes` is given.
        """
        cdef uint8_t* memory = uint8s(scratch, 2)
        if length(scratch) != 2 or self.handed != NULL:
            raise ValueError(f"expected a job that nobody has, and room for two chunks, found {scratch.shape}")
        self.job.largest, self.job.page_bytes = length(scratch, 1), page_bytes
        with nogil:
            self.job.split(1)
            self.job.work(memory)
        return self.job.damaged() < 0

    def wait(self, scratch, double seconds):
        """Take parts of it, and wait for what threads have taken; return whether it is over, or False after some time.

        `scratch` is room for two of the largest chunks, (2, bytes) uint8.
        """
        cdef uint8_t* memory = uint8s(scratch, 2)
        if length(scratch) != 2 or length(scratch, 1) < self.job.largest or self.handed == NULL:
            raise ValueError(f"expected a job that was handed over, and room for two chunks, found {scratch.shape}")
        cdef bint is_over
        cdef CppCrew* crew = self.handed
        with nogil:
            is_over = crew.wait(self.job[0], microseconds(<int64_t>(seconds * 1e6)), memory)
        return is_over

    @property
    def largest(self):
        """Bytes of a chunk, at most."""
        return self.job.largest

    @property
    def is_over(self):
        """Whether nothing is left to be gathered."""
        return self.job.is_over()

    @property
    def waits(self):
        """How many pages its threads have waited for; of a job that asks for its pages first, have read."""
        return self.job.waits()

    @property
    def damage(self):
        """Where a chunk cannot be read: the share, why, the target, the row's run as a tuple, and the number of the chunk; or None."""
        cdef int64_t number = self.job.damaged()
        if number < 0:
            return None
        cdef Share* share = &self.job.shares[number]
        cdef const int64_t* run = <const int64_t*>&share.runs[share.progress.run]
        fields = tuple([run[i] for i in range(sizeof(Run) // sizeof(int64_t))])
        return number, share.progress.reason.load(), share.progress.target, fields, share.progress.chunk


cdef int check_targets(targets, const Share& share) except -1:
    """Refuse targets of columns that sources do not have."""
    cdef int64_t i
    if length(targets, 2) * sizeof(int64_t) != sizeof(Target):
        raise ValueError(f"expected targets, found {targets.shape}")
    for i in range(share.stores * share.n_targets):
        if not (0 <= share.targets[i].column < share.columns and -1 <= share.targets[i].checksums < share.columns):
            raise ValueError(f"expected one of {share.columns} columns, found {share.targets[i].column}, {share.targets[i].checksums}")
    return 0


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
