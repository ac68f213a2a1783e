"""The rule of a limiter, over the counts at an address that many processes map; see `limiter.hpp`."""

from libc.stdint cimport int64_t, uintptr_t
from libcpp cimport bool as truth

cdef extern from "limiter.hpp" namespace "diskbuffer" nogil:
    struct LimiterCounts:
        pass

    struct Inserts:
        int64_t added, before

    const int64_t MOST_WRITERS "diskbuffer::LimiterCounts::MOST_WRITERS"
    Inserts inserts_ "diskbuffer::inserts"(const LimiterCounts& counts)
    double surplus_ "diskbuffer::surplus"(const LimiterCounts& counts, Inserts inserts)
    truth may_add_ "diskbuffer::may_add"(const LimiterCounts& counts)
    truth may_sample_ "diskbuffer::may_sample"(const LimiterCounts& counts)
    void note_added_ "diskbuffer::note_added"(LimiterCounts& counts, int64_t writer, int64_t added, int64_t now)
    void note_sampled_ "diskbuffer::note_sampled"(LimiterCounts& counts, int64_t samples, int64_t now)


cdef inline LimiterCounts* counts_at(uintptr_t address):
    return <LimiterCounts*>address


def inserts(uintptr_t address):
    """Return how many steps all writers added, ever, and how many of these there were before the limiter."""
    cdef Inserts totals = inserts_(counts_at(address)[0])
    return totals.added, totals.before


def surplus(uintptr_t address):
    """Return how many samples are due; below zero, how many too many there were."""
    return surplus_(counts_at(address)[0], inserts_(counts_at(address)[0]))


def may_add(uintptr_t address):
    """Return whether steps may be added now."""
    return may_add_(counts_at(address)[0])


def may_sample(uintptr_t address):
    """Return whether steps may be sampled now."""
    return may_sample_(counts_at(address)[0])


def note_added(uintptr_t address, int64_t writer, int64_t added, int64_t now):
    """Note how many steps a writer's store has ever had; those that it lost stay counted."""
    if not 0 <= writer < MOST_WRITERS:
        raise ValueError(f"expected the number of a writer, found {writer}")
    note_added_(counts_at(address)[0], writer, added, now)


def note_sampled(uintptr_t address, int64_t samples, int64_t now):
    """Count samples, atomically for all processes."""
    note_sampled_(counts_at(address)[0], samples, now)
