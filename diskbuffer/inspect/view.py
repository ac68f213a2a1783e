"""A light, read-only look at a store: what is there, and its rows, without the buffer's compiled code and without PyTorch."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskbuffer.bucket import Bucket, place_of
from diskbuffer.errors import CorruptionError, DiskBufferError, EvictedError, InputError, NotAStoreError
from diskbuffer.index.fields import ENDED, FLOOR, HEAD, LOW
from diskbuffer.index.index import Index
from diskbuffer.inspect.damaged import open_remains
from diskbuffer.inspect.episodes import EpisodeTable, build
from diskbuffer.inspect.rows import SegmentRows
from diskbuffer.reading.restore_index import read_index
from diskbuffer.schema import TAG, Schema
from diskbuffer.store import directory
from diskbuffer.store.building import is_there
from diskbuffer.store.copies import marks
from diskbuffer.store.following import MOVING_SECONDS
from diskbuffer.store.format.layout import CHECKSUMS, FORMAT, SEGMENTS, Layout
from diskbuffer.store.last_writer import State, how_it_was_left
from diskbuffer.store.opening import open_bucket, open_store
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import is_held, read_holder

T = TypeVar("T")
Int64 = npt.NDArray[np.int64]


def writer_of(files: Files) -> dict[str, Any] | None:
    """Return who writes to a store: ``pid``, ``host``, ``since``, as far as is known; None where nobody does."""
    if not is_held(files):
        return None
    return read_holder(files) or {"pid": None, "host": None, "since": None}


class StoreView:
    """Look at a store, which another process may be writing to; any number of threads at once. Nothing in it is changed.

    What it shows is as of when it was made, or of the last `refresh`. A store is seen as ``ReplayBuffer(path, mode="r")`` sees
    it, after a kill, too. A damaged one, which a buffer refuses to open, is seen as far as its rows match their checksums.

    Parameters
    ----------
    path : path-like or Bucket
        Or a bucket's URL.
    frame_stack : int, optional
        Frames in an observation: a step counts as long as all of them are there. As the store says, by default.

    Attributes
    ----------
    path : pathlib.Path or Bucket
        Absolute.
    damage : str or None
        What is wrong with a store that a buffer would refuse to open.
    format : int
        Of its files.
    marks_directory : str
        Where its marks are.

    Raises
    ------
    NotAStoreError
        There is no store.
    CorruptionError
        It is damaged so that not even its segment table can be read.
    FormatError
        It is of a newer format.
    LockedError
        Whether somebody writes to it cannot be known; or a writer that recovers it takes longer than a minute.
    """

    format = FORMAT
    marks_directory = marks.MARKS

    def __init__(self, path: str | os.PathLike[str] | Bucket, frame_stack: int | None = None) -> None:
        self.path, self._frame_stack = place_of(path), frame_stack
        self._lock = threading.RLock()
        self.damage: str | None = None
        self._seen: list[tuple[str, int, int, int]] = []
        self._open()

    def _open(self) -> None:
        self._episodes: EpisodeTable | None = None
        if isinstance(self.path, Bucket):
            self._store = open_bucket(self.path)
            self._index = self._indexed(self._store)
            return
        nothing = NotAStoreError(f"there is no store at {self.path}")  # or one that is being made
        try:
            if not is_there(self.path):
                raise nothing
            store = open_store(self.path, writable=False)
            self._store, self._index, self.damage = store, self._indexed(store), None
        except CorruptionError as error:
            self._open_remains(str(error))
        except NotAStoreError as error:
            damage = None if error is nothing else _damaged_group(self.path)
            if damage is None:
                raise
            self._open_remains(damage)

    def _open_remains(self, damage: str) -> None:
        """See what is left of a damaged store."""
        path = self._directory(damage)
        self._seen = self._stamp()  # before it is read: what changes meanwhile is looked at again
        store = open_remains(path)
        self._store, self._index, self.damage = store, self._indexed(store), damage

    def _directory(self, damage: str) -> Path:
        """Return the directory of a damaged store; of one in a bucket raise that it is damaged."""
        if isinstance(self.path, Bucket):
            raise CorruptionError(f"{damage}. Copy the store to a directory to see what is left of it")
        return self.path

    def _indexed(self, store: Store) -> Index:
        """Read which rows count."""
        index = read_index(store, (self._frame_stack or store.layout.frame_stack) - 1)
        index.begin_at(np.arange(len(store.layout.begins)), np.array(store.layout.begins, np.int64))
        return index

    @property
    def frame_stack(self) -> int:
        """Frames in an observation."""
        return self._frame_stack or self.layout.frame_stack

    @property
    def layout(self) -> Layout:
        """What the store's metadata say: sizes, capacity, environment."""
        return self.store.layout

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.layout.schema

    @property
    def store(self) -> Store:
        """The store, opened to read."""
        return self._store

    @property
    def index(self) -> Index:
        """Its streams, as of the last look."""
        return self._index

    @property
    def writer(self) -> dict[str, Any] | None:
        """Who writes to the store now: ``pid``, ``host``, ``since``, as far as is known; None where nobody does."""
        return writer_of(self._store.files)

    @property
    def left(self) -> str:
        """How the last writer left it: "clean", "killed", "power loss"."""
        files = self._store.files
        return how_it_was_left(State.read(files, self.layout.salt), files, self.layout.streams)[0].value

    @property
    def marks(self) -> tuple[str, ...]:
        """Names of its marks, the oldest first."""
        return marks.names(self._store.files)

    def segments(self) -> tuple[int, int]:
        """Return how many segments hold rows, and how many of them are sealed."""
        slots = np.concatenate([self._index.slots(stream) for stream in range(self.layout.streams)])
        return len(slots), int(self._store.table.sealed()[slots].sum())

    @property
    def heads(self) -> Int64:
        """The position of each stream's newest row, (streams,) int64; -1 where it is empty."""
        return self.index.table[:, HEAD].copy()

    @property
    def lows(self) -> Int64:
        """The position of each stream's oldest row, (streams,) int64."""
        return self.index.table[:, LOW].copy()

    @property
    def firsts(self) -> Int64:
        """The position of the oldest row of each stream that was not cleared, (streams,) int64."""
        return np.maximum(self.lows, np.array(self.layout.begins or 0, np.int64))

    @property
    def steps(self) -> int:
        """How many steps can be sampled."""
        return len(self.index)

    @property
    def added(self) -> int:
        """How many steps were ever added."""
        return self.index.added()

    def refresh(self) -> bool:
        """See what was added, evicted, tagged or cleared since; return whether anything was.

        A store that went back to a mark, or was replaced by another at the same path, is opened anew. Costs what opening costs:
        some 15 ms for a million steps.

        Raises
        ------
        NotAStoreError
            The store was removed, or moved elsewhere.
        CorruptionError
            It was damaged since so that not even its segment table can be read.
        """
        with self._lock:
            before = self._signature()
            try:
                if self.damage is not None:
                    if self._stamp() == self._seen:
                        return False
                    raise CorruptionError(self.damage)
                with self._store.lock:
                    self._index = self._indexed(self._store)
            except CorruptionError:
                self._open()
            changed = self._signature() != before
            if changed:
                self._episodes = None
            return changed

    def _stamp(self) -> list[tuple[str, int, int, int]]:
        """Return what is another one when a file of the store has changed: each name, with its number, size and time."""
        files = self._store.files if isinstance(self.path, Bucket) else Files(self.path)
        return sorted((name, status.st_ino, status.st_size, status.st_mtime_ns) for name, status in files.walk())

    def _signature(self) -> tuple[Any, ...]:
        """Return what is another one whenever something has changed that this tells of."""
        layout, table = self.layout, self._store.table
        numbers = self._index.table[:, [HEAD, ENDED, LOW, FLOOR]].tobytes()
        tags = table.column(f"{CHECKSUMS}/{TAG}".removeprefix(f"{SEGMENTS}/")).tobytes() if TAG in layout.derived else b""
        described = (layout.salt, layout.capacity, layout.tags, layout.removals, tuple(layout.schema), layout.begins)
        return (numbers, tags, described, self.damage)

    def episodes(self) -> EpisodeTable:
        """Return the episodes of which a step can be sampled; of the last look, and as long the same object.

        Reads one flag a row, and all rewards: some 30 ms for a million steps.
        """
        with self._lock:
            if self._episodes is None:
                try:
                    self._episodes = self._list()
                except CorruptionError as error:
                    if self.damage is not None:
                        raise
                    self._open_remains(str(error))
                    self._episodes = self._list()
            return self._episodes

    def _list(self) -> EpisodeTable:
        return self._retried(lambda: build(self._store, self._index))

    def read(self, column: str, steps: Any) -> npt.NDArray[Any]:
        """Read rows of a column by the names of their steps.

        Parameters
        ----------
        column : str
            Its path, such as ``"reward"`` or ``"obs/pixels"``.
        steps : (n,) int
            ``position * streams + stream``. An episode's final observation is in the row after its last step.

        Returns
        -------
        ndarray
            (n, *shape) of the column's dtype, a copy. In a packed column, each chunk that they lie in is decoded once.

        Raises
        ------
        InputError
            There is no such column, or a row was never there.
        EvictedError
            A row is gone.
        CorruptionError
            A chunk or a file that holds a row is damaged.
        """
        if column not in self.schema.columns:
            raise InputError(f"there is no column {column!r}; there are {', '.join(self.schema)}")
        names = np.asarray(steps, np.int64).reshape(-1)
        streams, positions = names % self.layout.streams, names // self.layout.streams
        with self._lock:
            return self._retried(lambda: self._read_rows(column, streams, positions), lambda: self._check(streams, positions))

    def frames(self, column: str, stream: int, first: int, n: int) -> npt.NDArray[Any]:
        """Read `n` consecutive rows of a stream's column from position `first` on, as `read` does: (n, *shape)."""
        return self.read(column, np.arange(first, first + n, dtype=np.int64) * self.layout.streams + stream)

    def let_go(self) -> None:
        """Give back the memory maps of segments, and with them the pages that were read; who reads on maps them again."""
        with self._lock, self._store.lock:
            self._store.maps.retire_all()

    def _read_rows(self, column: str, streams: Int64, positions: Int64) -> npt.NDArray[Any]:
        found = np.zeros((len(positions), *self.schema[column].shape), self.schema[column].np_dtype)
        if not len(positions):
            return found
        table, rows = self._index.table, self.layout.segment_rows
        parts = positions // rows * self.layout.streams + streams  # one number for a segment of a stream
        for part in np.unique(parts).tolist():
            segment, stream = divmod(part, self.layout.streams)
            here = np.flatnonzero(parts == part)
            slot = int(self._index.slots(stream)[segment - int(table[stream, LOW]) // rows])
            with self._store.lock:
                found[here] = self._segment(column, slot, stream, segment * rows, positions[here] % rows)
        return found

    def _segment(self, column: str, slot: int, stream: int, first: int, offsets: Int64) -> npt.NDArray[Any]:
        """Read rows of one segment, whose first row has the position `first`, by their place in it."""
        return SegmentRows(self._store, column, slot, (stream, first)).read(offsets)

    def _check(self, streams: Int64, positions: Int64) -> None:
        """Raise an InputError where a row was never there, and an EvictedError where one is gone."""
        low, head = (self._index.table[streams, field] for field in (LOW, HEAD))
        for at in np.flatnonzero((positions > head) | (positions < 0))[:1].tolist():
            raise InputError(f"stream {streams[at]} has no row {positions[at]}: its newest is {head[at]}")
        for at in np.flatnonzero(positions < low)[:1].tolist():
            raise EvictedError(f"{self.path}: row {positions[at]} of stream {streams[at]} was evicted; its oldest is {low[at]}")

    def _retried(self, attempt: Callable[[], T], check: Callable[[], None] = lambda: None) -> T:
        """Return what an attempt returns, made again from a new look where a writer has evicted what it looked at.

        What `check` raises is final.
        """
        begun = time.monotonic()
        while True:
            check()
            try:
                return attempt()
            except EvictedError:
                if time.monotonic() - begun > MOVING_SECONDS or not self.refresh():
                    raise


def _damaged_group(path: Any) -> str | None:
    """Return what is wrong with the file that describes a store, where its copy can stand in for it."""
    with contextlib.suppress(DiskBufferError, OSError):
        return directory.damaged_group(path)
    return None
