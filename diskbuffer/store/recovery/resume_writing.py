"""Making a store that was not closed one that can be written to again, at each stream's newest row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.store.format.checksums import settle_row
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.segments.shard import index_of, write_live
from diskbuffer.store.store import Kept, Store

Int64 = npt.NDArray[np.int64]


def make_writable(store: Store, slots: Int64, length: int, *, over: bool = False) -> None:
    """Make the segment with a stream's newest row one that can be written to; nothing was done at that row yet.

    `over` tells that an episode ends there, whatever its flag says.
    """
    slot, layout = int(slots[-1]), store.layout
    if store.verification.is_sealed(slot):
        store.table.unseal(slot)
        for name in store.table.names(f"{SEGMENTS}/sealed"):  # before anything is changed that its checksums are of
            store.files.sync(name)
    for path in layout.packed:
        if file_size(store, path, slot) != layout.live_bytes(path):
            _make_live(store, path, slot, store.table.identity(slot))
    for path in layout.flat:
        if store.files.stat(layout.data_file(path, slot)).st_nlink > 1:  # they are somebody's snapshot, too
            _copy(store, path, slot)
    if over:
        writable_rows(store, "is_last", slot)[length - 1] = True
    _settle(store, slot, length)


def settle_newest(store: Store, segments: Kept) -> None:
    """Leave nothing of what a writer that was killed had begun to do at each stream's newest row."""
    for slots, lengths in segments:
        if len(slots):
            _settle(store, int(slots[-1]), int(lengths[-1]))


def _settle(store: Store, slot: int, length: int) -> None:
    layout, (stream, first) = store.layout, store.table.identity(slot)
    position = first + length - 1

    def row(path: str) -> npt.NDArray[np.uint8]:
        if path in layout.chunks_of:
            in_tail: npt.NDArray[np.uint8] = store.tail(path)[stream, position % layout.tail_rows]
            return in_tail
        in_segment: npt.NDArray[np.uint8] = writable_rows(store, path, slot)[length - 1]
        return in_segment

    settle_row(layout.schema, layout.salt, stream, position, row)


def _make_live(store: Store, path: str, slot: int, rows: tuple[int, int]) -> None:
    """Make a sealed shard a live one again."""
    layout = store.layout
    sealed = store.files.map(layout.data_file(path, slot), -1, writable=False)
    entries = index_of(sealed, layout.chunks(path)).copy()
    data = sealed.array(np.uint8, (sealed.size,))
    write_live(store.files, layout, path, slot, rows, [data[at : at + size] for at, size in entries.tolist()])


def _copy(store: Store, path: str, slot: int) -> None:
    name, size = store.layout.data_file(path, slot), store.layout.flat_bytes(path)
    old = store.files.map(name, size, writable=False)
    store.files.replace(name, size, old.array(np.uint8, (size,)))
    store.files.sync(path)


def writable_rows(store: Store, path: str, slot: int) -> npt.NDArray[np.uint8]:
    """Map a segment's file of a flat column for writing: (segment_rows, row_bytes)."""
    mapped = store.files.map(store.layout.data_file(path, slot), store.layout.flat_bytes(path), writable=True)
    return mapped.array(np.uint8, (store.layout.segment_rows, -1))


def file_size(store: Store, path: str, slot: int) -> int:
    """Return the bytes of a segment's file, -1 where it is missing."""
    try:
        return store.files.stat(store.layout.data_file(path, slot)).st_size
    except FileNotFoundError:
        return -1
