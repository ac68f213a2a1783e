"""The streams as logs that grow at one end and are evicted at the other: room for rows before, bookkeeping after."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.index.fields import FLOOR, HEAD, LOW
from diskbuffer.index.index import Index
from diskbuffer.native.retention import Retention
from diskbuffer.recording.flush import Flush
from diskbuffer.runtime.signals import Interruptible
from diskbuffer.schema.schema import CHECKSUM
from diskbuffer.store.copies import snapshots
from diskbuffer.store.format.checksums import TIME
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files
from diskbuffer.store.writing.open_segments import Places
from diskbuffer.store.writing.sealer import Sealer
from diskbuffer.store.writing.writer import Writer

Int64 = npt.NDArray[np.int64]


class StreamLog:
    """Own the writer, the sealer and the retention of a store that is open for writing; keep its index up to date.

    What is more than the capacity is given up with each step, step by step. A segment is evicted once every row of it was, and
    as many behind it as the stack of the next step reaches back. So the disk has at most the capacity, and of every stream one
    segment and a stack; and what was cleared, until it is flushed.

    Attributes
    ----------
    added : int
        Steps ever added.
    """

    def __init__(self, store: Store, index: Index) -> None:
        self._store, self._index = store, index
        self._streams, self._rows = store.layout.streams, store.layout.segment_rows
        self.sealer = Sealer(store)
        self.retention = Retention(index.table, store.firsts, index.losses, index.context, self._rows)
        try:
            self.writer = Writer(store, index.heads, [index.slots(s) for s in range(self._streams)])
            self.flush = Flush(store, index, self.writer, self.sealer)
            self._follow_writer()
            self.count()
            self._seal_the_rest()
            self._index.begin_at(store.begins)
            self._keep(store.layout.capacity, self._times(store.layout.capacity))
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """End the threads, and close what is open, where opening the store failed."""
        self.sealer.stop()
        if hasattr(self, "writer"):
            self.writer.close()
        self.retention.detach()

    def _seal_the_rest(self) -> None:
        """Queue segments that were complete, and not sealed yet, before the store was opened."""
        opened = self.writer.segments.slots()
        for stream in range(self._streams):
            for slot in self._index.slots(stream).tolist():
                if slot not in opened and not self._store.verification.is_sealed(slot):
                    self.sealer.put(slot)

    def count(self) -> None:
        """Count what was added, by the index."""
        self.added = self._index.added()

    @property
    def limits(self) -> Int64:
        """The positions before which rows may be written; then `make_room` is due, (streams,)."""
        return self.writer.limits

    @property
    def places(self) -> Places:
        """Where rows are written."""
        return self.writer.segments.places

    def make_room(self, stream: int) -> None:
        """Make room for a step in a stream, or in all with -1. Before anything is recorded: it may fail."""
        try:
            self.writer.prepare(self._index.heads, stream if stream >= 0 and self._streams > 1 else None)
        finally:
            self._follow_writer()

    def pack(self) -> None:
        """Queue every complete segment for sealing."""
        try:
            self.writer.pack(self._index.heads)
        finally:
            self._follow_writer()

    def _follow_writer(self) -> None:
        """Note which segments the writer opened, and which are complete."""
        while self.writer.opened:
            self._index.add_slot(*self.writer.opened.pop(0))
        while self.writer.completed:
            slot = self.writer.completed.pop(0)
            self._note_what_came_before(slot)
            self.sealer.put(slot)

    def evict(self) -> None:
        """Evict segments whose rows are not needed any more; one that is not packed yet at a later step, if the disk fails."""
        table, behind = self._index.table, self._rows + self._index.context
        due = np.flatnonzero(table[:, FLOOR] - table[:, LOW] >= behind).tolist()
        cleared = self._store.cleared.tolist() if due else []
        for stream in due:
            while (low := int(table[stream, LOW])) + behind <= min(table[stream, FLOOR], table[stream, HEAD]):
                if self.writer.segments.has(stream, low):
                    try:
                        self.pack()
                    except OSError:
                        return
                if self.writer.segments.has(stream, low):
                    break
                self._drop_oldest(stream, was_cleared=low + self._rows <= cleared[stream])

    def _drop_oldest(self, stream: int, *, was_cleared: bool) -> None:
        self._note_what_came_before(int(self._index.slots(stream)[1]))  # while the index still knows
        slot = self._index.drop_segment(stream)
        self.sealer.forget(slot)
        if was_cleared:
            self._store.evict_when_flushed(slot)
        else:
            self._store.evict(slot)

    def clear(self) -> None:
        """Drop every step; the newest rows must be episodes' last. As a whole, or not at all."""
        self._store.begin_at(self._index.heads + 1)
        self._index.begin_at(self._store.cleared)
        self.retention.recount()
        self.evict()

    def resize(self, capacity: int | None) -> None:
        """Change the capacity, and evict what is too old for it."""
        times = self._times(capacity)  # first: it may fail
        self._store.resize(capacity, self._index.table[:, LOW])
        self._keep(capacity, times)

    def _keep(self, capacity: int | None, times: list[Int64]) -> None:
        """Keep so many steps from now on, of those that were added at these times."""
        each = self._each
        self.retention.set_capacity(capacity // self._streams if capacity is not None and each else capacity, each)
        for stream, runs in enumerate(times):
            self.retention.restore(stream, runs)
        self.retention.set_time(max((int(runs[-1].sum()) for runs in times if len(runs)), default=0))
        self.retention.give_up()
        self.evict()

    @property
    def _each(self) -> bool:
        """Whether each stream keeps a part of the capacity, whatever the others add."""
        return self._store.layout.capacity_each or self._streams == 1

    def _times(self, capacity: int | None) -> list[Int64]:
        """Return when the steps of each stream were added, (n, 2), as `Retention.restore` takes it: those of which it matters.

        Of each stream alone, and without a capacity, that is the newest step. Rows have the lower half of the time that it was.
        """
        index, times = self._index, [np.zeros((0, 2), np.int64) for _ in range(self._streams)]
        streams = np.flatnonzero(index.steps())
        for stream, last in zip(streams.tolist(), index.recent(streams, np.zeros_like(streams))[0][1], strict=True):
            if capacity is None or self._each:
                time = int(index.values_at(stream, last[None], self._times_in)[0])
                times[stream] = np.array([[time, 1]], np.int64)
                continue
            first, head = index.table[stream, [FLOOR, HEAD]].tolist()
            steps = np.delete(np.arange(first, head), index.starts(stream)[1:] - 1 - first)
            times[stream] = self._times_of(stream, steps)
        near = int(times[streams[0]][-1, 0]) if len(streams) else 0  # all others are less than 2**31 ticks from it
        for runs in times:
            runs[:, 0] = near + 2**32 + (runs[:, 0] - near).astype(np.int32).astype(np.int64)
        return times

    def _times_of(self, stream: int, steps: Int64) -> Int64:
        """Return when steps of a stream were added, (n, 2): when the first of some was, and how many were, one tick apart.

        Of a segment whose last step is as many ticks later as there are steps, no others are read: each takes one at least.
        """
        segments = np.arange(steps[0] // self._rows + 1, steps[-1] // self._rows + 1)
        begins = np.unique(np.append(0, np.searchsorted(steps, segments * self._rows)))
        lasts = np.append(begins[1:], len(steps)) - 1
        words = partial(self._index.values_at, stream, values=self._times_in)
        times = words(steps[np.stack([begins, lasts], axis=1).ravel()]).reshape(-1, 2)
        runs = list[Int64]()
        for begin, last, (time, until) in zip(begins.tolist(), lasts.tolist(), times.tolist(), strict=True):
            if until - time == last - begin:
                runs.append(np.array([[time, last - begin + 1]], np.int64))
            else:
                each = words(steps[begin : last + 1]).astype(np.int64)
                runs.append(np.stack([each, np.ones_like(each)], axis=1))
        return np.concatenate(runs)

    def _times_in(self, slot: int) -> npt.NDArray[np.uint32]:
        """View when the rows of a segment were added.

        Those of one that is sealed are not verified: a time that is wrong changes what is evicted first, and nothing else.
        """
        store, layout = self._store, self._store.layout
        if not store.verification.is_sealed(slot):
            return np.asarray(store.values(CHECKSUM, slot)[:, TIME])
        mapped = store.files.map(layout.data_file(CHECKSUM, slot), layout.flat_bytes(CHECKSUM), writable=False)
        return np.asarray(mapped.array(np.uint32, (layout.segment_rows, *layout.schema[CHECKSUM].shape))[:, TIME])

    def _note_what_came_before(self, slot: int) -> None:
        """Note what only the segments before a slot tell, for when they are gone; if they are, it was noted then."""
        table = self._store.table
        stream, first = table.identity(slot)
        if first != self._index.table[stream, LOW]:
            table.note_before(slot, self._index.steps_before(stream, first), self._index.episode_of(stream, first))

    def sync(self) -> None:
        """Sync every row that there is to the disk. The store's lock must not be held.

        Raises
        ------
        ClosedError
            The store is being closed by another thread, or was.
        """
        with Interruptible():
            with self._store.lock:
                self.flush.refuse_closed()
                self.pack()  # what is in the tail only is copied each time
            self.flush.sync()

    def require_place(self) -> None:
        """Raise a NotAStoreError where the store was moved, removed or replaced by another."""
        self._store.durability.refuse_to_write_elsewhere()

    def copy_to(self, files: Files, number: int = 0) -> None:
        """Build a copy of the store as it is now in the directory of `files`, whole and synced. `number` is a mark's."""
        snapshots.build(self._store, self.writer, self._pause, files, number)

    def _pause(self) -> Int64:
        """Bring everything but what is open to the state of a close, so that it can be copied; return the newest rows' positions.

        The store's lock must be held from before this until the copy is made.
        """
        self.flush.refuse_closed()
        self.pack()
        self.writer.settle_newest(self._index.heads)
        return self._index.heads.copy()

    @property
    def unsealed(self) -> int:
        """Segments that are complete and not sealed yet."""
        return self.sealer.waiting

    @property
    def seal_error(self) -> Exception | None:
        """Why sealing paused, or what was wrong with a segment that stays as it is; None if nothing."""
        return self.sealer.error

    def wait_for_sealing(self) -> None:
        """Block until every complete segment is sealed; raise what keeps one from it. The store's lock must not be held."""
        self.sealer.wait()

    def close(self, lock: AbstractContextManager[Any]) -> None:
        """Leave the store so that its columns hold every row, and everything is on the disk.

        `lock` is the store's: a draw meanwhile, which may write priorities, comes before or not at all.
        """
        try:
            with lock:
                self.flush.begin_closing()
            self.sealer.stop()
            with lock:
                self.writer.settle_newest(self._index.heads)
                self.writer.publish(self._index.heads)
                self._follow_writer()
            self.flush.sync_last()
            with lock:
                self.sealer.seal_synced()
                self._store.note_closed()
        finally:
            self.writer.close()
            self.retention.detach()
