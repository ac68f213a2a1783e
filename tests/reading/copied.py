"""The rows of a buffer, written once more to a store of format 2, as recording writes them; some sealed, some evicted."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from diskbuffer.draws import Draw
from diskbuffer.reading.reader import Reader
from diskbuffer.schema import CHECKSUM
from diskbuffer.storage import opening
from diskbuffer.storage.format.checksums import row_salts
from diskbuffer.storage.format.layout import Layout
from diskbuffer.storage.sealer import Sealer
from diskbuffer.storage.writer import Next
from diskbuffer.store.format.checksums import NOT_YET, OBS, STEP, row_checksums

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]


def rows_of(buffer: db.ReplayBuffer) -> list[dict[str, Array]]:
    """Return all rows of each environment, by column: none of them was evicted."""
    reader, found = buffer._reader, list[dict[str, Array]]()
    for environment, head in enumerate(reader.index.heads.tolist()):
        at = np.arange(head + 1)
        drawn = Draw(np.full(head + 1, environment), at, at, at)
        rows = {path: _read(reader, path, drawn) for path in reader.columns.paths}
        rows["is_last"] = np.zeros(head + 1, np.bool_)
        for first, number in reader.index.segments(environment).tolist():
            flags = buffer._store.values("is_last", number)[: head + 1 - first]
            rows["is_last"][first : first + len(flags)] = flags
        found.append(rows)
    return found


def _read(reader: Reader, path: str, drawn: Draw) -> Array:
    return np.asarray(reader.rows(path, lambda _: drawn, 0, 1)[:, 0])


class Copied:
    """A store of format 2 that is written to, and the rows that it gets, by environment and column."""

    def __init__(self, root: Path, layout: Layout, rows: list[dict[str, Array]]) -> None:
        self.layout, self._rows = layout, rows
        lock = opening.create(root, layout)
        assert lock is not None
        self.opened = opening.open_to_write(root, lock)
        self.store, self.writer, self.heads = self.opened.store, self.opened.writer, self.opened.heads.copy()
        self._done: list[int] = []
        self._next_to_seal = 0
        salt = int(row_salts(layout.salt, np.zeros(1, np.int64))[0])
        for environment, columns in enumerate(rows):
            n, last = len(columns["is_last"]), columns["is_last"]
            if n == 0:
                continue
            sums = [row_checksums(layout.schema, salt, environment, 0, n, columns, word) for word in (OBS, STEP)]
            columns[CHECKSUM] = np.stack(sums, axis=1)
            steps = {path: values[-1:] for path, values in columns.items()}
            if not last[-1]:  # nothing was done there yet
                columns[CHECKSUM][-1, 1] = row_checksums(layout.schema, salt, environment, n - 1, 1, steps, STEP)[0] ^ NOT_YET
            starts = np.append(0, np.flatnonzero(last) + 1)
            columns["start"] = starts[np.searchsorted(starts, np.arange(n), side="right") - 1]
            columns["steps"] = np.cumsum(~last) - ~last  # before each row

    @property
    def left(self) -> Int64:
        """How many rows each environment is still to get."""
        return np.array([len(rows["is_last"]) for rows in self._rows]) - self.heads - 1

    def add(self, environment: int, n: int) -> None:
        """Add rows to an environment, as far as there are any."""
        for _ in range(min(n, int(self.left[environment]))):
            lanes, head = self.writer.lanes, int(self.heads[environment])
            if head + 1 >= self.writer.limits[environment] or not lanes.is_open[environment]:
                self._make_room(environment)
            for path in self.layout.recorded:
                if head >= 0:  # what was done at the newest row is known only now
                    self._write(path, environment, head)
                self._write(path, environment, head + 1)
            self.heads[environment] += 1
            self.store.heads.set_rows(np.array([environment]), self.heads[[environment]] + 1)

    def _make_room(self, environment: int) -> None:
        coming = np.zeros(self.layout.environments, np.int64)
        coming[environment] = 1
        there, over = np.flatnonzero(self.heads >= 0), np.ones(self.layout.environments, np.bool_)
        over[there] = [self._rows[e]["is_last"][self.heads[e]] for e in there.tolist()]

        def before(environments: Int64) -> tuple[Int64, Int64]:
            found = np.zeros((2, len(environments)), np.int64)
            for n, e in enumerate(environments.tolist()):
                if self.heads[e] >= 0:
                    found[:, n] = [self._rows[e][name][self.heads[e]] for name in ("start", "steps")]
            return found[0], found[1]

        self.writer.prepare(self.heads, Next(coming, over, over, before), int((self.heads + 1).sum()))

    def _write(self, path: str, environment: int, position: int) -> None:
        lanes, column = self.writer.lanes, self.layout.schema[path]
        data = np.ascontiguousarray(self._rows[environment][path][position]).tobytes()
        if path in self.layout.packed:
            self.store.tail(path)[environment, position % self.layout.tail_rows] = np.frombuffer(data, np.uint8)
        else:
            n = self.layout.recorded.index(path)
            place = int(lanes.places[n, environment, int(position >= lanes.begins[environment])])
            ctypes.memmove(place + position * column.row_bytes, data, len(data))

    def seal(self) -> list[int]:
        """Seal the files that can be; return which."""
        self.writer.pack(self.heads, 0)
        self._done = sorted([*self._done, *self.writer.lanes.close_done()])
        files = list[int]()
        while self._next_to_seal in self._done:
            files.append(self._next_to_seal)
            self._next_to_seal += 1
        store = self.store
        sealer = Sealer(
            store.files,
            self.layout,
            store.manifest,
            store.maps,
            store.lock,
            self._rows_of,
            lambda _: None,
            lambda: None,
            files[0] - 1 if files else 0,
        )
        with store.lock:
            sealer.put(files)
        sealer.wait()
        sealer.stop()
        assert not sealer.unsealed()
        return files

    def _rows_of(self, file: int) -> Int64:
        entries, lanes = self.store.table.read(file * self.layout.lanes), self.layout.lanes
        mine = entries[entries.begun & (entries.segments // lanes == file)]
        assert mine.complete.all()
        rows = np.zeros(lanes, np.int64)
        rows[mine.segments % lanes] = mine.ends - mine.firsts
        return rows

    def evict(self, lows: Int64) -> list[int]:
        """Evict the rows before positions, (environments,), and files that are sealed and have no others; return these files."""
        store = self.store
        store.heads.set_low(np.arange(len(lows)), lows)
        needed = np.unique(store.segments().entries.segments // self.layout.lanes)
        gone = np.setdiff1d(store.manifest.state.sealed, needed)
        with store.lock:
            store.maps.retire(gone.tolist())
            store.manifest.remove(gone.tolist(), sync=True)
            store.remove_files(gone.tolist())
        return [int(file) for file in gone]

    def close(self) -> None:
        """Have all rows in the columns, and close the store."""
        self.opened.unsealed = [file for file in self._done if file >= self._next_to_seal]
        self.opened.close(self.heads, int((self.heads + 1).sum()))

    def let_go(self) -> None:
        """Close the files, as where a process dies."""
        self.opened.let_go()
