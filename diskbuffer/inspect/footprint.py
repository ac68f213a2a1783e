"""How much disk and memory a store takes once it has so many steps, from its layout and how well its columns compress. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diskbuffer.storage.format import zarr_metadata as zarr_metadata_2
from diskbuffer.storage.format.layout import TABLE_FILE_BYTES, TABLE_SEGMENTS
from diskbuffer.storage.format.layout import Layout as Layout2
from diskbuffer.storage.sealer import files_together
from diskbuffer.store.format import zarr_metadata
from diskbuffer.store.format.layout import IDENTITY_BYTES, TABLE_SLOTS, Layout

BLOCK = 4096  # bytes: what a file system gives a file at once
_SMALL_FILES = 10  # beside the columns' metadata: of the group, the writer, its lock, the last shutdown
_CONTROL_FILES = 5  # of format 2: the group's metadata, twice as long as others, the manifest, the heads, the lock
_WRITEBACK = 30.0  # seconds after which Linux writes a page that was changed to the disk (vm.dirty_expire_centisecs)
_NOTES = 2  # pages of small files that are written whenever a segment is sealed, or a file of format 2
_MAP_BYTES = 760  # of RAM for a file that is mapped: the map, and where it is noted
_SEGMENT_BYTES = 300  # of RAM for a segment beside its files: its places in the index and among those to be evicted


AnyLayout = Layout | Layout2


@dataclass(frozen=True)
class Compressed:
    """How many bytes of disk each byte of a packed column takes: while its segment is written, and once that is sealed."""

    live: float
    sealed: float


@dataclass(frozen=True)
class Kept:
    """What a store of a capacity holds after so many steps.

    Attributes
    ----------
    rows : float
        Rows that are there, of all streams; with a capacity that was reached, on average.
    written : float
        Rows ever written.
    complete, unfinished, ahead : float
        Of each stream: segments that are complete, rows in the one that is written to, and files of the next one. In format 2
        as many streams as there are share a file.
    """

    rows: float
    written: float
    complete: float
    unfinished: float
    ahead: float

    @classmethod
    def after(cls, layout: AnyLayout, steps: int, rows_a_step: float, *, most: bool = False) -> Kept:
        """Return what is kept after `steps` steps; with `most`, at the moment at which it is the most.

        An old segment is evicted as a whole, once all of it is older than the capacity. So there is up to a segment of each
        stream on top, half of one on average.
        """
        streams, size, written = layout.n_envs, layout.segment_rows, steps * rows_a_step
        is_made_early = isinstance(layout, Layout2)  # the next file: as soon as half of the newest one's lanes are taken
        if layout.capacity is None or steps <= layout.capacity:
            each = written / streams
            complete = float(each // size)
            unfinished = each - complete * size
            return cls(written, written, complete, unfinished, float(is_made_early or unfinished >= size / 2))
        each = layout.capacity * rows_a_step / streams
        more = 1.0 if most else 0.5
        return cls(streams * (each + more * size), written, each / size + more - 0.5, more * size, 1.0 if is_made_early else more)

    def segments(self, layout: AnyLayout) -> float:
        """Return how many segments there are, of all streams."""
        return layout.n_envs * (self.complete + math.ceil(self.unfinished / layout.segment_rows) + self.ahead)


def disk_bytes(layout: AnyLayout, kept: Kept, packed: Mapping[str, Compressed]) -> dict[str, float]:
    """Return the bytes of disk that each column takes, what is recorded of steps; and ``""``, all else."""
    size, lanes, found = layout.segment_rows, layout.lanes, {"": float(fixed_bytes(layout))}
    if isinstance(layout, Layout2):
        found[""] += (1 + kept.segments(layout) // TABLE_SEGMENTS) * TABLE_FILE_BYTES
    for path in layout.schema.recorded:
        row = lanes * layout.schema[path].row_bytes
        if path in layout.packed:
            sealed = _blocks(size * row * packed[path].sealed + layout.index_bytes(path) + IDENTITY_BYTES)
            live = _blocks(kept.unfinished * row * packed[path].live) + _blocks(layout.index_bytes(path)) + BLOCK
            ahead = _blocks(layout.index_bytes(path)) + BLOCK
            each = kept.complete * sealed + (live if kept.unfinished else 0) + kept.ahead * ahead
        else:
            ahead = _blocks(layout.flat_bytes(path))
            if isinstance(layout, Layout2):  # the next file has room for whoever is ahead of all others
                ahead = _blocks(layout.lane_bytes(path)) if lanes > 1 else 0
            files = kept.complete + math.ceil(kept.unfinished / size)
            each = files * _blocks(layout.flat_bytes(path)) + kept.ahead * ahead
        found[path] = layout.n_envs / lanes * each
    return found


def waiting_bytes(layout: AnyLayout, packed: Mapping[str, Compressed]) -> float:
    """Return what comes on top at most while segments are sealed, of disk.

    Two segments of each stream that wait for it are as they were written. In format 2 those that are being sealed are there
    twice: whole files, of all streams.
    """
    rows, total = layout.n_envs * layout.segment_rows, 0.0
    twice = files_together(layout) if isinstance(layout, Layout2) else 0
    for path in layout.packed:
        found = packed[path]
        total += rows * layout.schema[path].row_bytes * (2 * max(0.0, found.live - found.sealed) + twice * found.sealed)
    return total


def fixed_bytes(layout: AnyLayout) -> int:
    """Return the bytes of disk of a new store: segment table (in format 2 there is none yet), tails, metadata."""
    if isinstance(layout, Layout2):
        return tail_bytes(layout) + (len(zarr_metadata_2.nodes(layout, 1)) + _CONTROL_FILES) * BLOCK
    slots = max(1, layout.first_slots())
    table = 0
    for dtype, shape in layout.table().values():
        table += -(-slots // TABLE_SLOTS) * _blocks(TABLE_SLOTS * int(np.prod(shape)) * np.dtype(dtype).itemsize)
    metadata = len(zarr_metadata.nodes(layout, slots)) + _SMALL_FILES
    return table + tail_bytes(layout) + metadata * BLOCK


def tail_bytes(layout: AnyLayout) -> int:
    """Return the bytes of all tails: of disk, and of memory, as they are written to all the time."""
    return sum(_blocks(layout.streams * layout.tail_rows * layout.schema[path].row_bytes) for path in layout.packed)


def written_bytes(layout: AnyLayout, kept: Kept, packed: Mapping[str, Compressed], seconds: float) -> float:
    """Return the bytes that are written to the disk in a training of `seconds` seconds.

    A chunk is written twice: as it comes, and once its segment is sealed. What is mapped is written by the kernel, at most every
    30 s: a page of each flat column of each stream, however slowly it fills; the tails, as far as they were written to since.
    Whenever a segment is sealed, a page of each part of the segment table is; in format 2 whenever a file is, which has as many
    segments as there are environments.
    """
    cycles = max(1.0, seconds / _WRITEBACK)
    sealed = kept.written / (layout.segment_rows * layout.lanes)
    pages = _NOTES + (1 if isinstance(layout, Layout2) else len(layout.table()))
    total = fixed_bytes(layout) + sealed * pages * BLOCK
    for path in layout.schema.recorded:
        rows = kept.written * layout.schema[path].row_bytes
        if path in layout.packed:
            tail = layout.streams * layout.tail_rows * layout.schema[path].row_bytes
            total += rows * (packed[path].live + packed[path].sealed) + min(rows, cycles * tail)
        else:
            touched = min(layout.lanes * BLOCK, _blocks(layout.flat_bytes(path)))  # pages of a file
            total += max(rows, cycles * layout.n_envs / layout.lanes * touched)
    return total


def ram_bytes(layout: AnyLayout, kept: Kept, episodes: float) -> float:
    """Return the bytes of RAM that grow with a store: its index, and what is noted of the files that are mapped."""
    segments, columns = kept.segments(layout), len(layout.schema.recorded)
    index = 8 * 1.5 * episodes  # the array of starts doubles when it is full
    files = segments / layout.lanes
    sources = columns * (files if isinstance(layout, Layout2) else max(layout.first_slots(), files)) * 16
    return index + sources + segments * _SEGMENT_BYTES + files * columns * _MAP_BYTES


def _blocks(n: float) -> int:
    return math.ceil(n / BLOCK) * BLOCK
