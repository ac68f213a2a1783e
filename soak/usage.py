"""Which bytes of a store mean anything: a check must notice when one of these changes, and of others it cannot.

Unused are entries of the segment table for slots that are free, rows behind a segment's last, holes of live shards, and rows of
the tail that are packed already.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskbuffer.schema.schema import CHECKSUM
from diskbuffer.store import directory
from diskbuffer.store.format.checksums import STEP, TIME, covered
from diskbuffer.store.format.layout import CHECKSUMS, IDENTITY_BYTES, SEGMENTS
from diskbuffer.store.last_writer import State
from diskbuffer.store.opening import open_store
from diskbuffer.store.segments.cleared import CLEARED_FILE
from diskbuffer.store.segments.shard import EMPTY, index_of
from diskbuffer.store.segments.table import NEVER
from diskbuffer.store.store import Store

Bools = npt.NDArray[np.bool_]
NOTES_OF_SLOTS = tuple(f"{SEGMENTS}/{name}/c.0" for name in ("before", "sealed"))


def used_bytes(root: Path) -> dict[str, Bools]:
    """Return, of each file of an undamaged store, which of its bytes are in use."""
    store = open_store(root, writable=False, recover=False)
    files = [path for path in root.rglob("*") if path.is_file()]
    used = {str(path.relative_to(root)): np.full(path.stat().st_size, path.suffix == ".json") for path in files}
    state = State.read(store.files, store.layout)
    if state is not None and state.clean and state.tail is not None:
        used[state.tail.name][:] = True
    _mark_cleared(store, used[CLEARED_FILE].reshape(4, store.layout.streams, 8))
    slots = [slots.tolist() for slots in store.table.by_stream()]
    for slot in range(store.table.slots):
        _mark_entry(store, used, slot)
    for stream in slots:
        for slot in stream:
            _mark_flat(store, used, slot, newest=slot == stream[-1])
            for path in store.layout.packed:
                _mark_shard(store, used, path, slot)
    return used


def open_files(root: Path) -> set[str]:
    """Return the files of a store that may have been written to still when it was left: checksums are of complete ones."""
    store = open_store(root, writable=False, recover=False)
    layout, found = store.layout, {directory.tail_file(store.layout, path) for path in store.layout.packed}
    state = State.read(store.files, layout)
    if state is not None and not state.clean:
        found.add(CLEARED_FILE)
    for slot in np.flatnonzero(store.table.column("length")).tolist():
        if not store.table.is_sealed(slot):
            found |= {layout.data_file(path, slot) for path in layout.schema.recorded}
    return found


def _mark_cleared(store: Store, used: Bools) -> None:
    """Mark the word, the positions that it says hold, and those of a capacity behind them."""
    word = int(store.cleared_place[1][0])
    used[2, 0] = True
    used[word >> 32 & 1] |= word != 0
    used[3] = (store.firsts > store.cleared)[:, None]


def _mark_entry(store: Store, used: dict[str, Bools], slot: int) -> None:
    table, there = store.table, store.table.length(slot) > 0
    words = {"length": True, "stream": there, "first_row": there}
    words |= dict.fromkeys(("before", "sealed"), there)
    words |= dict.fromkeys(("first_step", "episode_start"), there and table.get("before", slot) != 0)
    for name, marked in words.items():
        file = f"{SEGMENTS}/{name}/c.0" + (".0" if name == "length" else "")
        used[file][slot * 8 : slot * 8 + 8] = marked
    for path in store.layout.schema:
        marked = there and (path in store.layout.derived or table.is_sealed(slot))
        used[f"{CHECKSUMS}/{path}/c.0"][slot * 4 : slot * 4 + 4] = marked


def _mark_flat(store: Store, used: dict[str, Bools], slot: int, *, newest: bool) -> None:
    """Mark rows below the segment's length, all where a checksum is over the file; what was done at the newest does not count."""
    layout, length, sealed = store.layout, store.table.length(slot), store.table.is_sealed(slot)
    for path in (*layout.flat, *layout.derived):
        marks = used.get(layout.data_file(path, slot))
        if marks is None:
            continue
        rows = marks.reshape(layout.segment_rows, -1)
        rows[: layout.segment_rows if sealed else length] = True
        if path in layout.derived:
            rows[:] = store.table.checksum(path, slot) != NEVER
        elif newest and not sealed and path in covered(layout.schema, STEP):
            rows[length - 1] = False
        elif not sealed and path == CHECKSUM:
            rows[:, 4 * TIME :] = False  # in which order steps were added, and not which
            rows[length - 1, 4:] &= not newest


def _mark_shard(store: Store, used: dict[str, Bools], path: str, slot: int) -> None:
    """Mark chunks, identity and index of a shard, and in the tail what is in no chunk yet."""
    layout, (stream, first) = store.layout, store.table.identity(slot)
    chunks, marks = layout.chunks(path), used[layout.data_file(path, slot)]
    entries = index_of(store.files.map(layout.data_file(path, slot), -1, writable=False), chunks)
    marks[len(marks) - layout.index_bytes(path) - IDENTITY_BYTES :] = True
    packed = 0
    for at, size in entries.tolist():
        if at != EMPTY:
            marks[at : at + size] = True
            packed += layout.chunk_rows(path)
    tail = used[directory.tail_file(layout, path)].reshape(layout.streams, layout.tail_rows, -1)
    tail[stream, (first + np.arange(packed, store.table.length(slot))) % layout.tail_rows] = True
