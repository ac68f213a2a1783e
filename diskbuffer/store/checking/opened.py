"""A store that is open to be checked: as its last writer left it, or beside a writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from diskbuffer.store.checking.report import Problem
from diskbuffer.store.last_writer import State, how_it_was_left
from diskbuffer.store.store import Store
from diskbuffer.store.system.writer_lock import is_held

_MOST_READS = 1000  # of the segment table, until no writer changed it in between


class Opened:
    """What all finders know of a store.

    Attributes
    ----------
    live : bool
        Whether a writer is at work: what it has not sealed yet, only it knows.
    last_shutdown : LastShutdown
        How the last writer ended; not decided while one is at work.
    synced : tuple of int
        Of each stream, the position up to which rows were on the disk.
    is_last_shutdown_known : bool
        Whether the last writer's note of that is there.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.live = not store.writable and bool(is_held(store.files))
        store.durability.state = note = State.read(store.files, store.layout)
        self.last_shutdown, self.synced = how_it_was_left(note, store.files, store.layout.streams)
        self.is_last_shutdown_known = note is not None

    def problem(self, file: Path, stream: int, first: int, last: int, what: str, column: str | None = None) -> Problem:
        """Return a problem of rows of a stream, the `first` to the `last`."""
        streams = self.store.layout.streams
        return Problem(file, what, column, (first * streams + stream, last * streams + stream))

    def segments(self) -> list[list[tuple[int, int]]]:
        """Return (first row, slot) of each stream's segments, in their order, at one moment even beside a writer."""
        table, layout = self.store.table, self.store.layout
        (length, _), stream, first = table.used(), table.column("stream"), table.column("first_row")
        for _ in range(_MOST_READS if self.live else 0):
            again = table.used()[0], table.column("stream"), table.column("first_row")
            used = (length > 0, again[0] > 0)
            if (used[0] == used[1]).all() and all(
                (a[used[0]] == b[used[0]]).all() for a, b in ((stream, again[1]), (first, again[2]))
            ):
                break
            length, stream, first = again
        valid = (length > 0) & (first % layout.segment_rows == 0) & (first >= 0)
        by_stream = []
        for s in range(layout.streams):
            mine = np.flatnonzero(valid & (stream == s))
            mine = mine[np.argsort(first[mine], kind="stable")]
            by_stream.append(list(zip(first[mine].tolist(), mine.tolist(), strict=True)))
        return by_stream
