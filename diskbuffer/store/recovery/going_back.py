"""Going back to the last flush after a power loss: what came later is dropped, and an episode that ran is cut off."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np

from diskbuffer.errors import CorruptionError
from diskbuffer.store.recovery.resume_writing import file_size, make_writable, writable_rows
from diskbuffer.store.segments.mapped import InMemory
from diskbuffer.store.segments.shard import EMPTY, LiveShard, decode_chunk, index_of
from diskbuffer.store.segments.table import NEVER, UNCHECKED
from diskbuffer.store.store import Kept, Store
from diskbuffer.store.system.files import Map


def go_back(store: Store, visible: Kept) -> None:
    """Leave in a store the rows that are visible, and no others. What was synced stays as it is, should this be repeated."""
    drop_other_rows(store, visible)
    for slots, lengths in visible:
        if len(slots):
            make_writable(store, slots, int(lengths[-1]), over=True)
            _forget_unsynced_chunks(store, int(slots[-1]), int(lengths[-1]))
    heads = store.heads(visible).tolist()
    begins = tuple(min(begin, head + 1) for begin, head in zip(store.layout.begins, heads, strict=False))
    if begins != store.layout.begins:  # of steps that were cleared and are lost: others come in their place
        store.description.replace(dataclasses.replace(store.layout, begins=begins), store.table.slots)


def drop_other_rows(store: Store, visible: Kept) -> None:
    """Leave in the segment table the rows that are visible, and no others, and in later columns no values of others."""
    table, layout = store.table, store.layout
    keeping = {slot for slots, _ in visible for slot in slots.tolist()}
    for slot in range(table.slots):
        if slot not in keeping:
            table.set_length(slot, 0)
    nonempty = [(slots, lengths) for slots, lengths in visible if len(slots)]
    for slots, lengths in nonempty:
        oldest = int(slots[0])
        first = table.get("first_row", oldest)
        if first > 0 and table.before(oldest) is None:
            table.note_before(oldest, *before_unknown(store, oldest))
        if table.length(int(slots[-1])) != lengths[-1]:
            table.set_length(int(slots[-1]), int(lengths[-1]))
    for slot in keeping:
        for name in table.strange_notes(slot):
            table.forget_note(name, slot)
        for path in layout.derived:
            _keep_derived(store, path, slot)
    for slots, lengths in nonempty:
        for path in layout.derived:
            _forget_derived_behind(store, path, int(slots[-1]), int(lengths[-1]))


def before_unknown(store: Store, slot: int) -> tuple[int, int]:
    """Return how many steps came before a slot's first row, as far as is known, and where its episode may have started.

    Not at that row: frames of a stack may be missing.
    """
    first, steps = (store.table.get(name, slot) for name in ("first_row", "first_step"))
    return (steps if 0 < steps <= first else first), max(0, first - 1)


def _forget_derived_behind(store: Store, path: str, slot: int, length: int) -> None:
    """Zero what was written later for steps that are lost: those that come in their place have none yet."""
    if file_size(store, path, slot) > 0:
        store.table.set_checksum(path, slot, UNCHECKED)
        writable_rows(store, path, slot)[length - 1 :] = 0
        store.durability.written.add((path, slot))


def _keep_derived(store: Store, path: str, slot: int) -> None:
    """Note what is there of a column that was written later: each of its values is whole, an old one or a new one."""
    size, expected = file_size(store, path, slot), store.table.checksum(path, slot)
    if size != store.layout.flat_bytes(path):
        store.files.remove(store.layout.data_file(path, slot))
        store.table.set_checksum(path, slot, NEVER)
    elif expected != UNCHECKED:
        try:
            store.verification.verify_file(path, slot)
        except CorruptionError:
            expected = NEVER
        if expected == NEVER:
            store.table.set_checksum(path, slot, UNCHECKED)


# The newest row's chunk is in the tail alone when rows are synced. It may have been packed since: then its entry may be on the
# disk, and its bytes not. In the tail its rows' places are not used again before the shard is synced.


def _forget_unsynced_chunks(store: Store, slot: int, length: int) -> None:
    layout, rows = store.layout, store.table.identity(slot)
    for path in layout.packed:
        shard = LiveShard(store.files, layout, path, slot, rows, create=False)
        chunk = (length - 1) // layout.chunk_rows(path)
        shard.forget(chunk + _is_whole(store, path, shard.map, chunk))


def hide_unsynced_chunks(store: Store, visible: Kept) -> None:
    """Have a reader, which cannot change anything, find the newest rows in the tail where their chunks are not on the disk."""
    layout = store.layout
    for slots, lengths in visible:
        slot, length = (int(slots[-1]), int(lengths[-1])) if len(slots) else (0, 0)
        for path in layout.packed if length and not store.verification.is_sealed(slot) else ():
            mapped = store.files.map(layout.data_file(path, slot), -1, writable=False)
            chunk = (length - 1) // layout.chunk_rows(path)
            if not _is_whole(store, path, mapped, chunk):
                copied = InMemory(mapped.array(np.uint8, (mapped.size,)).copy())
                index_of(copied, layout.chunks(path))[chunk:] = EMPTY
                store.maps.hold(path, slot, copied)


def _is_whole(store: Store, path: str, shard: Map, chunk: int) -> bool:
    """Return whether a chunk of a live shard is there, all of it."""
    layout, entries = store.layout, index_of(shard, store.layout.chunks(path))
    with contextlib.suppress(CorruptionError):
        decode_chunk(shard, entries, chunk, layout.schema[path], layout.chunk_rows(path))
        return True
    return False
