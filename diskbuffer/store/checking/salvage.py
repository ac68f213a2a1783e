"""Mend a store: put files in their places, and take damaged rows out.

A row cannot be removed, as positions never change. A row that is the last of its episode is no step, though: so damaged rows
become episodes of nothing, and the row before them the last of its own. Files are written anew, and put in place of the old ones:
other links to those may be somebody's snapshot.
"""

from __future__ import annotations

import contextlib
import re
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.native.memory import address_of
from diskbuffer.schema import CHECKSUM
from diskbuffer.store.format import codec, pictures
from diskbuffer.store.format.checksums import NOT_YET, OBS, STEP, Summed, covered, row_checksums
from diskbuffer.store.format.encoding import encode_chunks
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.recovery.inspection import Inspected
from diskbuffer.store.segments.shard import write_live
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]


_A_FILE = re.compile(r"c(\.[0-9]+)+|[a-z]+\.json|.*\.tmp|revision")


# Files and directories


def about_link(path: Path) -> str:
    """Say what is wrong with a link in a store, and what to do."""
    return (
        f"is a link in the place of a directory; remove it (`rm {path}`), or put the directory that it stands for in its place, "
        "and repair again"
    )


def make_directory(root: Path, path: str) -> None:
    """Put a directory in the place of a file; a CorruptionError where it is a link, which somebody may need."""
    if (root / path).is_symlink():
        raise CorruptionError(f"{root / path} {about_link(root / path)}")
    files = Files(root)
    files.remove(path)
    files.make_directory(path)
    files.sync(str(Path(path).parent))


def clear_places_of_files(root: Path, path: str) -> None:
    """Remove empty directories in the places of a store's files; a CorruptionError where something is in one."""
    with contextlib.suppress(FileNotFoundError):
        for entry in list((root / path).iterdir()):
            if _A_FILE.fullmatch(entry.name) and stat.S_ISDIR(entry.lstat().st_mode):
                try:
                    entry.rmdir()
                except OSError as error:
                    raise CorruptionError(
                        f"{entry} is a directory in the place of a file, with something in it; move it away, and repair again"
                    ) from error


def restore_file(root: Path, name: str, size: int) -> None:
    """Make a file anew, of what is still there of it, and zeros."""
    files, kept = Files(root), b""
    with contextlib.suppress(OSError):
        kept = files.read(name)[:size]
    files.make_directory(str(Path(name).parent))
    files.replace(name, size, kept)


# Rows


def blank(
    store: Store,
    found: Inspected,
    bad: Bools,
    bad_after: bool = False,
    *,
    newest: bool = False,
    nothing_done: bool = False,
) -> None:
    """Write a segment anew, without the rows that are `bad`, (length,); it counts as not sealed then.

    The row before a bad one becomes the last of its episode. `bad_after` tells whether the row after the segment is bad, `newest`
    that the segment ends with its stream's newest row, `nothing_done` that what is there of that row's step does not count.
    """
    layout, length = store.layout, found.length
    no_steps = bad | np.append(bad[1:], bad_after)
    rows = {path: _rows(found, path) for path in (*covered(layout.schema, OBS), *covered(layout.schema, STEP))}
    for path in covered(layout.schema, OBS):
        rows[path][bad] = 0
    for path in covered(layout.schema, STEP):
        rows[path][no_steps] = path == "is_last"
        if nothing_done and not no_steps[-1]:
            rows[path][-1] = 0
    kept = {path: _kept(layout, found, path, bad) for path in layout.lossy}
    words = np.zeros((length, 2), np.uint32)
    for word in (OBS, STEP):
        some = {path: _summed(kept[path], rows[path]) if path in kept else rows[path] for path in covered(layout.schema, word)}
        words[:, word] = row_checksums(layout.schema, layout.salt, found.stream, found.first, length, some, word)
    if newest and not rows["is_last"][-1].any():
        words[-1, STEP] ^= NOT_YET
    rows[CHECKSUM] = words.view(np.uint8)
    for path, values in rows.items():
        if path in layout.chunks_of:
            _write_shard(store, found, path, values, kept.get(path, {}))
        else:
            _write_flat(store, found.slot, path, values)
    store.table.unseal(found.slot)
    store.maps.retire(found.slot)


def make_blank(store: Store, stream: int, first_row: int) -> int:
    """Make a segment, all of whose rows are no steps, where one is missing; return its slot."""
    slot = store.take_slot(stream, first_row)
    store.durability.sync_names_of_derived()
    store.table.set_length(slot, store.layout.segment_rows)
    found = Inspected(store, slot, store.layout.segment_rows, decode=True)
    blank(store, found, np.ones(found.length, np.bool_))
    return slot


def _rows(found: Inspected, path: str) -> Bytes:
    """Return all rows of a column as bytes, zeros where they cannot be read."""
    if not found.is_readable(path):
        return np.zeros((found.length, found.row_bytes(path)), np.uint8)
    return found.rows(path, 0, found.length).copy()


def _write_flat(store: Store, slot: int, path: str, rows: Bytes) -> None:
    name, size = store.layout.data_file(path, slot), store.layout.flat_bytes(path)
    store.files.replace(name, size, np.ascontiguousarray(rows))


def _kept(layout: Layout, found: Inspected, path: str, bad: Bools) -> dict[int, Bytes]:
    """Return the chunks, by row, that stay as they are, in a column that is compressed with a loss: none loses twice."""
    good = np.flatnonzero(~bad[: _packed_chunks(layout, found, path)]).tolist() if found.is_readable(path) else []
    return {row: chunk for row in good if (chunk := found.picture(path, row)) is not None}


def _summed(kept: dict[int, Bytes], rows: Bytes) -> Summed:
    """Return the checksums of what rows were made of where their chunks are kept, else of the rows."""
    sums = [pictures.sum_of_given(kept[at]) if at in kept else codec.checksum(row) for at, row in enumerate(rows)]
    return Summed(np.array(sums, np.uint32), rows.shape[1])


def _write_shard(store: Store, found: Inspected, path: str, rows: Bytes, kept: dict[int, Bytes]) -> None:
    """Write a live shard of the rows' complete chunks, some of which are kept; the others go into the tail."""
    layout = store.layout
    chunk_rows, chunk_bytes = layout.chunk_rows(path), layout.chunk_bytes(path)
    full = _packed_chunks(layout, found, path)
    chunks, entry = [], np.zeros((1, 2), np.int64)
    for chunk in range(full):
        if chunk in kept:
            chunks.append(kept[chunk].copy())
            continue
        raw = np.ascontiguousarray(rows[chunk * chunk_rows : (chunk + 1) * chunk_rows])
        out = np.empty(codec.bound(chunk_bytes), np.uint8)
        size = encode_chunks(layout.schema[path], address_of(raw), 0, chunk_bytes, chunk_bytes, out, entry)
        chunks.append(out[:size])
    write_live(store.files, layout, path, found.slot, (found.stream, found.first), chunks)
    tail, newest = store.tail(path)[found.stream], found.first + found.length - 1
    for row in range(full * chunk_rows, found.length):
        if found.first + row > newest - layout.tail_rows:
            tail[(found.first + row) % layout.tail_rows] = rows[row]


def _packed_chunks(layout: Layout, found: Inspected, path: str) -> int:
    """Return how many chunks of a segment belong into its shard: all that are complete, without the newest row's."""
    if found.length == layout.segment_rows:
        return layout.chunks(path)
    return max(found.length - 1, 0) // layout.chunk_rows(path)
