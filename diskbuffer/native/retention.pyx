"""Which steps a buffer with a capacity keeps; see `retention.hpp`."""

cimport numpy as cnp

from diskbuffer.native.arrays cimport int64s, length

cnp.import_array()


cdef class Retention:
    """Give up the oldest steps of an index.

    Parameters
    ----------
    table : (streams, fields) int64
        Of the index.
    firsts : (streams,) int64
        Where the position of each stream's oldest step is written to when it changes.
    losses : (1,) int64
        Becomes one more whenever steps are given up.
    context, segment_rows : int
        Rows before a step that are needed with it, and those of a segment.
    """

    def __init__(self, table, firsts, losses, int64_t context, int64_t segment_rows):
        cdef Kept kept
        kept.table, kept.streams = <Stream*>int64s(table, 2), length(table)
        if length(table, 1) * sizeof(int64_t) != sizeof(Stream) or firsts.shape != (kept.streams,) or losses.shape != (1,):
            raise TypeError(f"expected a table, and other arrays for it than {table.shape}, {firsts.shape} and {losses.shape}")
        kept.firsts, kept.losses = int64s(firsts), int64s(losses)
        kept.context, kept.segment_rows = context, segment_rows
        self.rule.reset(new Rule(kept))
        self.kept, self.streams = [table, firsts, losses], kept.streams

    def set_capacity(self, capacity, bint each):
        """Keep so many steps, of all streams together, or of each; with None all."""
        self.rule.get().set_capacity(-1 if capacity is None else capacity, each)

    def restore(self, int64_t stream, runs):
        """Say when the steps were added that a stream has, (n, 2) int64: when the first of some was, and how many were, one tick apart."""
        if not 0 <= stream < self.streams:
            raise ValueError(f"expected a stream below {self.streams}, found {stream}")
        if length(runs, 1) != 2:
            raise ValueError(f"expected (n, 2) numbers, found {runs.shape}")
        self.rule.get().restore(stream, int64s(runs, 2), length(runs))

    def set_time(self, int64_t now):
        """Say what time it is: when the next steps are added."""
        self.rule.get().set_time(now)

    def detach(self):
        """Leave the memory of `firsts` to others."""
        self.rule.get().detach()
        self.kept[1] = None

    def recount(self):
        """Count anew what the index has, as steps of it were cleared."""
        self.rule.get().recount()

    def give_up(self):
        """Give up steps until there are no more than the capacity; return whether a segment is not needed any more."""
        return self.rule.get().give_up()
