"""Streams and episodes, in RAM: where episodes start, and the low-water mark. Nothing per row, no file, no learning.

A stream is a log of rows; a row's place in it, its *position*, never changes. An episode of T steps has T + 1 rows, and every
row but an episode's last is a step. So the number of steps before position p is ``p - n``, n being how many episodes ended
before it, and the other way round, the position of a step is one binary search over the episodes' starts. Adding appends
and moves a mark; nothing is ever rebuilt.

The newest row of a stream, its head, is never a step yet: it is the observation that the next step will start from, or the
last one of an episode.

Where recording began in the middle of an episode, the earlier frames of its first stack have rows of their own before its first
row, its *lead-in*. Each of these is an episode of one row, so no step; stacks of the episode reach back into them.

Calls cost what they change or look up, however many streams there are, but for those whose docstrings say otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.index.fields import ENDED, FLOOR, HEAD
from diskbuffer.native.index import NativeIndex

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NO_LEADS = np.empty((0, 2), np.int64)


class Of(NamedTuple):
    """Values of streams, one after the other, each stream's in ascending order: (n,) both, of lead-ins (n, 2)."""

    streams: Int64
    values: Int64

    @staticmethod
    def joined(parts: list[tuple[int, Int64]], nothing: Int64) -> Of:
        """Put the values of several streams one after the other; `nothing` has their shape."""
        streams = np.repeat(np.array([stream for stream, _ in parts], np.int64), [len(values) for _, values in parts])
        return Of(streams, np.concatenate([nothing, *(values for _, values in parts)]))


class Rows(NamedTuple):
    """What there is of some streams, or has come since: the newest rows, segments, episodes and lead-ins."""

    streams: Int64
    heads: Int64
    ended: Bools
    firsts: Of  # of segments
    numbers: Int64
    starts: Of  # of episodes; a stream's first may lie before its oldest row
    leads: Of


class Index(NativeIndex):
    """Know where every step lies: the streams, and looking steps and episodes up in them, natively.

    Attributes
    ----------
    environments : (n,) int64
        Which streams are of environments; others hold protected episodes.
    """

    def __init__(self, streams: int, segment_rows: int, context: int, lanes: int = 1) -> None:  # noqa: ARG002  they go to __cinit__
        self.environments = np.arange(streams)

    # Writing

    def restore(self, rows: Rows, first_steps: Of) -> None:
        """Note what was read of streams; those that were empty had so many steps before their oldest rows, (n,)."""
        self.add_segments(rows.firsts.streams, rows.firsts.values, rows.numbers)
        self.set_first_steps(*first_steps)
        self._add(rows, np.zeros(len(rows.streams), np.int64))

    def go_on(self, rows: Rows, evicted: Int64) -> None:
        """Note what came since streams were set, and that so many of their segments, (n,), were evicted."""
        self.add_segments(rows.firsts.streams, rows.firsts.values, rows.numbers)
        self._add(rows, evicted)

    def _add(self, rows: Rows, evicted: Int64) -> None:
        self.start_episodes(*rows.starts)
        self.add_leads(*rows.leads)
        self.advance(rows.streams, rows.heads, rows.ended)
        self.drop_segments(rows.streams, evicted)

    def add_slot(self, stream: int, slot: int) -> None:
        """Note which slot a stream's next segment has, where all before are full."""
        segments = self.segments(stream)
        first = segments[-1, 0] + self.segment_rows if len(segments) else self.heads[stream] + 1
        self.add_segments(stream, np.array([first]), np.array([slot]))

    def drop_segment(self, stream: int) -> int:
        """Forget the oldest segment of a stream; return its number."""
        return int(self.drop_segments(stream, np.ones(1, np.int64))[0])

    # Reading

    @property
    def heads(self) -> Int64:
        """The newest position of each stream, -1 where it is empty."""
        return self.table[:, HEAD]

    def first_step(self, stream: int) -> int:
        """Count the steps that a stream ever had before those that can be sampled."""
        return self.steps_before(stream, int(self.table[stream, FLOOR])) if self.table[stream, HEAD] >= 0 else 0

    def added(self, streams: int | None = None) -> int:
        """Count all steps ever added, in all streams, or in the first so many. O(streams)."""
        return int(self.added_each()[:streams].sum())

    def episode_of(self, stream: int, position: int) -> int:
        """Return where the episode that a position lies in starts."""
        return int(self.episode_starts(stream, np.array([position]))[0])

    def segment_of(self, stream: int, position: int) -> tuple[int, int, int]:
        """Return the number of the segment that a row of a stream is in, its first position, and that of the next segment.

        Of the newest segment, that is as far as it can reach.
        """
        firsts, numbers = self.segments(stream).T
        at = int(np.searchsorted(firsts, position, "right")) - 1
        until = int(firsts[at + 1]) if at + 1 < len(firsts) else int(firsts[at]) + self.segment_rows
        return int(numbers[at]), int(firsts[at]), until

    def sampled_episodes(self) -> Int64:
        """Return the episodes of which a step can be sampled, as `locate_episodes` does. O(episodes).

        There are others, of one row: those of lead-ins, one that has just begun, and rows that a repair dropped.
        """
        every = self.locate_episodes(np.arange(self.episodes))
        return every[:, every[3] > every[1]]

    def is_running(self, streams: Int64, lasts: Int64) -> Bools:
        """Return whether episodes that end with a row, as far as they go, are not over."""
        return np.asarray((lasts == self.table[streams, HEAD]) & (self.table[streams, ENDED] == 0))
