"""The environments of a store as logs that grow at one end and are evicted at the other: room for rows before, bookkeeping after.

Nothing here goes over environments but arrays, and that only where something is due: room, a file that is done, eviction.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import ClosedError
from diskbuffer.index.fields import ENDED, LOW, SEGMENTS
from diskbuffer.index.index import Index
from diskbuffer.recording.log import Places
from diskbuffer.recording.segment_retention import Retention
from diskbuffer.storage.format.checksums import row_salts
from diskbuffer.storage.format.layout import HEADS_FILE, TABLE_SEGMENTS
from diskbuffer.storage.lanes import NONE
from diskbuffer.storage.opening import Opened
from diskbuffer.storage.sealer import Sealer
from diskbuffer.storage.segments import Segments
from diskbuffer.storage.store import Store
from diskbuffer.storage.writer import UNKNOWN, Completed, Next

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class RowLog:
    """Own the writer, the sealer and the retention of a store that is open for writing; keep its index up to date.

    The store's lock must be held in every call, but where another is said.

    Parameters
    ----------
    opened : Opened
        Closed by `close`.
    index : Index
        Of the environments, with every row that there is, as `read_rows` has them.

    Attributes
    ----------
    added : int
        Steps ever added. Of an environment of which nothing is left, those before the store was opened count as far as entries of
        the segment table tell.
    limits : (environments,) int64
        The positions before which rows may be written; then `make_room` is due.
    environments : int
    """

    def __init__(self, opened: Opened, index: Index) -> None:
        self._opened, self._store, self.writer, self._index = opened, opened.store, opened.writer, index
        store, layout = opened.store, opened.store.layout
        self.writer.context = index.context
        self.environments, self.limits = layout.environments, opened.writer.limits
        self.retention = Retention(layout.capacity, layout.environments, index.context, each=layout.capacity_each)
        self.sealer = Sealer(
            store.files,
            layout,
            store.manifest,
            store.maps,
            store.lock,
            partial(_rows_in, store),
            partial(_sync_sealed, store),
            opened.lock.require_place,
            store.manifest.state.last_sealed,
        )
        self._kept = dict[int, int]()  # how many segments of each file are in the index
        self._done = list[
            int
        ]()  # files that no row is written to any more, until all before them are such, as they are sealed in order
        self._dropped = list[int]()  # files without a row, of which the manifest does not say yet that they are removed
        self._gone = list[int]()  # files that are removed once the manifest is on the disk
        self._syncing = threading.Lock()  # one at a time: before the store's lock, never while it is held
        self._closing = False
        self._earlier = 0  # steps that the index does not know of
        self.added = 0
        try:
            self._restore(store.segments())
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """End the threads, and close what is open, where opening the store failed."""
        self.sealer.stop()
        self._opened.let_go()

    @property
    def places(self) -> Places:
        """Where rows are written."""
        layout, lanes, heads = self._store.layout, self.writer.lanes, self._store.heads
        for path in layout.packed:
            ring = layout.tail_rows * layout.schema[path].row_bytes
            begins = self._store.tails[path].address + ring * np.arange(self.environments)
            lanes.places[layout.recorded.index(path)] = begins[:, None]
        salt = int(row_salts(layout.salt, np.array([self._store.manifest.state.history])).view(np.uint64)[0])
        return Places(lanes.places, lanes.begins, salt, heads.address, heads.salt)

    # Opening

    def _restore(self, segments: Segments) -> None:
        """Take up what the last writer left."""
        index, entries, lanes = self._index, segments.entries, self.writer.lanes
        heads, rows = index.heads, self._opened.heads + 1
        empty = np.flatnonzero((heads < 0) & (rows > 0))  # nothing of them is left: the next row has the next position
        index.add_segments(empty, rows[empty] - 1, np.zeros(len(empty), np.int64))
        index.set_first_steps(empty, np.zeros(len(empty), np.int64))
        index.start_episodes(empty, rows[empty] - 1)
        index.advance(empty, rows[empty] - 1, np.ones(len(empty), np.bool_))
        index.drop_segments(empty, np.ones(len(empty), np.int64))
        index.dropped = 0
        newest = np.full(self.environments, -1)
        newest[entries.environments] = entries.segments
        begun = np.flatnonzero(lanes.is_open & (lanes.newest != newest))  # they have no row yet
        index.add_segments(begun, lanes.begins[begun], lanes.newest[begun])
        self._count_kept(np.concatenate([entries.segments, lanes.newest[begun]]), 1)
        self._earlier = max(0, int(entries.steps[entries.complete].max(initial=0)) - index.added())
        self.count()
        self._restore_retention(segments)
        self._put(self._opened.unsealed)

    def _restore_retention(self, segments: Segments) -> None:
        """Note which segments are evictable, and since when.

        The entries of segments that were full tell how many steps there were then. Those that were ended became evictable once
        there were rows enough behind them, and the next one's entry tells when that was: they may be kept a little longer.
        """
        entries, context = segments.entries, self._index.context
        of, ends = entries.environments, entries.ends
        complete = entries.complete
        evictable = complete & (self._index.heads[of] >= ends - 1 + context)
        added = self._added_each()
        following = np.append(complete[1:] & (of[1:] == of[:-1]) & (ends[1:] >= ends[:-1] + context), False)[: len(of)]
        later = np.where(following, np.append(entries.steps[1:], 0)[: len(of)], 0)
        steps = np.where(entries.steps > 0, entries.steps, np.where(later > 0, later, self.added))
        since = np.minimum(self._since(of[evictable], ends[evictable], steps[evictable]), added[of[evictable]])
        self.retention.restore(of[evictable], since)
        self.retention.add(of[complete & ~evictable], ends[complete & ~evictable])

    def _added_each(self) -> Int64:
        """Return how many of the steps that count for each environment's segments were added, (environments,)."""
        return self._index.added_each() if self._store.layout.capacity_each else np.full(self.environments, self.added)

    def count(self) -> None:
        """Count what was added, by the index."""
        self.added = self._index.added() + self._earlier

    # Room

    def make_room(self, rows: Int64, starts: Bools) -> None:
        """Make room for so many rows at once in each environment, (environments,), or raise before anything is recorded."""
        self._prepare(rows, starts, (self._index.table[:, ENDED] != 0) | (self._index.heads < 0))

    def reopen_newest(self, streams: Collection[int]) -> None:
        """Have the newest rows of some environments lie in open segments: once more, where theirs were ended."""
        some, closed = np.array([*streams], np.int64), np.zeros(self.environments, np.bool_)
        there = self._index.heads[some] >= self._index.table[some, LOW]
        closed[some] = there & ~self.writer.lanes.is_open[some]
        self._prepare(closed.astype(np.int64), np.zeros(self.environments, np.bool_), ~closed)

    def _prepare(self, rows: Int64, starts: Bools, is_over: Bools) -> None:
        heads = self._index.heads.copy()
        self._note_since(heads)
        try:
            self.writer.prepare(heads, Next(rows, starts, is_over, self._before), self.added)
        finally:
            self._follow_writer()
        self.retention.note(heads, self._added_each(), self._index.steps_up_to)
        lanes = self.writer.lanes
        waiting = (lanes.older != NONE) & (self.writer.evictable_since == UNKNOWN)
        evictable = lanes.begins + self._index.context
        np.minimum(self.limits, np.maximum(evictable, heads + rows) + 1, out=self.limits, where=waiting)

    def _note_since(self, heads: Int64) -> None:
        """Note how many steps there were when older segments could be evicted: exactly, so that reopening changes nothing."""
        lanes, since = self.writer.lanes, self.writer.evictable_since
        evictable = lanes.begins + self._index.context
        some = np.flatnonzero((lanes.older != NONE) & (since == UNKNOWN) & (heads >= evictable))
        since[some] = self.added - self._steps_between(some, evictable[some], heads[some])

    def _steps_between(self, environments: Int64, first: Int64, until: Int64) -> Int64:
        return self._index.steps_up_to(environments, until) - self._index.steps_up_to(environments, np.minimum(first, until))

    def _before(self, environments: Int64) -> tuple[Int64, Int64]:
        """Return where the episodes of the newest rows of some environments start, and the steps before these rows."""
        positions = np.maximum(self._index.heads[environments], 0)
        return self._index.episode_starts(environments, positions), self._index.added_each()[environments]

    def pack(self) -> None:
        """Queue every complete file for sealing."""
        try:
            self.writer.pack(self._index.heads.copy(), self.added)
        finally:
            self._follow_writer()
        self.retention.note(self._index.heads, self._added_each(), self._index.steps_up_to)

    def _follow_writer(self) -> None:
        """Note which segments the writer began, and which are complete."""
        while self.writer.begun:
            begun = self.writer.begun.pop(0)
            self._index.add_segments(begun.environments, begun.firsts, begun.numbers)
            self._count_kept(begun.numbers, 1)
        if self.writer.completed:
            done, self.writer.completed[:] = [*self.writer.completed], []
            for each in done:
                self._complete(each)
            self._put(self.writer.lanes.close_done())

    def _complete(self, completed: Completed) -> None:
        of, ends, known = completed.environments, completed.ends, completed.steps > 0
        self.retention.add(of[~known], ends[~known])
        self.retention.add_evictable(of[known], self._since(of[known], ends[known], completed.steps[known]))

    def _since(self, environments: Int64, ends: Int64, steps: Int64) -> Int64:
        """Return how many of the steps that count for segments there were when they could be evicted."""
        if not self._store.layout.capacity_each:
            return steps
        heads = self._index.heads[environments]
        behind = self._steps_between(environments, ends + self._index.context, heads)
        return np.asarray(self._index.added_each()[environments] - behind)

    def _put(self, files: Collection[int]) -> None:
        """Have files be sealed in their order, or removed, where nothing in them is kept by now."""
        self._remove([file for file in files if file not in self._kept])
        self._done = sorted([*self._done, *(file for file in files if file in self._kept)])
        oldest = min(self.writer.lanes.files, default=self.writer.lanes.next)
        ready, self._done = [file for file in self._done if file < oldest], [file for file in self._done if file >= oldest]
        if ready:
            self.sealer.put(ready)

    # Evicting

    @property
    def is_due(self) -> bool:
        """Whether there may be segments that are too old now."""
        return self.added >= self.retention.look_at

    def evict(self) -> None:
        """Evict segments that are too old now."""
        each = self._index.added_each() if self._store.layout.capacity_each else np.zeros(0, np.int64)
        environments, counts = np.unique(self.retention.due(self.added, each), return_counts=True)
        self._drop(environments, counts)
        self._finish_removing()

    def note_evictable(self, first: int, count: int) -> None:
        """Do nothing: it is noted as room is made."""

    def _drop(self, environments: Int64, counts: Int64) -> None:
        """Drop the oldest segments of environments, so many of each."""
        if len(environments) == 0:
            return
        index = self._index
        numbers = index.drop_segments(environments, counts)
        lows, heads = index.table[environments, LOW], index.heads[environments]
        self._store.heads.set_low(environments, lows)
        empty = environments[lows > heads]  # they waited for long, and their newest rows are gone, too
        index.advance(empty, index.heads[empty], np.ones(len(empty), np.bool_))
        self.writer.lanes.forget(empty, index.heads[empty] + 1)
        self._remove(self._count_kept(numbers, -1))

    def _count_kept(self, numbers: Int64, sign: int) -> list[int]:
        """Count segments that come, or go; return the files in which none is kept any more."""
        files, counts = np.unique(numbers // self._store.layout.lanes, return_counts=True)
        empty = list[int]()
        for file, count in zip(files.tolist(), (sign * counts).tolist(), strict=True):
            self._kept[file] = self._kept.get(file, 0) + count
            if self._kept[file] == 0:
                del self._kept[file]
                empty.append(file)
        return empty

    def _remove(self, files: Collection[int]) -> None:
        """Note that files are removed, but those that are written to; they are once that is on the disk, with something else."""
        files = [file for file in files if file not in self.writer.lanes.files]
        if not files:
            return
        self.sealer.forget(files)
        self._done = [file for file in self._done if file not in files]
        self._dropped += files
        self._finish_removing()
        self._note_removed()

    def _note_removed(self) -> None:
        """Note which files are removed; where the disk has no room for that, some time later, as steps were added by then."""
        if self._dropped:
            with contextlib.suppress(OSError):
                self._store.manifest.remove(self._dropped)
                self._gone += self._dropped
                self._dropped = []

    def _finish_removing(self) -> None:
        """Remove the files that the manifest on the disk says are removed, and what the segment table has of them."""
        if not self._gone or not self._store.manifest.is_synced:
            return
        gone, self._gone = self._gone, []
        self._store.maps.retire(gone)
        self._store.remove_files(gone)
        layout, state = self._store.layout, self._store.manifest.state
        for name in self._store.table.remove(state.first_file * layout.lanes):
            self._store.files.remove(name)

    def clear(self, streams: Collection[int]) -> None:  # noqa: ARG002  there are no others
        """Drop every step; the newest rows must be episodes' last. As a whole, or not at all."""
        number, index = self.writer.lanes.next, self._index
        before = index.table[:, SEGMENTS].copy()
        self.writer.clear(index.heads.copy(), self.added)
        self._follow_writer()
        self.reopen_newest(range(self.environments))  # an environment's next step is compared with its newest row
        self._store.manifest.clear(number)
        self.retention.forget(np.ones(self.environments, np.bool_))
        self._drop(np.arange(self.environments), before)
        self._remove(self.writer.lanes.close_done())

    def resize(self, capacity: int | None, *, evict: bool = True) -> None:
        """Change the capacity, and evict what is too old for it: at once, or when more is added."""
        self._store.change(capacity=capacity)
        self.retention.resize(capacity)
        if evict:
            self.evict()

    # Bringing to the disk

    def sync(self) -> None:
        """Bring every row that there is to the disk. The lock must not be held: it is taken a few times, for microseconds.

        Raises
        ------
        ClosedError
            The store is being closed by another thread, or was.
        """
        with self._syncing:
            if self._closing:
                raise ClosedError(f"{self._store.root} was closed; open it again")
            self._sync()

    def _sync(self) -> None:
        with self._store.lock:
            self._note_removed()
            self.pack()
            heads, files = self._index.heads.copy(), [*self.sealer.unsealed(), *self._done, *self.writer.lanes.files]
            packed = self.writer.tail.guard(heads)
            lanes = self._store.layout.lanes
            entries = _one_each(min(files, default=0) * lanes, self.writer.lanes.next)
        self._store.sync(files, heads + 1, entries)
        with self._store.lock:
            self.writer.tail.release(packed)
            self._finish_removing()

    @property
    def unsealed(self) -> int:
        """Files that are complete and not sealed yet."""
        return self.sealer.waiting + len(self._done)

    @property
    def seal_error(self) -> Exception | None:
        """Why sealing paused, or what was wrong with a file that stays as it is; None if nothing."""
        return self.sealer.error

    def wait_for_sealing(self) -> None:
        """Block until every complete file is sealed; raise what keeps one from it. The lock must not be held."""
        self.sealer.wait()
        with self._store.lock:
            self._finish_removing()

    def close(self, lock: contextlib.AbstractContextManager[Any]) -> None:
        """Leave the store so that its columns hold every row, and everything is on the disk.

        `lock` is the store's, which must not be held: a draw meanwhile, which may write priorities, comes before or not at all.
        """
        try:
            with lock:
                self._closing = True
            self.sealer.stop()
            with lock:
                self.writer.publish(self._index.heads.copy(), self.added)
                self._follow_writer()
            with self._syncing:
                self._sync()
                with lock:
                    self.sealer.seal_synced()
                    self.writer.close()
                    self._opened.lock.require_place()
                    self._store.manifest.close_session()
                    self._finish_removing()
        finally:
            self._opened.let_go()


def _one_each(first: int, until: int) -> list[int]:
    """Return a segment of each file of the table that has entries from one up to another."""
    return [*range(first, until, TABLE_SEGMENTS), until - 1] if first < until else []


def _rows_in(store: Store, file: int) -> Int64:
    """Return how many rows each lane of a file has that are to be sealed, (lanes,)."""
    rows, lanes = store.table.rows_in(file), store.layout.lanes
    rows[: max(0, store.manifest.state.cleared - file * lanes)] = 0
    return rows


def _sync_sealed(store: Store, files: Int64) -> None:
    """Bring table and heads to the disk, once the rows of files are there. The lock must not be held."""
    lanes, table, heads = store.layout.lanes, store.table, store.heads
    with store.lock:
        names = {name for file in files.tolist() for name in table.names(_one_each(file * lanes, (file + 1) * lanes))}
        parts = [table.read(file * lanes, (file + 1) * lanes) for file in files.tolist()]
    store.files.sync_all(sorted(names))
    with store.lock:
        synced = heads.synced
        for entries in parts:
            done = entries[entries.complete]
            np.maximum.at(synced, done.environments, done.ends)
        heads.set_synced(np.arange(store.layout.environments), synced)
    store.files.sync(HEADS_FILE)
