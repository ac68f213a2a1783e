"""Reading a store without a lock, a buffer, or PyTorch: what it is, its episodes, its rows."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.integers import integer_or_none
from diskbuffer.arguments.paths import local_path
from diskbuffer.episode_table.table import EpisodeTable, build
from diskbuffer.errors import CorruptionError, EvictedError, InputError
from diskbuffer.index.fields import HEAD, LOW
from diskbuffer.opening.read_stores import OneStore, ReadStores, WritersStores
from diskbuffer.opening.store_info import StoreInfo, StoreUsage, disk_usage
from diskbuffer.store.copies import arrays as stored_arrays
from diskbuffer.store.copies import marks
from diskbuffer.store.following import MOVING_SECONDS
from diskbuffer.store.format.layout import MOST_FRAMES, SEGMENTS, TAIL
from diskbuffer.store.last_writer import LastShutdown, State, how_it_was_left
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import has_writers

T = TypeVar("T")
Int64 = npt.NDArray[np.int64]


class Reader:
    """Read a store, or the stores of several writers as one, while others write to them; any number of threads at once.

    Takes no lock and changes nothing on the disk. What it shows is as of when it was made, or of the last `refresh`, and is what
    ``ReplayBuffer(path, mode="r")`` shows, after a kill, too. Reads a million steps' flags and rewards in some 30 ms, and imports
    neither Zarr nor PyTorch.

    Parameters
    ----------
    place : path-like
        The directory, as of `ReplayBuffer`.
    frame_stack : int, optional
        Frames in an observation: a step counts as long as all of them are there. As the store says, by default.

    Attributes
    ----------
    path : Path
        Absolute.

    Raises
    ------
    NotAStoreError
        There is no store.
    CorruptionError
        It is damaged; ``diskbuffer check --repair`` saves what can be saved.
    FormatError
        It is of a newer format.
    LockedError
        Whether somebody writes to it cannot be known; or a writer that recovers it takes longer than a minute.
    """

    def __init__(self, place: str | os.PathLike[str], frame_stack: int | None = None) -> None:
        self.path = local_path(place)
        self._frame_stack = integer_or_none("frame_stack", frame_stack, 1, MOST_FRAMES)
        self._lock = threading.RLock()
        self._episodes: EpisodeTable | None = None
        self._changes = 0
        files = Files(self.path)
        self._of: ReadStores
        with self._advising():
            if has_writers(files):
                self._of = WritersStores(files, self._frame_stack)
            else:
                self._of = OneStore(self.path, self._frame_stack)

    @property
    def info(self) -> StoreInfo:
        """What the store's description says; of several writers' stores, with the capacity of all together."""
        store = self._of.store
        info = StoreInfo.of(self.path, store.layout, self._frame_stack)
        return dataclasses.replace(info, capacity=store.capacity)

    @property
    def version(self) -> tuple[int, int]:
        """What is larger whenever anything has changed: how often the store was opened, and how often it changed since.

        Where the first number is another one, a step's id may be another step's: the store went back to a mark, or another one
        took its place.
        """
        return self._of.opened, self._changes

    @property
    def writer(self) -> dict[str, Any] | None:
        """Who writes to the store now: ``pid``, ``host``, ``since``, as far as is known; None where nobody does.

        Of several writers' stores, one of those who write, or the learner who writes columns.
        """
        return self._of.writer()

    def counts(self) -> tuple[Int64, Int64]:
        """Return how many steps of each environment can be sampled, and how many there have ever been: (streams,) each."""
        index = self._of.index
        added = [index.added_to(stream) for stream in range(len(index.table))]
        return index.steps(), np.array(added, np.int64)

    def rows(self) -> tuple[Int64, Int64]:
        """Return the positions of the oldest row that counts and of the newest of each stream: (streams,) each.

        An episode of T steps has T + 1 rows, the last of which is its final observation. The newest position is one less than the
        oldest where a stream has none.
        """
        index = self._of.index
        oldest = np.maximum(index.table[:, LOW], index.begins)
        return oldest, np.maximum(index.table[:, HEAD], oldest - 1)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that were kept with what this is of, as `Copies.arrays` does."""
        files, paths, _ = self._of.parts()
        return stored_arrays.read(files.below(paths.note))

    def usage(self) -> StoreUsage:
        """Return what a store takes on the disk, and how its last writer left it. Walks all of its files."""
        layout, (files, paths, stores) = self._of.store.layout, self._of.parts()
        disk, left, segments = disk_usage(files, paths, stores), {LastShutdown.CLEAN}, list[npt.NDArray[np.bool_]]()
        for store, index in stores.values():
            slots = np.concatenate([index.slots(stream) for stream in range(len(index.table))])
            segments.append(store.table.sealed()[slots])
            left.add(how_it_was_left(State.read(store.files, store.layout), store.files, store.layout.streams)[0])
        columns = {path: disk.pop(path, 0) for path in layout.schema}
        tail, table, alone = (disk.pop(name, 0) for name in (TAIL, SEGMENTS, marks.MARKS))
        return StoreUsage(
            sum(int((index.table[:, HEAD] - index.table[:, LOW] + 1).sum()) for _, index in stores.values()),
            sum(map(len, segments)),
            sum(int(sealed.sum()) for sealed in segments),
            columns,
            tail,
            table,
            alone,
            sum(disk.values()),
            marks.names(files, paths),
            max(left, key=list(LastShutdown).index).value,
        )

    def refresh(self) -> bool:
        """See what was added, evicted, tagged, cleared or repaired since; return whether anything was.

        A store that went back to a mark, or was replaced by another at the same path, is opened anew. Costs what opening costs:
        some 15 ms for a million steps.

        Raises
        ------
        NotAStoreError
            The store was removed, or moved elsewhere.
        CorruptionError
            It was damaged since.
        """
        with self._lock, self._advising():
            opened = self._of.opened
            changed = self._of.look() or self._of.opened != opened
            if changed:
                self._changes += 1
                self._episodes = None
            return changed

    def episodes(self, where: str | None = None) -> EpisodeTable:
        """Return the episodes of which a step can be sampled; of the last look, and as long the same object.

        Reads one flag a row, and all rewards: some 30 ms for a million steps.

        Parameters
        ----------
        where : str, optional
            Some of them, as `EpisodeTable.select` takes it.

        Raises
        ------
        CorruptionError
            Flags or rewards are damaged.
        """
        with self._lock, self._advising():
            if self._episodes is None:
                self._episodes = self._retried(lambda: build(self._of.store, self._of.index, self.refresh))
            return self._episodes if where is None else self._episodes.select(where)

    def read(self, column: str, steps: Any) -> npt.NDArray[Any]:
        """Read rows of a column by the ids of their steps.

        Parameters
        ----------
        column : str
            Its path, such as ``"reward"`` or ``"obs/pixels"``.
        steps : (n,) int
            ``position * streams + environment``. An episode's final observation is in the row after its last step.

        Returns
        -------
        ndarray
            (n, *shape) of the column's dtype, a copy. In a compressed column, each chunk that they lie in is decoded once.

        Raises
        ------
        InputError
            There is no such column, or a row was never there.
        EvictedError
            A row is gone.
        CorruptionError
            A chunk or a file that holds a row is damaged.
        """
        layout = self._of.store.layout
        if column not in layout.schema.columns:
            raise InputError(f"there is no column {column!r}; there are {', '.join(layout.schema)}")
        ids = np.asarray(steps, np.int64).reshape(-1)
        streams, positions = ids % layout.streams, ids // layout.streams
        with self._lock:
            return self._retried(lambda: self._read_rows(column, streams, positions), lambda: self._check(streams, positions))

    def stack(self, step: int) -> Int64:
        """Return the ids of the rows that the stack of a step's observation has, the oldest first: 1 to `frame_stack`.

        Where there are fewer, the stack is filled up before them, as ``info.padding`` says. The last one is the step's own.

        Raises
        ------
        EvictedError
            No episode that the step was part of is there any more.
        """
        index, streams = self._of.index, self._of.store.layout.streams
        position, stream = divmod(step, streams)
        starts = index.starts(stream)
        if not len(starts) or position < starts[0]:
            raise EvictedError(f"step {step} is not there any more: its episode was evicted, or cleared")
        first = max(position - index.context, index.first_frame(stream, position))
        return np.arange(first, position + 1) * streams + stream

    def close(self) -> None:
        """Release the memory maps of the store's files, and with them the pages that were read; reading on maps them again."""
        with self._lock:
            self._of.close()

    def _read_rows(self, column: str, streams: Int64, positions: Int64) -> npt.NDArray[Any]:
        store, index = self._of.store, self._of.index
        values = np.zeros((len(positions), *store.layout.schema[column].shape), store.layout.schema[column].np_dtype)
        if not len(positions):
            return values
        rows = store.layout.segment_rows
        numbers = positions // rows * store.layout.streams + streams  # one number for a segment of a stream
        for number in np.unique(numbers).tolist():
            segment, stream = divmod(number, store.layout.streams)
            here = np.flatnonzero(numbers == number)
            slot = index.slot(stream, segment * rows)
            with store.lock:
                values[here] = self._of.rows(column, slot, stream, segment * rows, positions[here] % rows)
        return values

    def _check(self, streams: Int64, positions: Int64) -> None:
        """Raise an InputError where a row was never there, and an EvictedError where one is gone."""
        low, head = (self._of.index.table[streams, field] for field in (LOW, HEAD))
        for at in np.flatnonzero((positions > head) | (positions < 0))[:1].tolist():
            raise InputError(f"stream {streams[at]} has no row {positions[at]}: its newest is {head[at]}")
        for at in np.flatnonzero(positions < low)[:1].tolist():
            raise EvictedError(f"{self.path}: row {positions[at]} of stream {streams[at]} was evicted; its oldest is {low[at]}")

    @contextlib.contextmanager
    def _advising(self) -> Iterator[None]:
        """Have a CorruptionError say what tells what else is damaged."""
        try:
            yield
        except CorruptionError as error:
            raise error.advising(f"Run: diskbuffer check {self.path}") from error

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
