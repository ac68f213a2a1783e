"""From a store's files to the index: what happens after a kill is that this is read again.

Only the segment table and one flag a row are read: where episodes end. All else follows. Two more are looked at where an episode
of no step is: whether it is a row of a stack prefix.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, EvictedError
from diskbuffer.index.streams import NO_PREFIXES, Streams
from diskbuffer.store.following import MOVING_SECONDS
from diskbuffer.store.recovery.going_back import before_unknown
from diskbuffer.store.store import Kept, Store

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
S = TypeVar("S", bound=Streams)
T = TypeVar("T")

# Of a reader whose view is torn by a writer that evicts, seals and opens segments at the same time.
_TRIES = 200


def read_index(store: Store, context: int, kind: type[S]) -> S:
    """Build the index of a store, of a `kind`, such as `Index`. About 1 ms for 100,000 steps."""
    if store.writable:
        return build_index(store, store.segments(), context, kind)
    return untorn(store, lambda segments: build_index(store, segments, context, kind))


def untorn(store: Store, read: Callable[[Kept], T]) -> T:
    """Return what is read of a store, by its segments; anew while a writer elsewhere moves them meanwhile."""
    begun, tries = time.monotonic(), 0
    while tries < 3 or (tries < _TRIES and time.monotonic() - begun < MOVING_SECONDS):
        tries += 1
        store.reread()
        try:
            segments = store.segments()
            result = read(segments)
        except (CorruptionError, EvictedError) as error:
            torn: Exception = error
            continue
        slots = np.concatenate([slots for slots, _ in segments])
        if store.following.unchanged(slots):  # or a map of a slot's last rows would serve for the rows that are in it now
            return result
        torn = EvictedError(f"{store.root}: segments come and go faster than the table can be read")
    raise torn


def build_index(store: Store, segments: Kept, context: int, kind: type[S]) -> S:
    """Build the index of a store's segments, by all of their rows."""
    index = kind(store.layout.streams, store.layout.segment_rows, context)
    rows = index.segment_rows
    for stream, (slots, lengths) in enumerate(segments):
        if not len(slots):
            continue
        oldest = int(slots[0])
        first = store.table.get("first_row", oldest)
        steps_before, episode_start = store.table.before(oldest) or before_unknown(store, oldest)
        if first > 0 and store.table.before(oldest) is None and store.kept is None:
            raise CorruptionError(
                f"{store.root}: how many steps came before slot {oldest} is not known; the segment table is damaged. "
                "`diskbuffer check --repair` counts from there on"
            )
        starts = [np.array([min(first, max(0, episode_start))], np.int64)]
        prefixes = [NO_PREFIXES]
        head, last = -1, 1  # what came before the oldest row may have been the last of an episode
        for n, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
            if not 0 < length <= rows or (length < rows and n < len(slots) - 1):
                raise CorruptionError(f"{store.root}: slot {slot} was emptied while it was read")
            flags = store.verification.flags("is_last", slot, length)
            starts.append(first + n * rows + np.flatnonzero(flags) + 1)
            empty = flags & np.append(bool(last), flags[:-1])  # an episode of one row
            if empty.any():
                prefixes.append(_prefix_rows(store, slot, empty, first + n * rows))
            head, last = first + n * rows + length - 1, int(flags[-1])
        begins = np.concatenate(starts)
        ended = store.kept is not None or bool(last)
        index.restore(
            stream, slots, begins[begins <= head], head, ended, steps_before, stack_prefixes(np.concatenate(prefixes), head)
        )
    return index


def _prefix_rows(store: Store, slot: int, empty: Bools, first: int) -> Int64:
    """Return those of a slot's rows that are of stack prefixes, and whether one begins with each, (n, 2)."""
    truncated, terminated = (store.verification.flags(path, slot, len(empty)) for path in ("truncated", "terminated"))
    rows = np.flatnonzero(empty & truncated)
    return np.stack([first + rows, terminated[rows]], axis=1)


def stack_prefixes(rows: Int64, head: int) -> Int64:
    """Return the stack prefixes of rows, as `Index.add_prefixes` takes them; where the first is gone, it was the row before."""
    at, begins = rows[:, 0], rows[:, 1] != 0
    apart = np.flatnonzero(np.append(True, (np.diff(at) != 1) | begins[1:])) if len(at) else np.empty(0, np.int64)
    firsts, ends = at[apart], at[np.append(apart[1:] - 1, len(at) - 1)] + 1 if len(at) else at
    firsts -= (firsts > 0) & ~begins[apart]
    return np.stack([ends, firsts], axis=1)[ends <= head]
