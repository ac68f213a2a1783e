"""What counts of a store after a power loss: anything since the last sync may be there or not.

What is kept is what matches its checksums: of each stream the rows around those that were synced, up to the first that is not as
it was written. A store whose writer was killed, and that is opened after the next boot, looks the same: then that is all of it.
"""

from __future__ import annotations

import contextlib

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store.format.checksums import OBS, STEP
from diskbuffer.store.last_writer import State
from diskbuffer.store.recovery.inspection import Inspected, missing_rows
from diskbuffer.store.recovery.resume_writing import file_size, make_writable, writable_rows
from diskbuffer.store.segments.mapped import InMemory
from diskbuffer.store.segments.shard import EMPTY, LiveShard, index_of
from diskbuffer.store.segments.table import NEVER, UNCHECKED
from diskbuffer.store.store import Kept, Store

Int64 = npt.NDArray[np.int64]


def find_what_counts(store: Store, state: State, *, damaged: bool = False) -> Kept:
    """Return what matches its checksums. `state` tells up to which positions rows were on the disk for certain.

    A CorruptionError where one of these is not as it was written, which no power loss explains; with `damaged` it counts for now.
    Where segments are evicted, it may explain that: files of one that was evicted, and came back, may be another's by now.
    """
    rows, size, synced = store.layout.segment_rows, store.layout.streams, state.synced
    length, _ = store.table.used()
    stream_segments: list[dict[int, tuple[int, int, bool]]] = [{} for _ in range(size)]  # slot, rows, whether all; by segment
    for slot in np.flatnonzero(length).tolist():
        stream, first = store.table.identity(slot)
        if 0 <= stream < size and first >= 0 and first % rows == 0 and length[slot] <= rows:
            certain = max(0, synced[stream] - first) if stays(store, stream) else 0
            intact, complete = _rows_that_count(store, slot, int(length[slot]), certain, damaged)
            if intact > stream_segments[stream].get(first // rows, (0, 0))[1]:
                stream_segments[stream][first // rows] = (slot, intact, complete)
    kept = [run(segments, max(0, synced[stream]) // rows) for stream, segments in enumerate(stream_segments)]
    for stream, (slots, lengths) in enumerate(kept):
        begins = store.table.get("first_row", int(slots[0])) if len(slots) else rows
        if not stays(store, stream) or synced[stream] < 0 or damaged:
            continue
        if begins > 0:
            raise CorruptionError(missing_rows(store, f"before row {begins}", stream))
        if (head := begins + int(lengths.sum()) - 1) < synced[stream]:
            raise CorruptionError(missing_rows(store, f"{head + 1} to {synced[stream]}", stream))
    return [
        (slots[:0], lengths[:0])
        if len(slots) and _is_too_old(store, stream, int(slots[-1]), state.next_positions())
        else (slots, lengths)
        for stream, (slots, lengths) in enumerate(kept)
    ]


def _is_too_old(store: Store, stream: int, slot: int, next_positions: tuple[int, ...]) -> bool:
    """Return whether a ring cannot have had a slot's rows any more, as more came after them than all slots hold."""
    came = next_positions[stream] - store.table.get("first_row", slot)
    return not stays(store, stream) and came > most_rows(store)


def most_rows(store: Store) -> int:
    """Return how many rows of a stream all slots hold, and are reserved."""
    return (store.table.slots + 4) * store.layout.segment_rows


def stays(store: Store, stream: int) -> bool:
    """Return whether nothing of a stream was ever evicted."""
    layout = store.layout
    return layout.capacity is None and not (layout.begins and layout.begins[stream])


def _rows_that_count(store: Store, slot: int, length: int, synced: int, damaged: bool) -> tuple[int, bool]:
    """Return how many rows of a segment are there as they were written, from the first on, and whether these are all.

    What was done at the last of them need not be there; then they are not all. The first `synced` are certain to have been on the
    disk: where one of these is not as it was written, it is damaged.
    """
    rows = store.layout.segment_rows
    if store.verification.is_sealed(slot) and length == rows:
        with contextlib.suppress(CorruptionError):
            for path in store.layout.schema.recorded:
                store.verification.verify_file(path, slot)
            return rows, True
        store.mark_unverified(slot)
    segment = Inspected(store, slot, length, decode=True)
    if segment.damage:
        if synced and not damaged:
            raise CorruptionError(next(iter(segment.damage.values())))
        return min(synced, rows), synced >= rows
    for path in store.layout.packed:  # rows after a bad chunk count only where the tail has them
        for chunk in range(segment.good_chunks(path), segment.chunks.get(path, 0)):
            segment.bad_chunks[path].setdefault(chunk, "after one that is bad")
    obs, both = segment.verified(OBS), segment.verified(OBS) & segment.verified(STEP)
    if not both[:synced].all():
        if not damaged:
            bad = int(np.flatnonzero(~both[:synced])[0])
            raise CorruptionError(segment.damaged_row(STEP if obs[bad] else OBS, bad))
        both[:synced] = True
    n = int(np.append(both, False).argmin())
    return (n + 1, False) if n < length and obs[n] else (n, n == rows)


def run(segments: dict[int, tuple[int, int, bool]], synced: int) -> tuple[Int64, Int64]:
    """Choose, among the runs of segments without a gap, that which has the segment `synced`, or comes nearest before it.

    Each is, by its number, a slot, how many rows, and whether these are all.
    What is newer than what was synced never counts without it.
    """
    runs: list[list[int]] = []
    for n in sorted(segments):
        if runs and runs[-1][-1] == n - 1 and segments[n - 1][2]:
            runs[-1].append(n)
        else:
            runs.append([n])
    run = next((run for run in reversed(runs) if run[0] <= synced), runs[-1] if runs else [])
    chosen = np.array([segments[n][:2] for n in run], np.int64).reshape(-1, 2)
    return chosen[:, 0], chosen[:, 1]


def hide_bad_chunks(store: Store, kept: Kept) -> None:
    """Find rows for a reader, which cannot change anything, in the tail whose chunks are not there as they were written."""
    layout = store.layout
    for slots, lengths in kept:
        for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
            if store.verification.is_sealed(slot):
                continue
            segment = Inspected(store, slot, length, decode=True)
            for path in layout.packed:
                good, chunks = segment.good_chunks(path), layout.chunks(path)
                if good < segment.chunks.get(path, 0):
                    mapped = store.files.map(layout.data_file(path, slot), -1, writable=False)
                    copied = InMemory(mapped.array(np.uint8, (mapped.size,)).copy())
                    index_of(copied, chunks)[good:] = EMPTY
                    store.maps.hold(path, slot, copied)


def keep(store: Store, kept: Kept) -> None:
    """Leave in a store what counts, and nothing else, on the disk; then it is as if it had been closed by a kill."""
    keep_rows(store, kept)
    for slots, lengths in kept:
        for slot in slots.tolist():
            if not store.verification.is_sealed(slot):
                _forget_bad_chunks(store, slot)
        if len(slots):
            make_writable(store, slots, int(lengths[-1]))


def keep_rows(store: Store, kept: Kept) -> None:
    """Leave in the segment table the rows that count, and no others, and in later columns no values of others."""
    table, layout = store.table, store.layout
    keeping = {slot for slots, _ in kept for slot in slots.tolist()}
    for slot in range(table.slots):
        if slot not in keeping:
            table.set_length(slot, 0)
    nonempty = [(slots, lengths) for slots, lengths in kept if len(slots)]
    for slots, lengths in nonempty:
        oldest = int(slots[0])
        first = table.get("first_row", oldest)
        if first > 0 and table.before(oldest) is None:
            table.note_before(oldest, steps_before(store, oldest), first)
        if table.length(int(slots[-1])) != lengths[-1]:
            table.set_length(int(slots[-1]), int(lengths[-1]))
    for name in table.names():  # or, lost once more, rows after the newest could come back, as that is decided by then
        store.files.sync(name)
    for slot in keeping:
        for name in table.strange_notes(slot):
            table.forget_note(name, slot)
        for path in layout.derived:
            _keep_derived(store, path, slot)
    for slots, lengths in nonempty:
        for path in layout.derived:
            _forget_derived_behind(store, path, int(slots[-1]), int(lengths[-1]))


def steps_before(store: Store, slot: int) -> int:
    """Return how many steps the stream of a slot had before it, where that is not noted as it should be: as far as is known."""
    first, steps = (store.table.get(name, slot) for name in ("first_row", "first_step"))
    return steps if 0 < steps <= first else first


def _forget_derived_behind(store: Store, path: str, slot: int, length: int) -> None:
    """Zero what was written later for steps that are lost: those that come in their place have none yet."""
    if file_size(store, path, slot) > 0:
        store.table.set_checksum(path, slot, UNCHECKED)
        writable_rows(store, path, slot)[length - 1 :] = 0
        store.files.sync(store.layout.data_file(path, slot))


def _forget_bad_chunks(store: Store, slot: int) -> None:
    """Empty the entries of chunks that are not there, as they were synced later than their entries: the tail has their rows."""
    layout, segment = store.layout, Inspected(store, slot, store.table.length(slot), decode=True)
    for path in layout.packed:
        if file_size(store, path, slot) == layout.live_bytes(path):
            shard = LiveShard(store.files, layout, path, slot, (segment.stream, segment.first), create=False)
            shard.forget(segment.good_chunks(path))


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
