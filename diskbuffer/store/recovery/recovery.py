"""What counts of a store when it is opened, by how its last writer left it.

After a clean close, or the death of the process, everything that the table says is there, and what is not as it was written is
damage, an error. After a power loss anything since the last sync may be there or not, so what is kept is what checksums
vouch for: of each stream the rows around those that were synced, up to the first that is not there as it was written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.schema import CHECKSUM
from diskbuffer.store.format.checksums import NOT_YET, OBS, STEP, covered, row_checksums
from diskbuffer.store.format.layout import SEGMENTS, Layout
from diskbuffer.store.recovery.inspection import Inspected
from diskbuffer.store.segments.mapped import InMemory
from diskbuffer.store.segments.shard import EMPTY, LiveShard, index_of, write_live
from diskbuffer.store.segments.table import NEVER, UNCHECKED

if TYPE_CHECKING:
    from diskbuffer.store.store import Store

Int64 = npt.NDArray[np.int64]
Kept = list[tuple[Int64, Int64]]  # of each stream, slots in the order of its rows, and how many rows of each


def heads(store: Store) -> Int64:
    """Return the position of each stream's newest row, -1 where there is none."""
    found = np.full(store.layout.streams, -1, np.int64)
    for stream, (slots, lengths) in enumerate(store.segments()):
        if len(slots):
            found[stream] = store.table.get("first_row", int(slots[-1])) + lengths[-1] - 1
    return found


# After a close or a kill


def make_sure(store: Store, synced: tuple[int, ...], *, settled: bool) -> None:
    """Raise a CorruptionError where rows that are not sealed yet, which have no other checksums, are damaged.

    `synced` are the positions up to which rows must be there. `settled` tells that the store was closed: only then is it settled
    what was done at a stream's newest row.
    """
    for stream, (head, expected) in enumerate(zip(heads(store).tolist(), synced, strict=True)):
        if head < expected:
            raise CorruptionError(_missing(store, f"{head + 1} to {expected}", stream))
    decode = _is_mixed(store.layout)
    for slots in store.table.by_stream():
        for slot in slots.tolist():
            if store.is_sealed(slot):
                continue
            found = Inspected(store, slot, store.table.length(slot), decode=decode)
            for what in found.damage.values():
                raise CorruptionError(what)
            newest = slot == slots[-1]
            for word in (OBS, STEP):
                good = found.vouched(word, newest=newest)
                if word == STEP and not settled and newest:
                    good[-1] = True
                if not good.all():
                    raise CorruptionError(_damage(store, found, word, int(np.flatnonzero(~good)[0])))


def _is_mixed(layout: Layout) -> bool:
    """Tell whether some word of a row's checksum covers packed and flat columns, so that it takes decoding to verify it."""
    kinds = [{path in layout.chunks_of for path in covered(layout.schema, word)} for word in (OBS, STEP)]
    return any(len(kind) > 1 for kind in kinds) or True in kinds[STEP]


def _damage(store: Store, found: Inspected, word: int, row: int) -> str:
    columns = ", ".join(repr(path) for path in covered(store.layout.schema, word))
    file = store.root / store.layout.data_file(CHECKSUM, found.slot)
    return (
        f"{store.root}: row {found.first + row} of stream {found.stream} "
        f"(step {(found.first + row) * store.layout.streams + found.stream}) is not as it was written: one of the columns "
        f"{columns}, or their checksum in {file}, was damaged. "
        "`diskbuffer check --repair` goes on without it"
    )


def unsettled_ends(store: Store) -> dict[int, bool]:
    """Find streams of whose newest rows it is not settled what was done there, and whether an episode ends with them.

    For a reader; a writer settles it, with `settle_newest`.
    """
    return {stream: _is_over(store, slots, length) for stream, slots, length in _unsettled(store)}


def _unsettled(store: Store) -> Iterator[tuple[int, Int64, int]]:
    """Yield such streams, their slots, and how many rows the newest of these has."""
    for stream, (slots, lengths) in enumerate(store.segments()):
        if len(slots) and not store.is_sealed(int(slots[-1])):
            found = Inspected(store, int(slots[-1]), int(lengths[-1]), decode=_is_mixed(store.layout))
            if not found.vouched(STEP, newest=True)[-1]:
                yield stream, slots, found.length


# After a power loss


def find_what_counts(store: Store, synced: tuple[int, ...], *, damaged: bool = False) -> Kept:
    """Return what checksums vouch for. `synced` are the positions up to which rows were on the disk for certain.

    A CorruptionError where one of these is not as it was written, which no power loss explains; with `damaged` it counts for now.
    Where segments are evicted, it may explain that: files of one that was evicted, and came back, may be another's by now.
    """
    rows, size = store.layout.segment_rows, store.layout.streams
    length, _ = store.table.used()
    found: list[dict[int, tuple[int, int, bool]]] = [{} for _ in range(size)]  # slot, rows, whether all; by segment
    for slot in np.flatnonzero(length).tolist():
        stream, first = store.table.identity(slot)
        if 0 <= stream < size and first >= 0 and first % rows == 0 and length[slot] <= rows:
            certain = max(0, synced[stream] - first) if stays(store, stream) else 0
            there, complete = _rows_that_count(store, slot, int(length[slot]), certain, damaged)
            if there > found[stream].get(first // rows, (0, 0))[1]:
                found[stream][first // rows] = (slot, there, complete)
    kept = [_run(segments, max(0, synced[stream]) // rows) for stream, segments in enumerate(found)]
    for stream, (slots, lengths) in enumerate(kept):
        begins = store.table.get("first_row", int(slots[0])) if len(slots) else rows
        if not stays(store, stream) or synced[stream] < 0 or damaged:
            continue
        if begins > 0:
            raise CorruptionError(_missing(store, f"before row {begins}", stream))
        if (head := begins + int(lengths.sum()) - 1) < synced[stream]:
            raise CorruptionError(_missing(store, f"{head + 1} to {synced[stream]}", stream))
    return kept


def _missing(store: Store, rows: str, stream: int) -> str:
    return (
        f"{store.root}/{SEGMENTS}: rows {rows} of stream {stream} were on the disk, and the segment table does not have them; it "
        "is damaged. `diskbuffer check --repair` saves what can be saved"
    )


def stays(store: Store, stream: int) -> bool:
    """Tell whether nothing of a stream was ever evicted."""
    layout = store.layout
    return (layout.capacity is None or stream >= layout.n_envs) and not (layout.begins and layout.begins[stream])


def _rows_that_count(store: Store, slot: int, length: int, synced: int, damaged: bool) -> tuple[int, bool]:
    """Return how many rows of a segment are there as they were written, from the first on, and whether these are all.

    What was done at the last of them need not be there; then they are not all. The first `synced` are certain to have been on the
    disk: where one of these is not as it was written, it is damaged.
    """
    rows = store.layout.segment_rows
    if store.is_sealed(slot) and length == rows:
        with contextlib.suppress(CorruptionError):
            for path in store.layout.schema.recorded:
                store.verify_file(path, slot)
            return rows, True
        store.disbelieve(slot)
    found = Inspected(store, slot, length, decode=True)
    if found.damage:
        if synced and not damaged:
            raise CorruptionError(next(iter(found.damage.values())))
        return min(synced, rows), synced >= rows
    for path in store.layout.packed:  # rows behind a bad chunk count only where the tail has them
        for chunk in range(found.good_chunks(path), found.chunks.get(path, 0)):
            found.bad_chunks[path].setdefault(chunk, "behind one that is bad")
    obs, both = found.vouched(OBS), found.vouched(OBS) & found.vouched(STEP)
    if not both[:synced].all():
        if not damaged:
            bad = int(np.flatnonzero(~both[:synced])[0])
            raise CorruptionError(_damage(store, found, STEP if obs[bad] else OBS, bad))
        both[:synced] = True
    n = int(np.append(both, False).argmin())
    return (n + 1, False) if n < length and obs[n] else (n, n == rows)


def _run(segments: dict[int, tuple[int, int, bool]], synced: int) -> tuple[Int64, Int64]:
    """Choose, among the runs of segments without a gap, that which has the segment `synced`, or comes nearest before it.

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


def overlook_bad_chunks(store: Store, kept: Kept) -> None:
    """Have a reader, who cannot change anything, find rows in the tail whose chunks are not there as they were written."""
    layout = store.layout
    for slots, lengths in kept:
        for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
            if store.is_sealed(slot):
                continue
            found = Inspected(store, slot, length, decode=True)
            for path in layout.packed:
                good, chunks = found.good_chunks(path), layout.chunks(path)
                if good < found.chunks[path]:
                    mapped = store.files.map(layout.data_file(path, slot), -1, writable=False)
                    copied = InMemory(mapped.array(np.uint8, (mapped.size,)).copy())
                    index_of(copied, chunks)[good:] = EMPTY
                    store.maps.hold(path, slot, copied)


def keep(store: Store, kept: Kept) -> None:
    """Have a store hold what counts, and nothing else, on the disk; then it is as if it had been closed by a kill."""
    keep_rows(store, kept)
    for slots, lengths in kept:
        for slot in slots.tolist():
            if not store.is_sealed(slot):
                _forget_bad_chunks(store, slot)
        if len(slots):
            take_up_again(store, slots, int(lengths[-1]))


def keep_rows(store: Store, kept: Kept) -> None:
    """Have the segment table hold the rows that count, and no others, and columns that were written later no values of others."""
    table, layout = store.table, store.layout
    keeping = {slot for slots, _ in kept for slot in slots.tolist()}
    for slot in range(table.slots):
        if slot not in keeping:
            table.set_length(slot, 0)
    there = [(slots, lengths) for slots, lengths in kept if len(slots)]
    for slots, lengths in there:
        oldest = int(slots[0])
        first = table.get("first_row", oldest)
        if first > 0 and table.before(oldest) is None:
            steps = table.get("first_step", oldest)
            table.note_before(oldest, steps if 0 < steps <= first else first, first)
        table.set_length(int(slots[-1]), int(lengths[-1]))
    for name in table.names():  # or, lost once more, rows behind the newest could come back, as it is settled by then
        store.files.sync(name)
    for slot in keeping:
        for name in table.strange_notes(slot):
            table.forget_note(name, slot)
        for path in layout.derived:
            _take_up_derived(store, path, slot)
    for slots, lengths in there:
        for path in layout.derived:
            _forget_derived_behind(store, path, int(slots[-1]), int(lengths[-1]))


def _forget_derived_behind(store: Store, path: str, slot: int, length: int) -> None:
    """Zero what was written later for steps that are lost: those that come in their place have none yet."""
    if _size(store, path, slot) > 0:
        store.table.set_checksum(path, slot, UNCHECKED)
        _writable(store, path, slot)[length - 1 :] = 0
        store.files.sync(store.layout.data_file(path, slot))


def take_up_again(store: Store, slots: Int64, length: int) -> None:
    """Make the segment with a stream's newest row one that can be written to; nothing was done at that row yet."""
    slot, layout = int(slots[-1]), store.layout
    rows = store.table.identity(slot)
    settled = bool(Inspected(store, slot, length, decode=True).vouched(STEP, newest=True)[-1])
    for path in layout.packed:
        if _size(store, path, slot) != layout.live_bytes(path):
            _make_live(store, path, slot, rows)
    if store.is_sealed(slot):  # other links to its files may be somebody's snapshot
        for path in layout.flat:
            _copy(store, path, slot)
        store.table.unseal(slot)
    if not settled:
        _settle(store, slots, length)


def settle_newest(store: Store) -> None:
    """Make it settled that nothing was done at each stream's newest row, where a kill came in between."""
    for _, slots, length in _unsettled(store):
        _settle(store, slots, length)


def _settle(store: Store, slots: Int64, length: int) -> None:
    slot, layout = int(slots[-1]), store.layout
    rows, nothing, over = store.table.identity(slot), {}, _is_over(store, slots, length)
    for path in covered(layout.schema, STEP):
        column = layout.schema[path]
        nothing[path] = np.zeros((1, *column.shape), column.np_dtype)
        if path in layout.chunks_of:
            store.tail(path)[rows[0], (rows[1] + length - 1) % layout.tail_rows] = 0
        else:
            nothing[path][...] = path == "is_last" and over
            _writable(store, path, slot)[length - 1] = nothing[path].reshape(-1).view(np.uint8)
    word = row_checksums(layout.schema, layout.salt, rows[0], rows[1] + length - 1, 1, nothing, STEP)
    _writable(store, CHECKSUM, slot).view(np.uint32)[length - 1, STEP] = word[0] ^ (0 if over else NOT_YET)


def _is_over(store: Store, slots: Int64, length: int) -> bool:
    """Tell whether an episode ends with a stream's newest row, by what was done at the row before."""
    slot, row = (slots[-1], length - 2) if length > 1 else (slots[-2:][0], store.layout.segment_rows - 1)
    if length == 1 and len(slots) == 1:
        return False
    if store.flags("is_last", int(slot), row + 1)[row]:
        return False  # no step; the flags of a lead-in's row tell that it is one
    return any(store.flags(path, int(slot), row + 1)[row] for path in ("terminated", "truncated"))


def _forget_bad_chunks(store: Store, slot: int) -> None:
    """Empty the entries of chunks that are not there, as they were synced later than their entries: the tail has their rows."""
    layout, found = store.layout, Inspected(store, slot, store.table.length(slot), decode=True)
    for path in layout.packed:
        if _size(store, path, slot) == layout.live_bytes(path):
            shard = LiveShard(store.files, layout, path, slot, (found.stream, found.first), create=False)
            shard.forget(found.good_chunks(path))


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
    fd = store.files.create(f"{name}.new.tmp", size, reserve=True)
    try:
        store.files.pwrite(fd, old.array(np.uint8, (size,)), 0)
    finally:
        store.files.close(fd)
    store.files.sync(f"{name}.new.tmp")
    store.files.rename(f"{name}.new.tmp", name)
    store.files.sync(path)


def _writable(store: Store, path: str, slot: int) -> npt.NDArray[np.uint8]:
    mapped = store.files.map(store.layout.data_file(path, slot), store.layout.flat_bytes(path), writable=True)
    return mapped.array(np.uint8, (store.layout.segment_rows, -1))


def _take_up_derived(store: Store, path: str, slot: int) -> None:
    """Note what is there of a column that was written later: each of its values is whole, an old one or a new one."""
    size, expected = _size(store, path, slot), store.table.checksum(path, slot)
    if size != store.layout.flat_bytes(path):
        store.files.remove(store.layout.data_file(path, slot))
        store.table.set_checksum(path, slot, NEVER)
    elif expected != UNCHECKED:
        try:
            store.verify_file(path, slot)
        except CorruptionError:
            expected = NEVER
        if expected == NEVER:
            store.table.set_checksum(path, slot, UNCHECKED)


def _size(store: Store, path: str, slot: int) -> int:
    try:
        return store.files.stat(store.layout.data_file(path, slot)).st_size
    except FileNotFoundError:
        return -1
