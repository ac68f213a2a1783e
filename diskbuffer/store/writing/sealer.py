"""Sealing complete segments, in a thread of its own: recompressed, synced, checksums noted.

Rows are safe from a kill long before; sealing is for the disk space, for faster reads, and for power loss. It works a third of
the time at most, unless it is waited for, so it lags behind where steps come in faster than about 20,000 Atari frames a second,
and catches up afterwards, also after the store was opened again. Segments that wait are brought to the disk together, as a disk
takes hardly longer for many files than for one. Where no column is packed, sealing makes no file smaller, and begins when eight
segments wait: its work would hold up `add` as often as they come. Where the disk is full, or fails, it pauses until something
else is complete, or until it is waited for.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.runtime import threads
from diskbuffer.runtime.signals import Interruptible, look
from diskbuffer.store.format import codec
from diskbuffer.store.segments.shard import Recode, write_sealed
from diskbuffer.store.store import Store
from diskbuffer.store.writing.compression import Compression, unknown

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Waiting = tuple[int, tuple[int, int]]  # a slot, and whose rows it holds: (stream, position of the first)

_NICE = 10  # the learner and the sampler come first ...
_RESTS = 2  # ... and a nice thread still takes memory and cache from them: seconds of rest for each of work
_LATE = 2  # segments of each stream that may wait before speed counts more than the size of files
_TOGETHER, _TOGETHER_BYTES = 8, 64 * 1024**2  # segments that are brought to the disk at once, and what their frames may be


@dataclass(frozen=True)
class _Written:
    """A segment whose sealed shards are written, and not in their places yet: by column, the files and all checksums."""

    segment: Waiting
    temporary: dict[str, str]
    checksums: dict[str, int]


class Sealer:
    """Seal slots in the order in which they were completed.

    The ring may evict a segment at any time and give its slot to another. So what waits is named by its rows, and whether the
    slot still holds them, all of them, is asked under the store's lock before anything is changed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[int, tuple[int, int]] = {}  # slots in their order, and whose rows they have
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._at_hand: list[Waiting] = []  # segments that are being sealed, each until it is evicted
        raw = store.layout.segment_rows * sum(store.layout.schema[path].row_bytes for path in store.layout.packed)
        self._together = self._most = max(1, min(_TOGETHER, _TOGETHER_BYTES // max(raw, 1)))
        self._damaged: set[Waiting] = set()  # complete, tried again at the next opening
        self._damage: Exception | None = None  # what was wrong with the last of these
        self._paused_by: Exception | None = None  # why the first that waits could not be sealed
        self._waited_for = 0
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._compressions: dict[str, Compression] = {}  # of packed columns, since the first of their segments

    @property
    def error(self) -> Exception | None:
        """Why it paused, or what was wrong with a segment that it leaves as it is; all of them stay readable."""
        return self._paused_by or self._damage

    @property
    def waiting(self) -> int:
        """Segments that are complete and not sealed yet."""
        return len(self.slots())

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return, by packed column, how it is compressed; see `Compression.figures`."""
        layout, known = self._store.layout, self._compressions
        return {p: known[p].figures() if p in known else unknown(layout.schema[p]) for p in layout.packed}

    def put(self, slot: int) -> None:
        """Queue a slot, which holds a complete segment, for sealing. The store's lock must be held."""
        rows = self._store.table.identity(slot)
        with self._lock:
            if self._waiting.get(slot) == rows:
                return
            self._waiting[slot] = rows
            self._paused_by = None  # there may be room by now
            if self._stopped:
                return  # but it is among `slots`
            if self._thread is None:
                try:
                    self._thread = threads.start(self._run, name="diskbuffer-seal")
                except RuntimeError:  # the interpreter ends, and there are no other threads any more
                    return
            self._changed.notify_all()

    def forget(self, slot: int) -> None:
        """Do not seal a slot that is evicted. The store's lock must be held."""
        with self._lock:
            self._damaged = {segment for segment in self._damaged if segment[0] != slot}
            self._at_hand = [segment for segment in self._at_hand if segment[0] != slot]
            self._waiting.pop(slot, None)
            self._changed.notify_all()

    def slots(self) -> list[int]:
        """Return the slots that are not sealed: those that wait, those at hand, and those that are damaged."""
        with self._lock:
            return [slot for slot, _ in (*self._waiting.items(), *self._at_hand, *self._damaged)]

    def wait(self) -> None:
        """Block until nothing waits; raise what made it pause."""
        while self._is_due_here():
            self._seal()
        with Interruptible(), self._lock:
            self._waited_for += 1
            self._paused_by = None
            self._changed.notify_all()
            try:
                while not self._changed.wait_for(self._is_paused_or_done, threads.LOOK_SECONDS):
                    look()
                if self._paused_by is not None:
                    raise self._paused_by
            finally:
                self._waited_for -= 1

    def _is_paused_or_done(self) -> bool:
        return bool(self._stopped or self._paused_by or (not self._waiting and not self._at_hand))

    def stop(self) -> None:
        """Finish the segments at hand and leave the others for the next opening."""
        with self._lock:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def seal_synced(self) -> None:
        """Seal what waits where no column is packed, which takes the checksums of its files alone; after `stop`.

        The store's lock must be held, and all files be synced. So opening a store that was closed verifies the rows of segments
        that were open, and not of all those that there was no time to seal.
        """
        store, layout = self._store, self._store.layout
        for slot, rows in list(self._waiting.items()) if not layout.packed else []:
            if rows != store.table.identity(slot) or store.table.length(slot) != layout.segment_rows:
                continue
            with contextlib.suppress(CorruptionError):  # it stays as it is, and the next opening tells
                store.table.note_sealed(slot, self._flat_checksums(slot))

    def _flat_checksums(self, slot: int) -> dict[str, int]:
        """Return the checksums of a slot's files of flat columns, by column."""
        store, layout = self._store, self._store.layout
        maps = {p: store.files.map(layout.data_file(p, slot), layout.flat_bytes(p), writable=False) for p in layout.flat}
        return {path: codec.checksum(mapped.array("uint8", (mapped.size,))) for path, mapped in maps.items()}

    def _rest(self, worked: float) -> None:
        with self._lock:
            self._changed.wait_for(lambda: self._stopped or self._waited_for > 0, worked * _RESTS)

    def _is_due(self) -> bool:
        layout = self._store.layout  # as it is now: its capacity may have changed
        are_enough = not layout.is_small and len(self._waiting) >= (1 if layout.packed else self._together)
        waits = are_enough or (self._waiting and self._waited_for)
        return bool(self._stopped or (waits and not self._paused_by))

    def _is_due_here(self) -> bool:
        """Return whether somebody who waits has to seal, as there are no other threads any more."""
        with self._lock:
            return bool(self._thread is None and self._waiting and not self._stopped and not self._paused_by)

    def _is_late(self) -> bool:
        """Return whether rows come faster than they are sealed: more than two segments of each stream wait."""
        return len(self._waiting) > _LATE * self._store.layout.streams

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # macOS knows no threads by number
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # this thread's alone, on Linux
        while True:
            with self._lock:
                self._changed.wait_for(self._is_due)
                if self._stopped:
                    return
            self._seal()

    def _seal(self) -> None:
        """Seal what waits, up to so many segments that are brought to the disk together."""
        error = None
        try:
            self._seal_together()
        except Exception as failure:  # noqa: BLE001  a disk that is full, or fails: rows stay as they are
            error = failure
        with self._lock:
            if error is None:
                self._most = self._together
            else:  # in their order: those of a stream that follow must not be sealed before it
                self._waiting = dict(self._at_hand) | self._waiting
                if self._most == 1:
                    self._paused_by = error
                self._most = 1  # there may be room for one
            self._at_hand = []
            self._changed.notify_all()

    def _seal_together(self) -> None:
        written: list[_Written] = []
        try:
            while len(written) < self._most and (segment := self._take(written)) is not None:
                self._write(segment, written)
            self._put_in_place(written)
        finally:
            for each in written:
                for name in each.temporary.values():
                    self._store.files.remove(name)

    def _take(self, written: list[_Written]) -> Waiting | None:
        """Take the segment that has waited longest, if there is one; none if this is to stop, or its slot's files are at hand."""
        with self._lock:
            slot = next(iter(self._waiting), None)
            if self._stopped or slot is None or any(each.segment[0] == slot for each in written):
                return None
            segment = slot, self._waiting.pop(slot)
            self._at_hand.append(segment)
            return segment

    def _write(self, segment: Waiting, written: list[_Written]) -> None:
        """Write the sealed shards of a segment beside the live ones, and note that, if it is still there and not damaged."""
        store, layout, (slot, rows) = self._store, self._store.layout, segment
        with store.lock:
            if not self._is_there(segment) or store.table.is_sealed(slot):
                return
        store.durability.refuse_to_write_elsewhere()
        output = _Written(segment, {path: f"{layout.data_file(path, slot)}.tmp" for path in layout.packed}, {})
        written.append(output)
        try:
            for path, name in output.temporary.items():
                output.checksums[path] = self._write_shard(path, slot, rows, name)
            output.checksums.update(self._flat_checksums(slot))
        except CorruptionError as error:
            with store.lock:
                if self._is_there(segment):
                    self._set_aside(segment, error)

    def _set_aside(self, segment: Waiting, error: CorruptionError) -> None:
        with self._lock:
            self._at_hand.remove(segment)
            self._damaged.add(segment)
            self._damage = error

    def _put_in_place(self, written: list[_Written]) -> None:
        """Replace live shards by sealed ones, and note that, once they are on the disk."""
        store, layout = self._store, self._store.layout
        files = [layout.data_file(path, each.segment[0]) for each in written for path in layout.flat]
        store.files.sync_all([*(name for each in written for name in each.temporary.values()), *files])
        with store.lock:
            written = [each for each in written if self._is_there(each.segment)]
            for each in written:
                store.durability.refuse_to_write_elsewhere()
                for path, name in each.temporary.items():
                    store.files.rename(name, layout.data_file(path, each.segment[0]))
                store.maps.retire(each.segment[0])  # until somebody reads it
        if not written:
            return
        store.files.sync_all(layout.schema.recorded)  # the note must not get to the disk before what it is about
        with store.lock:
            for each in written:
                if self._is_there(each.segment):
                    store.table.note_sealed(each.segment[0], each.checksums)
        store.sync_table()

    def _write_shard(self, path: str, slot: int, rows: tuple[int, int], temporary: str) -> int:
        """Write the sealed shard of a packed column; return its checksum."""
        store, layout = self._store, self._store.layout
        compression = self._compressions.setdefault(path, Compression(layout, path))

        def recoder(shard: int, entries: Int64) -> Recode:
            compression.begin(shard, entries)
            return recode

        def recode(shard: int, entries: Int64, out: Bytes, moved: Int64) -> int:
            return compression.recode(shard, entries, out, moved, late=self._is_late())

        checksum = write_sealed(store.files, layout, path, slot, rows, temporary, recoder, self._rest)
        compression.end()
        return checksum

    def _is_there(self, segment: Waiting) -> bool:
        """Return whether a slot holds those rows, and all of them, and they are not damaged. The store's lock must be held."""
        table, (slot, rows) = self._store.table, segment
        return segment in self._at_hand and table.length(slot) == self._store.layout.segment_rows and rows == table.identity(slot)
