"""What a store is, and what it takes on the disk, as plain values."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskbuffer.arguments.paths import local_path
from diskbuffer.schema.schema import KEPT, Column
from diskbuffer.store import directory
from diskbuffer.store.copies import marks
from diskbuffer.store.format.layout import FORMAT, SEGMENTS, TAIL, Layout
from diskbuffer.store.format.sizes import small_segment_rows_of
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import has_writers, read_description
from diskbuffer.writers.learner_lock import COLUMNS


@dataclass(frozen=True)
class StoreInfo:
    """What a store's description says; of several writers' stores, what they have in common.

    Attributes
    ----------
    path : Path
    columns : mapping of str to Column
        By path, such as "obs/pixels": as they were created, then those that were written later.
    derived : frozenset of str
        Those that were written later.
    chunk_rows : mapping of str to int
        How many rows are compressed together, of the columns that are compressed.
    capacity : int or None
        Steps that are kept, the newest, of all environments together; None where all are.
    n_envs : int
        Environments that write side by side.
    streams : int
        A step's id is ``position * streams + environment``.
    segment_rows : int
        Rows of a segment, the unit of eviction.
    frame_stack : int
        Frames in an observation.
    padding : {"first", "zeros"}
    autoreset : {"next_step", "same_step", "disabled"}
    tags : tuple of str
        The column "tag" has their numbers, from 1 on.
    environment, metadata : mapping or None
        As `ReplayBuffer.environment` and `ReplayBuffer.metadata`.
    capacity_each : bool
        As of `ReplayBuffer`.
    format : int
        The version of the store's format.
    """

    path: Path
    columns: Mapping[str, Column]
    derived: frozenset[str]
    chunk_rows: Mapping[str, int]
    capacity: int | None
    n_envs: int
    streams: int
    segment_rows: int
    frame_stack: int
    padding: str
    autoreset: str
    tags: tuple[str, ...]
    environment: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    capacity_each: bool
    format: int = FORMAT

    @classmethod
    def of(cls, path: Path, layout: Layout, frame_stack: int | None = None) -> StoreInfo:
        """Return what a layout says, of a store that is read with another stack, where one is given."""
        return cls(
            path,
            dict(layout.schema.columns),
            layout.derived,
            layout.chunks_of,
            layout.capacity,
            layout.n_envs,
            layout.streams,
            layout.segment_rows,
            frame_stack or layout.frame_stack,
            layout.padding,
            layout.autoreset,
            layout.tags,
            layout.environment,
            layout.metadata,
            layout.capacity_each,
        )

    def options(self) -> dict[str, Any]:
        """Return the options of `ReplayBuffer` that make such a store, without the columns that were written later.

        A small one is small as its capacity is: neither size is among them then.
        """
        recorded = {path: column for path, column in self.columns.items() if path not in self.derived}
        small = None if self.chunk_rows else small_segment_rows_of(self.capacity, self.n_envs, recorded)
        rows = {rows for path, rows in self.chunk_rows.items() if not self.columns[path].is_lossy}
        names = ("capacity", "capacity_each", "n_envs", "frame_stack", "padding", "autoreset")
        return {
            "columns": {path: column for path, column in recorded.items() if path not in KEPT},
            "segment_rows": None if self.segment_rows == small else self.segment_rows,
            "chunk_rows": rows.pop() if len(rows) == 1 else None,
            **{name: getattr(self, name) for name in (*names, "environment", "metadata")},
        }


def read_info(place: str | os.PathLike[str]) -> StoreInfo:
    """Return what the description of a store says, and nothing else is read.

    Raises
    ------
    NotAStoreError, CorruptionError, FormatError
        There is no store, its description is damaged, or of a newer format.
    """
    path = local_path(place)
    files = Files(path)
    layout = read_description(files).common if has_writers(files) else directory.read_metadata(files)[0]
    return StoreInfo.of(path, layout)


def writers_of(place: str | os.PathLike[str]) -> dict[str, int] | None:
    """Return the writers whose stores are below a directory, in the order in which they came, and the environments of each.

    None where the directory has one store, or something else. A writer that has just come may have no store yet.
    """
    files = Files(local_path(place))
    return {entry.name: entry.streams for entry in read_description(files).present} if has_writers(files) else None


@dataclass(frozen=True)
class StoreUsage:
    """What a store takes on the disk now, or several writers' stores together, and how its last writer left it.

    Attributes
    ----------
    rows : int
        Rows in its segments: one a step, and one for each episode's last observation.
    segments, sealed : int
        Segments, and how many of them are recompressed.
    columns : mapping of str to int
        Bytes on the disk, holes not counted, by column.
    tail, table, marks, rest : int
        Bytes of the newest rows, of the segment table, of what marks do not share with the store, and of all else.
    mark_names : tuple of str
        The oldest first.
    last_shutdown : {"clean", "killed", "power loss"}
        How the last writer ended; "killed" of one that writes now. Of several stores, the last of these that fits one.
    """

    rows: int
    segments: int
    sealed: int
    columns: Mapping[str, int]
    tail: int
    table: int
    marks: int
    rest: int
    mark_names: tuple[str, ...]
    last_shutdown: str

    @property
    def disk_bytes(self) -> int:
        """Return the bytes of all of it."""
        return sum(self.columns.values()) + self.tail + self.table + self.marks + self.rest


def disk_usage(files: Files, paths: marks.MarkPaths = marks.OF_STORE, writers: Collection[str] = ()) -> dict[str, int]:
    """Return the bytes that files take on the disk, holes not counted, by directory: of marks what they alone have.

    A store's own arrays are below `TAIL` and `SEGMENTS`, marks below `marks.MARKS`; a column is known by its path. Those of
    several writers' stores, and of what learners wrote to a column, count together.
    """
    usage = defaultdict[str, int](int)
    known: set[tuple[int, int]] = set()
    of_marks = list[tuple[tuple[int, int], int]]()
    for name, status in files.walk():
        identity, used = (status.st_dev, status.st_ino), status.st_blocks * 512
        if name.startswith(f"{paths.marks}/"):
            of_marks.append((identity, used))
            continue
        known.add(identity)
        *above, last = name.split("/")
        if above[:1] and above[0] in writers:
            above = above[1:]
        elif above[:2] == COLUMNS.split("/"):
            above = above[2:-1]
        top = (above or [last])[0]
        usage[top if top in (SEGMENTS, TAIL) else "/".join(above) or "."] += used
    alone = {identity: used for identity, used in of_marks if identity not in known}
    return usage | ({marks.MARKS: sum(alone.values())} if of_marks else {})
