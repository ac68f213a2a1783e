"""Making a store that was not closed one that can be written to again, at each stream's newest row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.store.format.checksums import settle_row
from diskbuffer.store.segments.shard import index_of, write_live
from diskbuffer.store.segments.table import UNCHECKED
from diskbuffer.store.store import Store

Int64 = npt.NDArray[np.int64]


def open_ends(store: Store) -> dict[int, bool]:
    """Return of each stream with rows whether an episode ends with its newest, for a reader of what a power loss left."""
    return {
        stream: _is_over(store, slots, int(lengths[-1])) for stream, (slots, lengths) in enumerate(store.segments()) if len(slots)
    }


def make_writable(store: Store, slots: Int64, length: int) -> None:
    """Make the segment with a stream's newest row one that can be written to; nothing was done at that row yet."""
    slot, layout = int(slots[-1]), store.layout
    over, rows = _is_over(store, slots, length), store.table.identity(slot)
    for path in layout.packed:
        if file_size(store, path, slot) != layout.live_bytes(path):
            _make_live(store, path, slot, rows)
    if store.verification.is_sealed(slot):  # other links to its files may be somebody's snapshot
        for path in layout.flat:
            _copy(store, path, slot)
        store.table.unseal(slot)
    writable_rows(store, "is_last", slot)[length - 1] = over
    _settle(store, slot, length)


def settle_newest(store: Store) -> None:
    """Leave nothing of what a writer that was killed had begun to do at each stream's newest row."""
    for slots, lengths in store.segments():
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


def _is_over(store: Store, slots: Int64, length: int) -> bool:
    """Return whether an episode ends with a stream's newest row, by its flag, or by what was done at the row before."""
    if store.verification.flags("is_last", int(slots[-1]), length)[-1]:
        return True
    slot, row = (slots[-1], length - 2) if length > 1 else (slots[-2:][0], store.layout.segment_rows - 1)
    if length == 1 and len(slots) == 1:
        return False
    if store.verification.flags("is_last", int(slot), row + 1)[row]:
        return False  # no step; the flags of a stack prefix's row tell that it is one
    return any(store.verification.flags(path, int(slot), row + 1)[row] for path in ("terminated", "truncated"))


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


def note_unchecked(store: Store) -> None:
    """Note the checksums of files of derived columns whose writer died before it could."""
    for path in store.layout.derived:
        for slot in np.flatnonzero(store.table.column("length")).tolist():
            if store.table.checksum(path, slot) == UNCHECKED:
                store.note_checksum(path, slot)
