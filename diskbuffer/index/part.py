"""The streams of one of several stores, which share an index: with numbers of their own, as if there were no others.

Streams of the stores lie behind each other, and the shared index knows segment `s` of store `k` of `n` as ``s * n + k``, which is
how a plan finds its files (`Mapped.tables`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskbuffer.index.fields import OWN, STORE
from diskbuffer.index.index import Index, Of, Rows

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class IndexPart:
    """See `Index`; whatever goes over all streams goes over those of the part.

    Attributes
    ----------
    whole : Index
        Of all stores.
    first, count : int
        The part's streams in it.
    store, stores : int
        Which store, of how many.
    """

    whole: Index
    first: int
    count: int
    store: int
    stores: int

    def __post_init__(self) -> None:
        self.table[:, STORE], self.table[:, OWN] = self.store, np.arange(self.count)

    # What there is

    @property
    def context(self) -> int:
        """Rows before a step that must be kept with it."""
        return self.whole.context

    @property
    def segment_rows(self) -> int:
        """Rows of a segment, the same in all stores."""
        return self.whole.segment_rows

    @property
    def table(self) -> Int64:
        """The part's rows of `Index.table`."""
        return self.whole.table[self._streams]

    @property
    def heads(self) -> Int64:
        """The newest position of each stream, -1 where it is empty."""
        return self.whole.heads[self._streams]

    @property
    def _streams(self) -> slice:
        return slice(self.first, self.first + self.count)

    def __len__(self) -> int:
        return int(self.whole.steps()[self._streams].sum())

    def added(self) -> int:
        """Count all steps ever added. O(streams)."""
        return int(self.added_each().sum())

    def added_each(self) -> Int64:
        """Count the steps ever added to each stream."""
        return self.whole.added_each()[self._streams]

    def steps_up_to(self, streams: Int64, positions: Int64) -> Int64:
        """Count the steps before positions."""
        return self.whole.steps_up_to(streams + self.first, positions)

    def episode_starts(self, streams: Int64, positions: Int64) -> Int64:
        """Return where the episodes that positions lie in start."""
        return self.whole.episode_starts(streams + self.first, positions)

    def rows_of(self, streams: Int64, positions: Int64) -> Int64:
        """Return rows in the store, ``segment * segment_rows + row``."""
        segments, rows = np.divmod(self.whole.rows_of(streams + self.first, positions), self.segment_rows)
        return np.asarray(self._own(segments) * self.segment_rows + rows)

    def newest_segments(self) -> Int64:
        """Return the numbers of the newest segments, -1 where there are none."""
        return self._own(self.whole.newest_segments()[self._streams])

    def segments_from(self, streams: Int64, positions: Int64) -> tuple[Int64, Int64, Int64]:
        """Return the segments that have rows from positions on: streams, first positions, numbers."""
        of, firsts, numbers = self.whole.segments_from(streams + self.first, positions)
        return of - self.first, firsts, self._own(numbers)

    def newest_alone(self) -> Int64:
        """Return the rows from which on each stream has but rows that are episodes."""
        return self.whole.newest_alone()[self._streams]

    def _own(self, numbers: Int64) -> Int64:
        return np.asarray(numbers // self.stores)

    # What comes and goes

    def start_episodes(self, streams: Int64, positions: Int64) -> None:
        """Have episodes start."""
        self.whole.start_episodes(streams + self.first, positions)

    def add_segments(self, streams: Int64, firsts: Int64, numbers: Int64) -> None:
        """Add segments behind those that there are."""
        self.whole.add_segments(streams + self.first, firsts, numbers * self.stores + self.store)

    def add_leads(self, streams: Int64, leads: Int64) -> None:
        """Add the rows before episodes that their stacks reach back into."""
        self.whole.add_leads(streams + self.first, leads)

    def set_first_steps(self, streams: Int64, steps: Int64) -> None:
        """Have streams without episodes count their steps from a number on."""
        self.whole.set_first_steps(streams + self.first, steps)

    def advance(self, streams: Int64, heads: Int64, ended: Bools) -> None:
        """Have newest rows, and whether they end episodes."""
        self.whole.advance(streams + self.first, heads, ended)

    def advanced(self, stream: int | None = None) -> None:
        """Note that heads were written to the table."""
        self.whole.advanced(None if stream is None else self.first + stream)

    def drop_segments(self, streams: Int64, counts: Int64) -> Int64:
        """Forget the oldest segments of streams, so many of each; return their numbers."""
        return self._own(self.whole.drop_segments(streams + self.first, counts))

    def drop_below(self, positions: Int64) -> None:
        """Forget segments that have no row from positions, (count,), on."""
        every = np.zeros(len(self.whole.table), np.int64)
        every[self._streams] = positions
        self.whole.drop_below(every)

    def restore(self, rows: Rows, first_steps: Of) -> None:
        """Note what was read of streams; those that were empty had so many steps before their oldest rows, (n,)."""
        numbers = rows.numbers * self.stores + self.store
        firsts, starts, leads, steps = (self._shifted(each) for each in (rows.firsts, rows.starts, rows.leads, first_steps))
        self.whole.restore(Rows(rows.streams + self.first, rows.heads, rows.ended, firsts, numbers, starts, leads), steps)

    def _shifted(self, of: Of) -> Of:
        return Of(of.streams + self.first, of.values)


Streams = Index | IndexPart  # of one store
