# kernels: index sums lookup
"""The index of streams in RAM; see `index.hpp` and `lookup.hpp`. Not for several threads at once: callers hold a lock."""

import numpy as np
cimport numpy as cnp
from libc.stdint cimport int64_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from diskbuffer.native.arrays cimport as_int64s, bools, int64s, length

cnp.import_array()

cdef extern from *:
    """
    #include <cstddef>
    #define STREAM(field) static_cast<int>(offsetof(diskbuffer::Stream, field) / 8)
    """
    int Stream_head "STREAM(head)"
    int Stream_ended "STREAM(ended)"
    int Stream_low "STREAM(low)"
    int Stream_floor "STREAM(floor)"
    int Stream_episodes "STREAM(episodes)"
    int Stream_segments "STREAM(segments)"
    int Stream_store "STREAM(store)"
    int Stream_own "STREAM(own)"

# Fields of a stream in the table.
HEAD = Stream_head
ENDED = Stream_ended
LOW = Stream_low
FLOOR = Stream_floor
EPISODES = Stream_episodes
SEGMENTS = Stream_segments
STORE = Stream_store
OWN = Stream_own
FIELDS = sizeof(Stream) // sizeof(int64_t)

cdef extern from "lookup.hpp" namespace "diskbuffer" nogil:
    int64_t steps_of(const Stream& stream)
    int64_t steps_before(const Stream& stream, int64_t position)
    int64_t steps_added(const Stream& stream)
    int64_t last_row(const Stream& stream, int64_t episode)
    int64_t episode_at(const Stream& stream, int64_t position)
    int64_t lead_in(const Stream& stream, int64_t start)
    void locate_ "diskbuffer::locate"(Index& index, const int64_t* ordinals, int64_t n, Located located) except +
    void locate_in_ "diskbuffer::locate_in"(Table table, const int64_t* streams, const int64_t* places, int64_t n, Located located)
    void locate_episodes_ "diskbuffer::locate_episodes"(Index& index, const int64_t* ordinals, int64_t n, Located located) except +
    void episodes_along_ "diskbuffer::episodes_along"(
        Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t length, int64_t* firsts, int64_t* lasts
    )
    void find_rows(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t segment_rows, int64_t* rows)


cdef cnp.ndarray new_int64s(int64_t n):
    cdef cnp.npy_intp shape = n
    return <cnp.ndarray>cnp.PyArray_EMPTY(1, &shape, cnp.NPY_INT64, 0)


cdef cnp.ndarray new_rows(int64_t rows, int64_t n):
    cdef cnp.npy_intp shape[2]
    shape[0], shape[1] = rows, n
    return <cnp.ndarray>cnp.PyArray_EMPTY(2, shape, cnp.NPY_INT64, 0)


cdef cnp.ndarray copied(const int64_t* values, int64_t n):
    array = new_int64s(n)
    if n:
        memcpy(cnp.PyArray_DATA(array), values, n * sizeof(int64_t))
    return array


cdef object places_below(ordinals, int64_t most):
    places = as_int64s(ordinals)
    cdef const int64_t* found = int64s(places)
    cdef int64_t i
    for i in range(length(places)):
        if not 0 <= found[i] < most:
            raise IndexError(f"expected places from 0 to {most - 1}, found {found[i]}")
    return places


cdef int same_length(int64_t found, int64_t expected) except -1:
    if found != expected:
        raise ValueError(f"expected arrays of one length, found {found} and {expected}")
    return 0


cdef class NativeIndex:
    """Streams, their segments and episodes, and looking steps up in them.

    Arrays are (n,) int64; those of streams may be one stream for all.

    Parameters
    ----------
    streams : int
    segment_rows : int
        Rows that a segment has at most.
    context : int
        Rows before a step that are needed to sample it: the frames of its stack but one.
    lanes : int
        Segments that lie in one file.

    Attributes
    ----------
    table : (streams, FIELDS) int64
        What is known of each stream. Whoever writes HEAD or ENDED there calls `advanced`.
    dropped : int
        Segments that were forgotten, ever.
    """

    def __cinit__(self, int64_t streams, int64_t segment_rows, int64_t context, int64_t lanes=1):
        if streams < 1 or segment_rows < 1 or context < 0 or lanes < 1:
            raise ValueError(f"expected streams, rows and lanes of 1 or more, found {streams}, {segment_rows}, {context} and {lanes}")
        memory = np.zeros(streams * FIELDS + 8, np.int64)
        first = -(<int64_t>cnp.PyArray_DATA(<cnp.ndarray>memory)) % 64 // 8  # cache lines
        self.table = memory[first : first + streams * FIELDS].reshape(streams, FIELDS)
        self.native = new Index(<Stream*>cnp.PyArray_DATA(<cnp.ndarray>self.table), streams, segment_rows, lanes, context)

    def __dealloc__(self):
        del self.native

    def __reduce__(self):
        raise TypeError("an index cannot be copied or pickled")

    def __len__(self):
        return self.native.steps().total()

    @property
    def segment_rows(self):
        """Rows that a segment has at most."""
        return self.native.segment_rows

    @property
    def context(self):
        """Rows before a step that are needed to sample it."""
        return self.native.context

    @property
    def version(self):
        """A number that grows with each change."""
        return self.native.version()

    @property
    def nbytes(self):
        """Bytes of RAM that it takes, about. O(streams)."""
        return self.native.bytes()

    @property
    def episodes(self):
        """Count the episodes of which a row is there; a running one may have no step yet."""
        return self.native.episodes().total()

    cdef object streams_of(self, object streams, int64_t n):
        """Return the numbers of `n` streams, checked."""
        numbers = as_int64s(streams if getattr(streams, "shape", ()) else np.full(n, streams, np.int64))
        same_length(length(numbers), n)
        cdef const int64_t* values = int64s(numbers)
        cdef int64_t i, most = self.native.table().n
        for i in range(n):
            if not 0 <= values[i] < most:
                raise IndexError(f"expected streams from 0 to {most - 1}, found {values[i]}")
        return numbers

    cdef const Stream* one(self, int64_t stream) except NULL:
        if not 0 <= stream < self.native.table().n:
            raise IndexError(f"expected a stream from 0 to {self.native.table().n - 1}, found {stream}")
        return self.native.table().streams + stream

    # Writing

    def start_episodes(self, streams, positions):
        """Note that episodes start at rows, of each stream in ascending order."""
        positions = as_int64s(positions)
        cdef int64_t n = length(positions)
        numbers = self.streams_of(streams, n)
        self.native.add_starts(int64s(numbers), int64s(positions), n)

    def add_segments(self, streams, firsts, numbers):
        """Note the next segments of streams, by their first positions and their numbers in the store, of each stream in order."""
        firsts, numbers = as_int64s(firsts), as_int64s(numbers)
        cdef int64_t n = length(firsts), i
        same_length(length(numbers), n)
        of = self.streams_of(streams, n)
        cdef vector[Segment] segments
        segments.resize(n)
        for i in range(n):
            segments[i] = Segment(int64s(firsts)[i], int64s(numbers)[i])
        self.native.add_segments(int64s(of), segments.data(), n)

    def add_leads(self, streams, leads):
        """Note lead-ins, (n, 2): the first row of the episode, and of the lead-in. All of these rows start episodes, too."""
        leads = np.ascontiguousarray(leads, np.int64)
        cdef const LeadIn* places = <const LeadIn*>int64s(leads, 2)
        cdef int64_t n = length(leads)
        same_length(length(leads, 1), 2)
        numbers = self.streams_of(streams, n)
        self.native.add_leads(int64s(numbers), places, n)

    def advance(self, streams, heads, ended):
        """Note the newest rows of streams, and whether each is the last of an episode."""
        heads = np.atleast_1d(np.asarray(heads, np.int64))
        ended = np.atleast_1d(np.asarray(ended, np.int64))
        cdef int64_t n = length(heads)
        same_length(length(ended), n)
        numbers = self.streams_of(streams, n)
        self.native.advance(int64s(numbers), int64s(np.ascontiguousarray(heads)), int64s(np.ascontiguousarray(ended)), n)

    def advanced(self, streams=None):
        """Note that heads were written to the table: of all streams, in no time, or of some."""
        if streams is None:
            self.native.all_advanced()
            return
        numbers = self.streams_of(streams, length(streams) if cnp.PyArray_Check(streams) else 1)
        self.native.advanced(int64s(numbers), length(numbers))

    def set_first_steps(self, streams, steps):
        """Have streams without episodes count their steps from a number on, at their oldest rows."""
        steps = as_int64s(steps)
        cdef int64_t n = length(steps)
        numbers = self.streams_of(streams, n)
        self.native.set_first_steps(int64s(numbers), int64s(steps), n)

    def drop_segments(self, streams, counts):
        """Forget the oldest segments of streams, so many of each; return their numbers, (dropped,)."""
        counts = as_int64s(counts)
        cdef int64_t n = length(counts), i, k
        cdef vector[int64_t] dropped
        numbers = self.streams_of(streams, n)
        for i in range(n):
            if not 0 <= int64s(counts)[i] <= self.native.stream(int64s(numbers)[i]).segments:
                raise ValueError(f"stream {numbers[i]} has {self.table[numbers[i], SEGMENTS]} segments, not {counts[i]} to drop")
        for i in range(n):
            for k in range(int64s(counts)[i]):
                dropped.push_back(self.native.stream(int64s(numbers)[i]).segment_list[k].number)
        self.native.drop_segments(int64s(numbers), int64s(counts), n)
        self.dropped += dropped.size()
        return copied(dropped.data(), dropped.size())

    def drop_below(self, positions):
        """Forget the segments of all streams that have no row at a position, (streams,), or behind it; a stream may be left empty."""
        positions = as_int64s(positions)
        same_length(length(positions), self.native.table().n)
        self.dropped += self.native.drop_below(int64s(positions))

    def begin_at(self, streams, positions):
        """Have no row before a position count: it is an episode's first, or after the newest row, which is an episode's last."""
        positions = np.atleast_1d(np.asarray(positions, np.int64))
        cdef int64_t n = length(positions), i
        numbers = self.streams_of(streams, n)
        for i in range(n):
            if self.native.begin_at(int64s(numbers)[i], int64s(positions)[i]):
                self.dropped += 1  # batches that were drawn before may have steps that are gone

    def take(self, int64_t first, NativeIndex other not None, int64_t since, int64_t store, numbers):
        """Take the streams of another index that changed after a version, as those from `first` on, and of a store.

        `numbers` are those of its segments here, by their own.
        """
        self.one(first)
        self.one(first + other.native.table().n - 1)
        self.native.take(first, other.native[0], since, store, int64s(numbers))

    def clear(self, int64_t first, int64_t n):
        """Empty so many streams."""
        self.one(first)
        self.one(first + n - 1)
        self.native.clear(first, n)

    # What there is

    def changed_since(self, int64_t version):
        """Return the streams that changed after a version, in ascending order."""
        cdef vector[int64_t] changed = self.native.changed_since(version)
        return copied(changed.data(), changed.size())

    def steps(self):
        """Count the steps to sample, by stream. O(streams)."""
        cdef Table table = self.native.table()
        cdef int64_t stream
        counts = new_int64s(table.n)
        cdef int64_t* out = int64s(counts)
        for stream in range(table.n):
            out[stream] = steps_of(table.streams[stream])
        return counts

    def added_each(self):
        """Count all steps ever added, by stream. O(streams)."""
        cdef Table table = self.native.table()
        cdef int64_t stream
        counts = new_int64s(table.n)
        cdef int64_t* out = int64s(counts)
        for stream in range(table.n):
            out[stream] = steps_added(table.streams[stream])
        return counts

    def steps_of(self, streams):
        """Count the steps of streams that can be sampled."""
        streams = as_int64s(streams)
        cdef int64_t n = length(streams), i
        numbers = self.streams_of(streams, n)
        counts = new_int64s(n)
        for i in range(n):
            int64s(counts)[i] = steps_of(self.native.stream(int64s(numbers)[i]))
        return counts

    def first_steps_of(self, streams):
        """Count the steps that streams ever had before those that can be sampled."""
        streams = as_int64s(streams)
        cdef int64_t n = length(streams), i
        numbers = self.streams_of(streams, n)
        counts = new_int64s(n)
        cdef const Stream* of
        for i in range(n):
            of = self.native.table().streams + int64s(numbers)[i]
            int64s(counts)[i] = 0 if of.head < 0 else steps_before(of[0], of.floor)
        return counts

    def episodes_before(self, streams, positions):
        """Count the episodes of streams that are there before those that positions lie in."""
        positions = as_int64s(positions)
        cdef int64_t n = length(positions), i
        numbers = self.streams_of(streams, n)
        counts = new_int64s(n)
        for i in range(n):
            int64s(counts)[i] = episode_at(self.native.stream(int64s(numbers)[i]), int64s(positions)[i])
        return counts

    def added_to(self, int64_t stream):
        """Count the steps ever added to a stream."""
        return steps_added(self.one(stream)[0])

    def steps_before(self, int64_t stream, int64_t position):
        """Count the steps that a stream ever had before a position."""
        return steps_before(self.one(stream)[0], position)

    def steps_up_to(self, streams, positions):
        """Count the steps of streams that can be sampled before positions."""
        positions = as_int64s(positions)
        cdef int64_t n = length(positions), i
        numbers = self.streams_of(streams, n)
        counts = new_int64s(n)
        cdef const Stream* stream
        for i in range(n):
            stream = self.native.table().streams + int64s(numbers)[i]
            int64s(counts)[i] = 0 if stream.head < 0 else max(
                <int64_t>0, steps_before(stream[0], min(int64s(positions)[i], stream.head)) - steps_before(stream[0], stream.floor)
            )
        return counts

    def starts(self, int64_t stream):
        """Return where the episodes of a stream start; the first may reach behind the oldest row."""
        cdef const Stream* of = self.one(stream)
        return copied(of.starts, of.episodes)

    def segments(self, int64_t stream):
        """Return the segments of a stream, (n, 2), oldest first: first positions, and numbers in the store."""
        cdef const Stream* of = self.one(stream)
        return copied(<const int64_t*>of.segment_list, 2 * of.segments).reshape(-1, 2)

    def slots(self, int64_t stream):
        """Return the numbers in the store of a stream's segments, oldest first."""
        return np.ascontiguousarray(self.segments(stream)[:, 1])

    def newest_segments(self):
        """Return the number in the store of each stream's newest segment, (streams,); -1 where there is none. O(streams)."""
        cdef Table table = self.native.table()
        cdef int64_t stream
        cdef const Stream* of
        numbers = new_int64s(table.n)
        for stream in range(table.n):
            of = table.streams + stream
            int64s(numbers)[stream] = -1 if of.segments == 0 else of.segment_list[of.segments - 1].number
        return numbers

    def segments_from(self, streams, positions):
        """Return the segments of streams that have rows at positions or behind them: streams, firsts and numbers, (n,) each."""
        positions = as_int64s(positions)
        cdef int64_t n = length(positions), i, at
        numbers = self.streams_of(streams, n)
        cdef const Stream* of
        cdef vector[int64_t] owners, firsts, found
        for i in range(n):
            of = self.native.table().streams + int64s(numbers)[i]
            at = of.segments - 1
            while at > 0 and of.segment_list[at].first > int64s(positions)[i]:
                at -= 1
            for at in range(max(<int64_t>0, at), of.segments):
                owners.push_back(int64s(numbers)[i])
                firsts.push_back(of.segment_list[at].first)
                found.push_back(of.segment_list[at].number)
        return tuple(copied(each.data(), each.size()) for each in (owners, firsts, found))

    def newest_alone(self):
        """Return the first of the rows up to the newest, of each stream, that all are episodes of one row so far, (streams,).

        It is behind the newest row where that is not the first of its episode. O(streams), and the rows that are found.
        """
        cdef Table table = self.native.table()
        cdef int64_t stream, alone
        cdef const Stream* of
        rows = new_int64s(table.n)
        for stream in range(table.n):
            of = table.streams + stream
            alone = 0
            while alone < of.episodes and of.head - alone >= of.low and of.starts[of.episodes - 1 - alone] == of.head - alone:
                alone += 1
            int64s(rows)[stream] = of.head + 1 - alone
        return rows

    def leads(self, int64_t stream):
        """Return the lead-ins of a stream, (n, 2), as `add_leads` takes them."""
        cdef const Stream* of = self.one(stream)
        return copied(<const int64_t*>of.lead_places, 2 * of.lead_ins).reshape(-1, 2)

    def has_lead(self, int64_t stream, int64_t position):
        """Return whether there is a lead-in of the episode whose first row is at a position."""
        return lead_in(self.one(stream)[0], position) != position

    def rows_alone(self, streams, positions, int64_t count):
        """Return whether so many rows from each position on are there, and each of them is an episode, (n,) bool."""
        positions = as_int64s(positions)
        cdef int64_t n = length(positions), i, at, k
        numbers = self.streams_of(streams, n)
        alone = np.zeros(n, np.bool_)
        cdef cbool* out = <cbool*>bools(alone)
        cdef const Stream* of
        for i in range(n):
            of, first = self.native.table().streams + int64s(numbers)[i], int64s(positions)[i]
            if of.episodes == 0 or first + count - 1 > of.head:
                continue
            at = episode_at(of[0], first)
            out[i] = True
            for k in range(min(count + 1, of.head - <int64_t>first + 1)):  # and so does the row behind them, where there is one
                if at + k >= of.episodes or of.starts[at + k] != <int64_t>first + k:
                    out[i] = False
        return alone

    def episode_starts(self, streams, positions):
        """Return where the episodes that positions lie in start; the position itself where that is not known."""
        positions = as_int64s(positions)
        cdef int64_t n = length(positions), i, at
        numbers = self.streams_of(streams, n)
        starts = positions.copy()
        cdef const Stream* of
        for i in range(n):
            of = self.native.table().streams + int64s(numbers)[i]
            if of.episodes != 0:
                at = of.starts[episode_at(of[0], int64s(positions)[i])]
                if at <= int64s(positions)[i]:
                    int64s(starts)[i] = at
        return starts

    def first_frame(self, int64_t stream, int64_t position):
        """Return where the frames of the episode that a row lies in begin: with its lead-in, or with the oldest row there is."""
        cdef const Stream* of = self.one(stream)
        cdef int64_t start = of.starts[episode_at(of[0], position)] if of.episodes else position
        return max(lead_in(of[0], min(start, position)), of.low)

    # Looking up

    def locate(self, ordinals):
        """Find steps by their place among all that can be sampled now, stream after stream.

        Returns (4, n): streams, positions, and the positions of the first and the last row of their episodes; of one that runs,
        the newest is the last. O(log episodes) each.
        """
        ordinals = places_below(ordinals, self.native.steps().total())
        cdef const int64_t* places = int64s(ordinals)
        cdef int64_t n = length(ordinals)
        located = new_rows(4, n)
        cdef Located out = located_of(located, n)
        with nogil:
            locate_(self.native[0], places, n, out)
        return located

    def locate_in(self, streams, places):
        """Find steps by their place among those of their stream that can be sampled, as `locate` does."""
        places = as_int64s(places)
        cdef int64_t n = length(places), i
        numbers = self.streams_of(streams, n)
        for i in range(n):
            if not 0 <= int64s(places)[i] < steps_of(self.native.stream(int64s(numbers)[i])):
                raise IndexError(f"stream {numbers[i]} has no step {places[i]}")
        located = new_rows(4, n)
        locate_in_(self.native.table(), int64s(numbers), int64s(places), n, located_of(located, n))
        return located

    def recent(self, streams, ages):
        """Find steps by how many steps of their stream came after them, as `locate` does.

        Returns what was found, and the place of the first that there is not; -1, if all are there.
        """
        streams, ages = as_int64s(streams), as_int64s(ages)
        cdef int64_t n = length(ages), missing
        same_length(length(streams), n)
        located = new_rows(4, n)
        missing = locate_recent(self.native.table(), int64s(streams), int64s(ages), n, located_of(located, n))
        return located, missing

    def locate_episodes(self, ordinals):
        """Find episodes by their place among all, stream after stream.

        Returns (4, n): streams, and the positions of the first row to sample, of the first row ever, and of the last row.
        """
        ordinals = places_below(ordinals, self.native.episodes().total())
        cdef const int64_t* places = int64s(ordinals)
        cdef int64_t n = length(ordinals)
        located = new_rows(4, n)
        cdef Located out = located_of(located, n)
        with nogil:
            locate_episodes_(self.native[0], places, n, out)
        return located

    def episodes_of(self, streams, positions):
        """Find the first and the last row of the episodes of steps; -1 where a step cannot be sampled.

        It was evicted, is not there yet, or is no step.
        """
        streams, positions = as_int64s(streams), as_int64s(positions)
        cdef int64_t n = length(positions)
        same_length(length(streams), n)
        starts, lasts = new_int64s(n), new_int64s(n)
        find_episodes(self.native.table(), int64s(streams), int64s(positions), n, int64s(starts), int64s(lasts))
        return starts, lasts

    def rows_of(self, streams, positions):
        """Find the rows in the store, ``number * segment_rows + offset``, of positions that are there."""
        positions = as_int64s(positions)
        cdef int64_t n = length(positions), i
        numbers = self.streams_of(streams, n)
        cdef const Stream* of
        for i in range(n):
            of = self.native.table().streams + int64s(numbers)[i]
            if not of.low <= int64s(positions)[i] <= of.head or of.segments == 0:
                raise IndexError(f"stream {numbers[i]} has no row at position {positions[i]}")
        rows = new_int64s(n)
        find_rows(self.native.table(), int64s(numbers), int64s(positions), n, self.native.segment_rows, int64s(rows))
        return rows

    def episodes_along(self, streams, positions, int64_t along):
        """Find the first and the last row of the episode of each of `along` rows from steps on, (n, along).

        The last row is -1 where the episode runs.
        """
        positions = as_int64s(positions)
        cdef int64_t n = length(positions)
        numbers = self.streams_of(streams, n)
        firsts, lasts = new_rows(n, along), new_rows(n, along)
        episodes_along_(self.native.table(), int64s(numbers), int64s(positions), n, along, int64s(firsts, 2), int64s(lasts, 2))
        return firsts, lasts


cdef class StreamSums:
    """Counts of streams that a sampler draws from, zeros at first, and which stream a number falls on."""

    cdef Sums* sums
    cdef int64_t n

    def __cinit__(self, int64_t streams):
        self.n = streams
        self.sums = new Sums(streams)

    def __dealloc__(self):
        del self.sums

    @property
    def total(self):
        """The sum of all counts."""
        return self.sums.total()

    def set(self, streams, counts):
        """Set the counts of some streams, in ascending order."""
        streams, counts = as_int64s(streams), as_int64s(counts)
        same_length(length(streams), length(counts))
        if length(streams) and not (0 <= streams[0] and streams[-1] < self.n and (np.diff(streams) > 0).all()):
            raise ValueError(f"expected streams in ascending order, below {self.n}")
        self.sums.set(int64s(streams), int64s(counts), length(streams))

    def of(self, streams):
        """Return the counts of streams."""
        streams = as_int64s(streams)
        counts = new_int64s(length(streams))
        cdef int64_t i
        for i in range(length(streams)):
            if not 0 <= int64s(streams)[i] < self.n:
                raise IndexError(f"expected streams from 0 to {self.n - 1}, found {streams[i]}")
            int64s(counts)[i] = self.sums.of(int64s(streams)[i])
        return counts

    def find(self, numbers):
        """Return the streams that numbers from 0 to below the total fall on, and their places there."""
        numbers = as_int64s(numbers)
        cdef int64_t n = length(numbers), i, number
        streams, places = new_int64s(n), new_int64s(n)
        for i in range(n):
            number = int64s(numbers)[i]
            if not 0 <= number < self.sums.total():
                raise IndexError(f"expected numbers from 0 to {self.sums.total() - 1}, found {number}")
            int64s(streams)[i] = self.sums.find(number)
            int64s(places)[i] = number - self.sums.before(int64s(streams)[i])
        return streams, places
