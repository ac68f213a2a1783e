"""An index that follows a writer elsewhere: what has come since is read, and nothing else.

As long as no writer has to recover a store from a power loss, or to repair it, rows that are there stay as they are, but for each
stream's newest: an episode may end there later (`Following.history` tells whether that is so). So the rows from the newest known
on are read, and the segment table. Where more than that has happened, everything is read anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.index.fields import ENDED, HEAD, LOW
from diskbuffer.index.index import Index
from diskbuffer.index.streams import NO_PREFIXES, Streams
from diskbuffer.reading.restore_index import build_index, read_index, stack_prefixes, untorn
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.store.format.layout import MOST_FRAMES
from diskbuffer.store.store import Kept, Store

Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
_LOOKS = 8  # at a store, until nothing is given up meanwhile


class Growth(NamedTuple):
    """What has become of a stream, as `Streams.grow` takes it."""

    stream: int
    evicted: int
    slots: Int64
    starts: Int64
    head: int
    ended: bool
    prefixes: Int64


class IndexFollower:
    """Read the index of a store, and keep it up with whoever writes to it; the store's lock must be held.

    Parameters
    ----------
    store : Store
    context : int
        As in `Streams`.
    """

    def __init__(self, store: Store, context: int) -> None:
        self._store, self._context = store, context
        self._index: Index | None = None
        self._history: int | None = None  # that the index is of

    def read(self) -> Index:
        """Return the index as it is by now: the same object, where rows were added and evicted, and else another one.

        Costs 0.5 ms, some 30 us for each stream, and what is new.
        """
        if self._store.writable:  # whoever writes keeps it up, and has to look at what does not count first
            return read_index(self._store, self._context, Index)
        for _ in range(_LOOKS):
            before, (index, begins) = self._store.begins, self._look()
            if (begins == before).all():
                break  # else steps were given up for others, which are missing
        return index

    def _look(self) -> tuple[Index, Int64]:
        """Return the index, and from which positions on the rows of each stream count in it."""
        update = untorn(self._store, self._find)
        self._history = None  # until all is noted
        with Uninterrupted():
            index = update if isinstance(update, Index) else self._index
            assert index is not None
            for growth in update if isinstance(update, list) else ():
                index.grow(*growth)
            begins = self._store.begins  # after the lengths, or what came after a clear would count beside what went
            index.begin_at(begins)
            self._index, self._history = index, self._store.following.history
        return index, begins

    def _find(self, segments: Kept) -> Index | list[Growth]:
        if self._index is not None and self._history == self._store.following.history:
            growths = find_growth(self._store, self._index, segments)
            if growths is not None:
                return growths
        return build_index(self._store, segments, self._context, Index)


def find_growth(store: Store, index: Streams, segments: Kept) -> list[Growth] | None:
    """Return what has become of the streams that have changed; None where that is not just more rows, and fewer old ones."""
    if store.kept is not None:
        return []  # as it was left: nobody has written since
    growths = []
    for stream, (slots, lengths) in enumerate(segments):
        known = index.slots(stream)
        if not len(known) and not len(slots):
            continue
        if not len(known) or not len(slots):
            return None
        low = store.table.get("first_row", int(slots[0]))
        evicted = (low - int(index.table[stream, LOW])) // index.segment_rows
        if evicted < 0 or not len(known[evicted:]) or not np.array_equal(known[evicted:], slots[: len(known) - evicted]):
            return None
        growth = _growth(store, index, stream, evicted, low, slots, lengths)
        if growth.head < index.table[stream, HEAD]:
            return None
        is_same = growth.head == index.table[stream, HEAD] and growth.ended == index.table[stream, ENDED]
        if evicted or not is_same or len(growth.prefixes):
            growths.append(growth)
    return growths


def _growth(store: Store, index: Streams, stream: int, evicted: int, low: int, slots: Int64, lengths: Int64) -> Growth:
    """Read a stream's rows from the newest known on, and before it those of a stack prefix whose episode was to come."""
    rows, newest = index.segment_rows, int(index.table[stream, HEAD])
    if not 0 < lengths[-1] <= rows or (lengths[:-1] != rows).any():
        raise CorruptionError(f"{store.root}: a slot of stream {stream} was emptied while it was read")
    end = low + (len(slots) - 1) * rows + int(lengths[-1])
    begin = max(low, _first_of_stack_prefix(index.starts(stream), newest))
    flags = _flags(store, "is_last", slots, low, begin, end)
    starts = begin + 1 + np.flatnonzero(flags[:-1])
    prefixes, empty = NO_PREFIXES, flags & np.append(True, flags[:-1])  # an episode of one row
    if empty.any():
        truncated, terminated = (_flags(store, path, slots, low, begin, end) for path in ("truncated", "terminated"))
        of_prefixes = np.flatnonzero(empty & truncated)
        prefixes = stack_prefixes(np.stack([begin + of_prefixes, terminated[of_prefixes]], axis=1), end - 1)
        prefixes = prefixes[prefixes[:, 0] > index.newest_prefix(stream)]
    more = slots[len(index.slots(stream)) - evicted :]
    return Growth(stream, evicted, more, starts[starts > newest], end - 1, bool(flags[-1:].any()), prefixes)


def _first_of_stack_prefix(starts: Int64, newest: int) -> int:
    """Return the first of the rows up to the newest that may be a stack prefix's: episodes of one row, one after the other."""
    if starts[-1] != newest:
        return newest
    some = starts[-MOST_FRAMES:]
    return newest - max(0, int((some == np.arange(newest + 1 - len(some), newest + 1)).sum()) - 1)


def _flags(store: Store, path: str, slots: Int64, low: int, begin: int, end: int) -> Bools:
    """Return a flag of a stream's rows, whose oldest is `low`, from `begin` to before `end`; from maps that are kept."""
    rows, flags = store.layout.segment_rows, []
    for n in range((begin - low) // rows, -((low - end) // rows)):
        first = low + n * rows
        flags.append(store.values(path, int(slots[n]))[max(0, begin - first) : end - first])
    return np.concatenate(flags) if flags else np.zeros(0, np.bool_)
