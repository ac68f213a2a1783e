"""Save the rows that only a damaged copy of the tail was to have: from the tail, and from shards that have them by now."""

from __future__ import annotations

import contextlib

import numpy as np

from diskbuffer.errors import CorruptionError
from diskbuffer.store.inspection import Inspected
from diskbuffer.store.recovery.resume_writing import make_writable
from diskbuffer.store.segments.shard import LiveShard
from diskbuffer.store.store import Kept, Store


def save_tail(store: Store, visible: Kept) -> None:
    """Put the rows of each stream's newest chunk into the tail, where a shard has them, and have it not have them.

    Whether they are what was written is found out by who looks at rows next.
    """
    layout = store.layout
    for stream, (slots, lengths) in enumerate(visible):
        for slot, length in zip(slots[-1:].tolist(), lengths[-1:].tolist(), strict=True):
            with contextlib.suppress(CorruptionError):  # then files are damaged, too
                segment = Inspected(store, slot, length, decode=True)
                make_writable(store, slots, length)
                for path in layout.packed:
                    chunk = (length - 1) // layout.chunk_rows(path)
                    at = np.arange(chunk * layout.chunk_rows(path), length)
                    rows = segment.rows(path, int(at[0]), len(at)).copy()
                    store.tail(path)[stream, (segment.first + at) % layout.tail_rows] = rows
                    LiveShard(store.files, layout, path, slot, store.table.identity(slot), create=False).forget(chunk)
