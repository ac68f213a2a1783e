"""Streams and episodes, in RAM: where episodes start, and the low-water mark. Nothing per row, no file, no learning.

A stream is a log of rows; a row's place in it, its *position*, never changes. An episode of T steps has T + 1 rows, and every
row but an episode's last is a step. So the number of steps before position p is ``p - n``, n being how many episodes ended
before it, and the other way round, the position of a step is one binary search over the episodes' starts. Adding appends
and moves a mark; nothing is ever rebuilt.

The newest row of a stream, its head, is never a step yet: it is the observation that the next step will start from, or the
last one of an episode.

Where recording began in the middle of an episode, the earlier frames of its first stack have rows of their own before its first
row, its *stack prefix*. Each of these is an episode of one row, so no step; stacks of the episode reach back into them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.index.fields import (
    ENDED,
    EPISODES,
    FIELDS,
    FLOOR,
    HEAD,
    LOW,
    PREFIX_PLACES,
    PREFIXES,
    ROOM,
    SEGMENTS,
    SLOTS,
    STARTS,
    STORE_STREAM,
)
from diskbuffer.index.growing_array import GrowingArray

Int64 = npt.NDArray[np.int64]

NO_PREFIXES = np.empty((0, 2), np.int64)


class Streams:
    """Know which rows there are, and which of them are steps.

    Parameters
    ----------
    streams : int
    segment_rows : int
        Rows of a segment; a stream's positions are cut at its multiples.
    context : int
        Rows before a step that are needed to sample it: the frames of its stack but one.

    Attributes
    ----------
    environments : (n,) int64
        The streams that there are: all of them, but in `MultiWriterIndex`, which has room for more.
    """

    def __init__(self, streams: int, segment_rows: int, context: int) -> None:
        self.segment_rows = segment_rows
        self.context = context
        self.environments = np.arange(streams)
        self.table = np.zeros((streams, FIELDS), np.int64)
        self.table[:, HEAD], self.table[:, STORE_STREAM] = -1, np.arange(streams)
        self._starts = [GrowingArray() for _ in range(streams)]  # from that of the oldest row on; those of `table` are the last
        self._slots = [GrowingArray() for _ in range(streams)]
        self._prefixes = [GrowingArray() for _ in range(streams)]
        self.losses = np.zeros(1, np.int64)  # how often segments or steps were dropped
        self.begins = np.zeros(streams, np.int64)
        self._steps_offset = np.zeros(streams, np.int64)  # steps before a position, less what its place in `starts` tells
        for stream in range(streams):
            self._note(stream)
            self._note_starts(stream)

    def _starts_of(self, stream: int) -> GrowingArray:
        """Return where the episodes of a stream start, from that of the oldest row on; native code adds some at the end."""
        starts, row = self._starts[stream], self.table[stream]
        starts.end_at(int(row[STARTS] + 8 * row[EPISODES]))
        return starts

    def _note(self, stream: int) -> None:
        row, slots, prefixes = self.table[stream], self._slots[stream], self._prefixes[stream]
        row[SEGMENTS], row[SLOTS] = len(slots), slots.address
        row[PREFIXES], row[PREFIX_PLACES] = len(prefixes) // 2, prefixes.address

    def _note_starts(self, stream: int) -> None:
        row, starts = self.table[stream], self._starts[stream]
        row[STARTS], row[ROOM] = starts.address + 8 * (len(starts) - int(row[EPISODES])), starts.room

    def restore(
        self, stream: int, slots: Int64, starts: Int64, head: int, ended: bool, first_step: int, prefixes: Int64 = NO_PREFIXES
    ) -> None:
        """Set a stream as read from disk: its slots in order, the starts of its episodes, its stack prefixes, the newest row.

        The first start may lie before the oldest row. `first_step` is how many steps there were before that. `prefixes` are as in
        `add_prefixes`, (n, 2).
        """
        low = self.segment_rows * (head // self.segment_rows - len(slots) + 1) if len(slots) else 0
        self._slots[stream], self._starts[stream], self._prefixes[stream] = (
            GrowingArray(slots),
            GrowingArray(starts),
            GrowingArray(prefixes.ravel()),
        )
        self.table[stream, [HEAD, ENDED, LOW, FLOOR, EPISODES]] = head, ended, low, 0, len(starts)
        self._steps_offset[stream] = first_step - low
        self._note_starts(stream)
        self._raise_floor(stream)

    def grow(
        self, stream: int, evicted: int, slots: Int64, starts: Int64, head: int, ended: bool, prefixes: Int64 = NO_PREFIXES
    ) -> None:
        """Note what came since a stream was set: so many of its segments were evicted, and all else is added as in `restore`."""
        self._slots[stream].extend(slots)
        self._slots[stream].drop(evicted)
        self._prefixes[stream].extend(prefixes.ravel())
        self.table[stream, [HEAD, ENDED]] = head, ended
        self.table[stream, LOW] += evicted * self.segment_rows
        self.losses += evicted
        self.start_episodes(stream, starts)
        self._raise_floor(stream)

    def newest_prefix(self, stream: int) -> int:
        """Return the first row of the newest episode with a stack prefix, -1 where there is none."""
        prefixes = self._prefixes[stream]
        return int(prefixes.values[-2]) if len(prefixes) else -1

    # Writing

    def start_episodes(self, stream: int, positions: Int64) -> None:
        """Note that episodes start at rows, in ascending order."""
        self._starts_of(stream).extend(positions)
        self.table[stream, EPISODES] += len(positions)
        self._note_starts(stream)
        if len(positions) and positions[0] <= self.table[stream, FLOOR]:
            self._raise_floor(stream)

    def add_prefixes(self, stream: int, prefixes: Int64) -> None:
        """Note stack prefixes, (n, 2): the first row of the episode, and of its prefix. All of these rows start episodes, too."""
        self._prefixes[stream].extend(prefixes.ravel())
        self._note(stream)

    def add_slot(self, stream: int, slot: int) -> None:
        """Note in which slot a stream's next segment lies."""
        self._slots[stream].extend(np.array([slot], np.int64))
        self._note(stream)

    def drop_segment(self, stream: int) -> int:
        """Forget the oldest segment of a stream; return its slot."""
        slot = int(self._slots[stream].values[0])
        self._slots[stream].drop(1)
        self.losses += 1
        self.table[stream, LOW] += self.segment_rows
        self._raise_floor(stream)
        return slot

    def begin_at(self, positions: Int64) -> None:
        """Exclude rows before a position of each stream, (streams,): those of whole episodes; all of what there is at most."""
        positions = np.minimum(positions, self.table[:, HEAD] + 1)
        raised = positions > self.begins
        self.begins[raised] = positions[raised]
        self.losses += raised.any()  # batches that were drawn before may have steps that are gone
        table, emptied = self.table, raised & (positions > self.table[:, HEAD])
        table[emptied, FLOOR] = np.maximum(table[emptied, FLOOR], positions[emptied])
        table[emptied, STARTS] += 8 * (table[emptied, EPISODES] - 1)
        table[emptied, EPISODES] = 1
        for stream in np.flatnonzero(raised & ~emptied).tolist():
            self._raise_floor(stream)

    def _raise_floor(self, stream: int) -> None:
        """Find the oldest step whose context is there, at least the one that was, and leave out the episodes before it."""
        row, starts, prefixes = self.table[stream], self._starts_of(stream), self._prefixes[stream]
        low = int(row[LOW])
        floor = low + self.context
        started = starts.values
        while len(prefixes) and prefixes.values[0] <= low:
            prefixes.drop(2)
        whole = low
        if len(prefixes) and max(int(prefixes.values[1]), int(prefixes.values[0]) - self.context) < low:
            whole = int(prefixes.values[0]) + 1  # its stack prefix is gone in part, and so is its first stack
        first = int(np.searchsorted(started, whole))  # the first episode that is there whole
        if first < len(started):
            floor = min(floor, int(started[first]))
        floor = max(floor, int(self.begins[stream]), int(row[FLOOR]))
        if len(started):
            row[FLOOR], row[EPISODES] = floor, len(started) - max(0, int(np.searchsorted(started, floor, side="right")) - 1)
            gone = max(0, int(np.searchsorted(started, low, side="right")) - 1)
            starts.drop(gone)
            self._steps_offset[stream] -= gone
            self._note_starts(stream)
        self._note(stream)

    # Reading

    @property
    def nbytes(self) -> int:
        """Bytes of RAM that it takes, about."""
        return self.table.nbytes + sum(log.nbytes for log in (*self._starts, *self._slots, *self._prefixes))

    @property
    def heads(self) -> Int64:
        """The newest position of each stream, -1 where it is empty."""
        return self.table[:, HEAD]

    def steps(self) -> Int64:
        """Count the steps to sample, by stream."""
        head, floor, episodes = self.table[:, HEAD], self.table[:, FLOOR], self.table[:, EPISODES]
        return np.asarray(np.maximum(head - floor - np.maximum(episodes - 1, 0), 0))

    def steps_before(self, stream: int, position: int) -> int:
        """Count the steps a stream ever had before a position."""
        started = self._starts_of(stream).values
        ended = max(0, int(np.searchsorted(started, position, side="right")) - 1)
        return position - ended + int(self._steps_offset[stream])

    def first_step(self, stream: int) -> int:
        """Count the steps that a stream ever had before those that can be sampled."""
        return self.steps_before(stream, int(self.table[stream, FLOOR])) if self.table[stream, HEAD] >= 0 else 0

    def added(self) -> int:
        """Count all steps ever added."""
        return sum(map(self.added_to, range(len(self.table))))

    def added_to(self, stream: int) -> int:
        """Count all steps ever added to a stream."""
        head = int(self.table[stream, HEAD])
        return self.steps_before(stream, head) if head >= 0 else 0

    def starts(self, stream: int) -> Int64:
        """Return where the episodes of a stream start; the first may reach behind the oldest row."""
        started = self._starts_of(stream).values
        return started[len(started) - int(self.table[stream, EPISODES]) :]

    def episode_ids(self) -> Int64:
        """Return the ids of all episodes of which a row is there: of the steps that they began with."""
        streams = len(self.table)
        return np.concatenate([self.starts(stream) * streams + stream for stream in range(streams)])

    def first_frame(self, stream: int, position: int) -> int:
        """Return the first row with a frame of a row's episode: of its stack prefix, or the oldest row there is."""
        start = self.episode_of(stream, position)
        prefixes = self._prefixes[stream].values.reshape(-1, 2)
        at = int(np.searchsorted(prefixes[:, 0], start))
        if at < len(prefixes) and prefixes[at, 0] == start:
            start = int(prefixes[at, 1])
        return max(start, int(self.table[stream, LOW]))

    def slots(self, stream: int) -> Int64:
        """Return the slots of a stream's segments, oldest first."""
        return self._slots[stream].values

    def slot(self, stream: int, position: int) -> int:
        """Return the slot of the segment in which a stream's row lies, which must be there."""
        return int(self.slots(stream)[position // self.segment_rows - int(self.table[stream, LOW]) // self.segment_rows])

    def values_at(self, stream: int, positions: Int64, values: Callable[[int], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return what lies at positions of a stream, which ascend, (n, ...). ``values(slot)`` are those of a segment."""
        segments = positions // self.segment_rows - int(self.table[stream, LOW]) // self.segment_rows
        slots, parts = self.slots(stream).tolist(), list[npt.NDArray[Any]]()
        for segment in range(segments[0], segments[-1] + 1):
            here = slice(*np.searchsorted(segments, (segment, segment + 1)).tolist())
            if here.start < here.stop:
                parts.append(values(slots[segment])[positions[here] % self.segment_rows])
        return np.concatenate(parts)

    def episode_of(self, stream: int, position: int) -> int:
        """Return where the episode that a position lies in starts."""
        started = self._starts_of(stream).values
        at = int(np.searchsorted(started, position, side="right")) - 1
        return int(started[at]) if at >= 0 else position

    @property
    def episodes(self) -> int:
        """Count the episodes of which a row is there; a running one may have no step yet."""
        return int(self.table[:, EPISODES].sum())

    def count_episodes(self) -> int:
        """Count the episodes of which a step can be sampled. O(episodes).

        There are others, of one row: those of stack prefixes, one that has just begun, and rows that a repair dropped.
        """
        count = 0
        for stream in range(len(self.table)):
            starts = np.maximum(self.starts(stream), self.table[stream, FLOOR])
            lasts = np.append(starts[1:] - 1, self.table[stream, HEAD])
            count += int((lasts[: len(starts)] > starts).sum())
        return count
