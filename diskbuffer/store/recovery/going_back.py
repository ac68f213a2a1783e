"""Going back to the last flush after a power loss: what came later is dropped, and an episode that ran is cut off."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store.recovery.resume_writing import file_size, make_writable, writable_rows
from diskbuffer.store.segments.shard import LiveShard, with_rows
from diskbuffer.store.segments.table import NEVER, UNCHECKED
from diskbuffer.store.store import Kept, Store
from diskbuffer.store.tail_copy import StoredTail, Unpacked

Bytes = npt.NDArray[np.uint8]


def go_back(store: Store, visible: Kept) -> None:
    """Leave in a store the rows that are visible, and no others. What was synced stays as it is, should this be repeated."""
    drop_other_rows(store, visible)
    for slots, lengths in visible:
        if len(slots):
            make_writable(store, slots, int(lengths[-1]), over=True)


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
        table.set_length(int(slots[-1]), int(lengths[-1]), no_reset=True)  # the environment is another one by now
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
        return
    if expected != UNCHECKED:
        try:
            store.verification.verify_file(path, slot)
        except CorruptionError:
            expected = NEVER
    if expected in (NEVER, UNCHECKED):
        store.table.set_checksum(path, slot, UNCHECKED)
        store.durability.written.add((path, slot))  # the next close notes what it is


# Rows that the last flush copied of the tail come from there, whatever the shards, and the tail, have of them by now.


def put_back_tail(store: Store, visible: Kept, *, lost_power: bool) -> None:
    """Put the rows that the last flush copied of the tail back there; after a power loss, shards have them no longer."""
    parts = _copied(store)
    for path, stream, first, rows in parts:
        store.tail(path)[stream, np.arange(first, first + len(rows)) % store.layout.tail_rows] = rows
    for slot, path, chunk, _ in _shards_behind(store, visible, parts) if lost_power else ():
        LiveShard(store.files, store.layout, path, slot, store.table.identity(slot), create=False).forget(chunk)


def show_tail(store: Store, visible: Kept) -> None:
    """Have a reader, which cannot change anything, find those rows in shards, in memory."""
    for slot, path, chunk, rows in _shards_behind(store, visible, _copied(store)):
        shard = store.files.map(store.layout.data_file(path, slot), -1, writable=False)
        store.show(path, slot, with_rows(store.layout, path, shard, chunk, rows))


def _copied(store: Store) -> list[Unpacked]:
    state, layout = store.durability.state, store.layout
    if state is None or state.tail is None:
        return []
    copied = StoredTail(store.files, layout, state.tail)
    return [part for stream in range(layout.streams) for part in copied.of(stream)]


def _shards_behind(store: Store, visible: Kept, parts: list[Unpacked]) -> Iterator[tuple[int, str, int, Bytes]]:
    """Yield live shards to which copied rows belong: slot, column, the first chunk of these, and the rows from there on."""
    size = store.layout.segment_rows
    for path, stream, first, rows in parts:
        for slot in visible[stream][0][::-1].tolist():
            _, begin = store.table.identity(slot)
            if begin + size <= first:
                break
            is_live = file_size(store, path, slot) == store.layout.live_bytes(path)  # else sealing has synced it
            if is_live and not store.verification.is_sealed(slot):
                chunk = max(0, first - begin) // store.layout.chunk_rows(path)
                yield slot, path, chunk, rows[max(0, begin - first) : begin + size - first]
