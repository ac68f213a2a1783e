"""Which rows of a store are visible: the one function that decides it, for whoever opens the store, reads, checks or copies it.

After a close, and after a kill, all rows are that the segment table has. After a power loss, of each environment those up to the
position that the last `flush` noted, which it had synced before. Since then nothing of them can have changed but by an eviction:
of segments that were evicted, some files may be there still, and the oldest that is there as a whole is visible again. A slot is
not given to other rows before the disk knows that it is free, so what the table says of one is true of its files.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.last_writer import LastShutdown, how_it_was_left
from diskbuffer.store.segments.cleared import CLEARED_FILE
from diskbuffer.store.store import Kept, Store

Int64 = npt.NDArray[np.int64]


def visible_rows(store: Store, *, damaged: bool = False) -> Kept:
    """Return the slots of each stream, in the order of its rows, and how many rows of each are visible.

    `durability.state` of the store is the note of how it was left. A CorruptionError where rows are missing that must be there;
    with `damaged`, what is there of them.
    """
    last, synced = how_it_was_left(store.durability.state, store.files, store.layout.streams)
    if last is LastShutdown.POWER_LOSS:
        each = zip(*_segments(store), synced, begins_then(store), strict=True)
        return [_of_last_flush(store, stream, *of, damaged) for stream, of in enumerate(each)]
    if damaged:
        return [_run(store, segments, max(segments, default=-1)) for segments in _segments(store)[0]]
    visible = store.segments()
    for stream, (head, expected) in enumerate(zip(store.heads(visible).tolist(), synced, strict=True)):
        if head < expected:
            raise _missing(store, f"{head + 1} to {expected}", stream)
    if last is LastShutdown.CLEAN and not counts_as_noted(store):
        raise CorruptionError(
            f"{store.root}/{CLEARED_FILE}: which rows count is not what was noted when the store was closed; it is damaged. "
            "`diskbuffer check --repair` goes by the note"
        )
    return visible


def counts_as_noted(store: Store) -> bool:
    """Return whether those rows count that did at the last flush, as it is where the store was closed."""
    return tuple(store.begins.tolist()) == begins_then(store)


def visible_from(store: Store, visible: Kept) -> Int64:
    """Return the position from which on rows of each stream are visible, as others were cleared, (streams,)."""
    last, _ = how_it_was_left(store.durability.state, store.files, store.layout.streams)
    begins = np.array(begins_then(store), np.int64) if last is LastShutdown.POWER_LOSS else store.begins
    return np.minimum(begins, store.heads(visible) + 1)  # of a copy made by a reader, rows may miss that were cleared


def begins_then(store: Store) -> tuple[int, ...]:
    """Return the position before which rows of each stream did not count at the last flush, or when the store was closed."""
    state = store.durability.state
    return (0,) * store.layout.streams if state is None else state.begins


def stays(store: Store, stream: int) -> bool:
    """Return whether nothing of a stream was ever evicted."""
    return store.layout.capacity is None and not begins_then(store)[stream]


Segments = dict[int, tuple[int, int]]  # of a stream, by their number: slots, and how many rows of each


def _segments(store: Store) -> tuple[list[Segments], list[set[int]]]:
    """Return each stream's segments as the table has them, and the numbers of those whose entry is damaged."""
    rows, streams = store.layout.segment_rows, store.layout.streams
    found: list[Segments] = [{} for _ in range(streams)]
    strange: list[set[int]] = [set() for _ in range(streams)]
    length, damaged = store.table.used()
    for slot in np.flatnonzero((length > 0) | damaged).tolist():
        stream, first = store.table.identity(slot)
        if 0 <= stream < streams and first >= 0 and first % rows == 0:
            if 0 < length[slot] <= rows:
                found[stream][first // rows] = slot, int(length[slot])
            else:
                strange[stream].add(first // rows)
    return found, strange


def _run(store: Store, segments: Segments, newest: int) -> tuple[Int64, Int64]:
    """Return a segment, and those before it as far as they follow one another without a gap; none where it is missing."""
    first = newest if newest in segments else newest + 1
    while first - 1 in segments and segments[first - 1][1] == store.layout.segment_rows:
        first -= 1
    chosen = np.array([segments[n] for n in range(first, newest + 1) if n in segments], np.int64).reshape(-1, 2)
    return chosen[:, 0], chosen[:, 1]


def _of_last_flush(
    store: Store, stream: int, segments: Segments, strange: set[int], head: int, begin: int, damaged: bool
) -> tuple[Int64, Int64]:
    """Return the segments of a stream up to a position that was synced.

    Where the one of that position is gone, so were all before it. A slot gets other rows once the disk knows of all that were
    evicted: so an entry is damaged that does not match its hash, while that of an older segment is there still.
    """
    rows, last = store.layout.segment_rows, head // store.layout.segment_rows
    segments = {n: segment for n, segment in segments.items() if n <= last and (n + 1) * rows > begin}  # others may be gone
    for number in sorted(strange - segments.keys()) if not damaged else ():
        if min(segments, default=last) < number <= last:
            raise _missing(store, f"{number * rows} to {min(head, number * rows + rows - 1)}", stream)
    newest = max(segments, default=-1) if damaged else last
    slots, lengths = _run(store, segments, newest)
    if len(lengths) and lengths[-1] <= head % rows and not damaged:
        slots, lengths = slots[:0], lengths[:0]
    if not stays(store, stream):
        gone = np.flatnonzero([not _has_files(store, slot) for slot in slots.tolist()])
        oldest = int(gone[-1]) + 1 if len(gone) else 0
        slots, lengths = slots[oldest:], lengths[oldest:]
    elif not damaged and len(slots) <= last:
        raise _missing(store, f"0 to {(last - len(slots) + 1) * rows - 1}" if len(slots) else f"up to {head}", stream)
    if newest == last:
        lengths[-1:] = np.minimum(lengths[-1:], head % rows + 1)
    return slots, lengths


def _has_files(store: Store, slot: int) -> bool:
    layout = store.layout
    return all(store.files.exists(layout.data_file(path, slot)) for path in layout.schema.recorded)


def _missing(store: Store, rows: str, stream: int) -> CorruptionError:
    return CorruptionError(
        f"{store.root}/{SEGMENTS}: rows {rows} of stream {stream} were on the disk, and the segment table does not have them; it "
        "is damaged. `diskbuffer check --repair` saves what can be saved"
    )
