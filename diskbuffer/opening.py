"""From a store's files to the index: what happens after a kill is that this is read again.

Only the segment table and one flag a row are read: where episodes end. All else follows.
"""

from __future__ import annotations

import time

import numpy as np

from diskbuffer.errors import CorruptionError, EvictedError
from diskbuffer.index import Index
from diskbuffer.store.store import Store

# For a reader whose view is torn by a writer that evicts, seals and opens segments at the same time.
_TRIES, _PATIENCE = 200, 10.0  # seconds


def read_index(store: Store, context: int) -> Index:
    """Build the index of a store. About 1 ms for 100,000 steps."""
    if store.writable:
        return _read_index(store, context)
    begun, tries = time.monotonic(), 0
    while tries < 3 or (tries < _TRIES and time.monotonic() - begun < _PATIENCE):
        tries += 1
        store.reread()
        try:
            index = _read_index(store, context)
        except CorruptionError as error:
            torn: Exception = error
            continue
        slots = np.concatenate([index.slots(stream) for stream in range(store.layout.streams)])
        if store.unchanged(slots):  # or a map of a slot's last rows would serve for the rows that are in it now
            return index
        torn = EvictedError(f"{store.root}: segments come and go faster than the table can be read")
    raise torn


def _read_index(store: Store, context: int) -> Index:
    rows = store.layout.segment_rows
    index = Index(store.layout.streams, rows, context)
    for stream, (slots, lengths) in enumerate(store.segments()):
        if not len(slots):
            continue
        oldest = int(slots[0])
        first = store.table.get("first_row", oldest)
        steps_before, episode_start = store.table.before(oldest) or (0, first)
        if first > 0 and store.table.before(oldest) is None and store.distrusted is None:
            raise CorruptionError(
                f"{store.root}: how many steps came before slot {oldest} is not known; the segment table is damaged. "
                "`diskbuffer check --repair` counts from there on"
            )
        starts = [np.array([min(first, max(0, episode_start))], np.int64)]
        head = last = -1
        for n, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
            if not 0 < length <= rows or (length < rows and n < len(slots) - 1):
                raise CorruptionError(f"{store.root}: slot {slot} was emptied while it was read")
            flags = store.flags("is_last", slot, length)
            starts.append(first + n * rows + np.flatnonzero(flags) + 1)
            head, last = first + n * rows + length - 1, int(flags[-1])
        found = np.concatenate(starts)
        ended = store.unsettled.get(stream, bool(last))
        index.restore(stream, slots, found[found <= head], head, ended, steps_before)
    return index
