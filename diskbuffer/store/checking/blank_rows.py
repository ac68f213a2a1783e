"""Rows that are no steps, in the place of some that are damaged or lost.

A row cannot be removed, as positions never change. A row that is the last of its episode is no step, though: so such rows become
episodes of nothing, and the row before them the last of its own. Files are written anew, and put in place of the old ones: other
links to those may be somebody's snapshot.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.schema.schema import CHECKSUM
from diskbuffer.store.format import codec, pictures
from diskbuffer.store.format.checksums import OBS, STEP, Summed, covered, row_checksums
from diskbuffer.store.format.encoding import encode_rows
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.inspection import Inspected
from diskbuffer.store.segments.shard import write_live
from diskbuffer.store.store import Store

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]


def blank(
    store: Store,
    segment: Inspected,
    bad: Bools,
    bad_after: bool = False,
    *,
    newest: bool = False,
) -> None:
    """Write a segment anew, without the rows that are `bad`, (length,); it counts as not sealed then.

    The row before a bad one becomes the last of its episode. `bad_after` tells whether the row after the segment is bad, `newest`
    that the segment ends with its stream's newest row: what was done there does not count.
    """
    layout, length = store.layout, segment.length
    no_steps = bad | np.append(bad[1:], bad_after)
    rows = {path: _rows(segment, path) for path in (*covered(layout.schema, OBS), *covered(layout.schema, STEP))}
    for path in covered(layout.schema, OBS):
        rows[path][bad] = 0
    for path in covered(layout.schema, STEP):
        rows[path][no_steps] = path == "is_last"
        if newest and path != "is_last":
            rows[path][-1] = 0
    kept = {path: _kept(layout, segment, path, bad) for path in layout.lossy}
    words = np.stack([np.zeros(length, np.uint32), np.zeros(length, np.uint32), segment.times()], axis=1)
    for word in (OBS, STEP):
        some = {path: _summed(kept[path], rows[path]) if path in kept else rows[path] for path in covered(layout.schema, word)}
        words[:, word] = row_checksums(layout.schema, layout.salt, segment.stream, segment.first, length, some, word)
    if newest and not rows["is_last"][-1].any():
        words[-1, STEP] = 0
    rows[CHECKSUM] = words.view(np.uint8)
    for path, values in rows.items():
        if path in layout.chunks_of:
            _write_shard(store, segment, path, values, kept.get(path, {}))
        else:
            _write_flat(store, segment.slot, path, values)
    store.table.unseal(segment.slot)
    store.maps.retire(segment.slot)


def make_blank(store: Store, stream: int, first_row: int) -> int:
    """Make a segment with rows that are no steps, where one is missing; return its slot."""
    slot, length = store.take_slot(stream, first_row), store.layout.segment_rows
    store.durability.sync_names_of_derived()
    store.table.set_length(slot, length)
    segment = Inspected(store, slot, length, decode=True)
    blank(store, segment, np.ones(length, np.bool_))
    return slot


def _rows(segment: Inspected, path: str) -> Bytes:
    """Return all rows of a column as bytes, zeros where they cannot be read."""
    if not segment.is_readable(path):
        return np.zeros((segment.length, segment.row_bytes(path)), np.uint8)
    return segment.rows(path, 0, segment.length).copy()


def _write_flat(store: Store, slot: int, path: str, rows: Bytes) -> None:
    name, size = store.layout.data_file(path, slot), store.layout.flat_bytes(path)
    store.files.replace(name, size, np.ascontiguousarray(rows))


def _kept(layout: Layout, segment: Inspected, path: str, bad: Bools) -> dict[int, Bytes]:
    """Return the chunks, by row, that stay as they are, in a column that is compressed with a loss: none loses twice."""
    good = np.flatnonzero(~bad[: _packed_chunks(layout, segment, path)]).tolist() if segment.is_readable(path) else []
    return {row: chunk for row in good if (chunk := segment.picture(path, row)) is not None}


def _summed(kept: dict[int, Bytes], rows: Bytes) -> Summed:
    """Return the checksums of what rows were made of where their chunks are kept, else of the rows."""
    sums = [pictures.sum_of_given(kept[at]) if at in kept else codec.checksum(row) for at, row in enumerate(rows)]
    return Summed(np.array(sums, np.uint32), rows.shape[1])


def _write_shard(store: Store, segment: Inspected, path: str, rows: Bytes, kept: dict[int, Bytes]) -> None:
    """Write a live shard of the rows' complete chunks, some of which are kept; the others go into the tail."""
    layout = store.layout
    chunk_rows, full, chunks = layout.chunk_rows(path), _packed_chunks(layout, segment, path), []
    for chunk in range(full):
        if chunk in kept:
            chunks.append(kept[chunk].copy())
            continue
        raw = rows[chunk * chunk_rows : (chunk + 1) * chunk_rows]
        chunks.append(encode_rows(layout.schema[path], chunk_rows, raw)[0])
    # synced: some were in the tail alone
    write_live(store.files, layout, path, segment.slot, (segment.stream, segment.first), chunks)
    tail, newest = store.tail(path)[segment.stream], segment.first + segment.length - 1
    for row in range(full * chunk_rows, segment.length):
        if segment.first + row > newest - layout.tail_rows:
            tail[(segment.first + row) % layout.tail_rows] = rows[row]


def _packed_chunks(layout: Layout, segment: Inspected, path: str) -> int:
    """Return how many chunks of a segment belong into its shard: all that are complete, without the newest row's."""
    if segment.length == layout.segment_rows:
        return layout.chunks(path)
    return max(segment.length - 1, 0) // layout.chunk_rows(path)
