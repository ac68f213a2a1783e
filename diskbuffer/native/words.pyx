"""Words of `_heads` and entries of `_segments`, in mapped files; see `words.hpp`."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t

from diskbuffer.native.arrays cimport int64s, length, uint8s
from diskbuffer.native.libraries cimport attach_libraries

cnp.import_array()
attach_libraries()

cdef extern from "words.hpp" namespace "diskbuffer" nogil:
    const uint64_t HEAD_NUMBER_ "diskbuffer::HEAD_NUMBER"
    const int64_t HEAD_WORDS_ "diskbuffer::HEAD_WORDS"

    struct Entry:
        int64_t environment, first, episode, steps_before, begun, end, steps, complete

    int64_t load_acquire(const int64_t* at)
    bint is_head_word(uint64_t salt, uint64_t environment, uint64_t field, uint64_t word)
    void set_head(int64_t* heads, uint64_t salt, uint64_t environment, uint64_t field, uint64_t number)
    uint8_t state_of(const Entry& entry, uint64_t salt, uint64_t segment)
    void begin_entry(Entry* entry, Entry values, uint64_t salt, uint64_t segment)
    void complete_entry(Entry* entry, int64_t end, int64_t steps, uint64_t salt, uint64_t segment)
    void empty_entry(Entry* entry)
    Entry copy_entry(const Entry* entry)

cdef enum:
    FILE_ENTRIES = 4096  # in a file of the segment table


def set_heads(uintptr_t heads, int64_t salt, int64_t field, environments, numbers):
    """Set one of the four numbers, (n,) int64, of some environments, (n,) int64, each with one aligned store."""
    cdef int64_t* which = int64s(environments)
    cdef int64_t* values = int64s(numbers)
    cdef int64_t n = length(environments), i
    if length(numbers) != n:
        raise ValueError(f"expected {n} numbers, found {length(numbers)}")
    for i in range(n):
        if not 0 <= values[i] <= <int64_t>HEAD_NUMBER_:
            raise ValueError(f"expected numbers of 40 bits, found {values[i]}")
    with nogil:
        for i in range(n):
            set_head(<int64_t*>heads, salt, which[i], field, values[i])


def read_heads(uintptr_t heads, int64_t salt, int64_t field, numbers):
    """Read one of the four numbers of all environments into an array, (environments,) int64; -1 where a word does not verify."""
    cdef int64_t* values = int64s(numbers)
    cdef int64_t n = length(numbers), i, word
    with nogil:
        for i in range(n):
            word = load_acquire(<int64_t*>heads + HEAD_WORDS_ * i + field)
            values[i] = word & <int64_t>HEAD_NUMBER_ if is_head_word(salt, i, field, word) else -1


cdef Entry* entry_at(const int64_t* files, int64_t n_files, int64_t first_file, int64_t segment) except NULL:
    """Return where a segment's entry is, in the files of the table that are mapped, from a first one on."""
    cdef int64_t file = segment // FILE_ENTRIES - first_file
    if segment < 0 or not 0 <= file < n_files or files[file] == 0:
        raise IndexError(f"the file of the segment table that has segment {segment} is not mapped")
    return <Entry*>files[file] + segment % FILE_ENTRIES


def begin_entries(files, int64_t first_file, int64_t salt, segments, values):
    """Begin the entries of segments, (n,) int64, with the first four words of each, (n, 4) int64.

    `files`, (m,) int64, has the addresses of consecutive files of the table, 0 where one is not mapped: then it is an IndexError, and
    nothing is written.
    """
    cdef int64_t* which = int64s(segments)
    cdef int64_t* words = int64s(values, 2)
    cdef int64_t* at = int64s(files)
    cdef int64_t n = length(segments), n_files = length(files), i
    cdef Entry entry
    if length(values) != n or length(values, 1) != 4:
        raise ValueError(f"expected values of shape ({n}, 4), found {values.shape}")
    for i in range(n):
        entry_at(at, n_files, first_file, which[i])
    for i in range(n):
        entry.environment, entry.first, entry.episode = words[4 * i], words[4 * i + 1], words[4 * i + 2]
        entry.steps_before = words[4 * i + 3]
        begin_entry(entry_at(at, n_files, first_file, which[i]), entry, salt, which[i])


def complete_entries(files, int64_t first_file, int64_t salt, segments, ends, steps):
    """Complete the entries of segments, (n,) int64, with where their rows end and the steps of the store by then, (n,) int64 each."""
    cdef int64_t* which = int64s(segments)
    cdef int64_t* to = int64s(ends)
    cdef int64_t* by = int64s(steps)
    cdef int64_t* at = int64s(files)
    cdef int64_t n = length(segments), n_files = length(files), i
    if length(ends) != n or length(steps) != n:
        raise ValueError(f"expected {n} ends and steps, found {length(ends)} and {length(steps)}")
    for i in range(n):
        entry_at(at, n_files, first_file, which[i])
    for i in range(n):
        complete_entry(entry_at(at, n_files, first_file, which[i]), to[i], by[i], salt, which[i])


def empty_entries(files, int64_t first_file, segments):
    """Have the entries of segments, (n,) int64, not count."""
    cdef int64_t* which = int64s(segments)
    cdef int64_t* at = int64s(files)
    cdef int64_t n = length(segments), n_files = length(files), i
    for i in range(n):
        entry_at(at, n_files, first_file, which[i])
    for i in range(n):
        empty_entry(entry_at(at, n_files, first_file, which[i]))


def read_entries(uintptr_t file, int64_t salt, int64_t first_segment, entries, states):
    """Copy consecutive entries at an address into an array, (n, 8) int64, and their states, (n,) uint8."""
    cdef Entry* copies = <Entry*>int64s(entries, 2)
    cdef uint8_t* found = uint8s(states)
    cdef int64_t n = length(entries), i
    if length(entries, 1) != 8 or length(states) != n:
        raise ValueError(f"expected entries of shape ({length(states)}, 8), found {entries.shape}")
    with nogil:
        for i in range(n):
            copies[i] = copy_entry(<const Entry*>file + i)
            found[i] = state_of(copies[i], salt, first_segment + i)
