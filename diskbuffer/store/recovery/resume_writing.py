"""Making a store that was not closed one that can be written to again, at each stream's newest row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from diskbuffer.schema.schema import CHECKSUM
from diskbuffer.store.format.checksums import NOT_YET, STEP, covered, row_checksums
from diskbuffer.store.recovery.inspection import Inspected, is_mixed
from diskbuffer.store.segments.shard import index_of, write_live
from diskbuffer.store.segments.table import UNCHECKED
from diskbuffer.store.store import Store

Int64 = npt.NDArray[np.int64]


def open_ends(store: Store) -> dict[int, bool]:
    """Find streams of whose newest rows it is not known what was done there, and whether an episode ends with them.

    For a reader; a writer decides it, with `undo_newest`.
    """
    return {stream: _is_over(store, slots, length) for stream, slots, length in _undecided(store)}


def _undecided(store: Store) -> Iterator[tuple[int, Int64, int]]:
    """Yield such streams, their slots, and how many rows the newest of these has."""
    for stream, (slots, lengths) in enumerate(store.segments()):
        if len(slots) and not store.verification.is_sealed(int(slots[-1])):
            segment = Inspected(store, int(slots[-1]), int(lengths[-1]), decode=is_mixed(store.layout))
            if not segment.verified(STEP, newest=True)[-1]:
                yield stream, slots, segment.length


def make_writable(store: Store, slots: Int64, length: int) -> None:
    """Make the segment with a stream's newest row one that can be written to; nothing was done at that row yet."""
    slot, layout = int(slots[-1]), store.layout
    rows = store.table.identity(slot)
    decided = bool(Inspected(store, slot, length, decode=True).verified(STEP, newest=True)[-1])
    for path in layout.packed:
        if file_size(store, path, slot) != layout.live_bytes(path):
            _make_live(store, path, slot, rows)
    if store.verification.is_sealed(slot):  # other links to its files may be somebody's snapshot
        for path in layout.flat:
            _copy(store, path, slot)
        store.table.unseal(slot)
    if not decided:
        _undo(store, slots, length)


def undo_newest(store: Store) -> None:
    """Write that nothing was done at each stream's newest row, where a kill came in between."""
    for _, slots, length in _undecided(store):
        _undo(store, slots, length)


def _undo(store: Store, slots: Int64, length: int) -> None:
    slot, layout = int(slots[-1]), store.layout
    rows, nothing, over = store.table.identity(slot), {}, _is_over(store, slots, length)
    for path in covered(layout.schema, STEP):
        column = layout.schema[path]
        nothing[path] = np.zeros((1, *column.shape), column.np_dtype)
        if path in layout.chunks_of:
            store.tail(path)[rows[0], (rows[1] + length - 1) % layout.tail_rows] = 0
        else:
            nothing[path][...] = path == "is_last" and over
            writable_rows(store, path, slot)[length - 1] = nothing[path].reshape(-1).view(np.uint8)
    word = row_checksums(layout.schema, layout.salt, rows[0], rows[1] + length - 1, 1, nothing, STEP)
    writable_rows(store, CHECKSUM, slot).view(np.uint32)[length - 1, STEP] = word[0] ^ (0 if over else NOT_YET)


def _is_over(store: Store, slots: Int64, length: int) -> bool:
    """Return whether an episode ends with a stream's newest row, by what was done at the row before."""
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
