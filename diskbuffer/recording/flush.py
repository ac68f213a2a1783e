"""Bringing rows to the disk, while others add and sample."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import ClosedError
from diskbuffer.index.index import Index
from diskbuffer.runtime.signals import Interruptible
from diskbuffer.store.store import Segment, Store
from diskbuffer.store.system.files import one_sync_at_a_time
from diskbuffer.store.tail_copy import CopyNote, Unpacked
from diskbuffer.store.writing.sealer import Sealer
from diskbuffer.store.writing.writer import Writer

Int64 = npt.NDArray[np.int64]

_AT_ONCE = 1024**2  # bytes of the tail that are copied while the store's lock is held, some 0.2 ms
_OF_A_STREAM = 32 * 1024  # that take as long as what is done for a stream anyway
_WAITING = 256 * 1024**2  # bytes of cleared rows that may wait for a flush
_LOOKS = 4  # at rows, in which steps may be cleared, before nobody may
_PAUSE = 0.2e-3  # seconds in which others, who wait for the lock, get it


class Flush:
    """Sync every row that there is. One at a time; the store's lock must not be held, and is taken for some 0.2 ms at a time.

    Each stream is brought to the disk as it was at one moment, but not all at the same.
    """

    def __init__(self, store: Store, index: Index, writer: Writer, sealer: Sealer) -> None:
        self._store, self._index, self._writer, self._sealer = store, index, writer, sealer
        self._one_at_a_time = threading.Lock()  # before the store's lock, never while that is held
        self._is_closing = False

    def sync(self) -> None:
        """Sync what there is; a ClosedError where the store is being closed by another thread, or was."""
        with self._one_at_a_time, Interruptible():
            self.refuse_closed()
            self._sync()

    def sync_what_is_new(self) -> None:
        """Sync, if steps were added or cleared since it was done last, or values written."""
        store, noted = self._store, self._store.durability.state
        now = tuple(self._index.heads.tolist()), tuple(store.begins.tolist()), store.episode_values.note
        if store.durability.written or noted is None or (noted.synced, noted.begins, noted.values) != now:
            with one_sync_at_a_time():
                self.sync()

    def sync_if_much_waits(self) -> None:
        """Sync where much of the disk, or of what is free there, is given back by that; if it fails, give that back anyway."""
        store, waiting = self._store, self._store.retired_bytes
        if not waiting or store.holds_lock():  # as in a signal's handler
            return
        try:
            if waiting > min(_WAITING, store.files.free_bytes() // 2):
                self.sync()
        except OSError:  # a full disk, above all: a power loss does not undo this clear then
            retired = list(store.retired)
            for room in (0, 1):  # segments that go before the note, if it must be: for it to have a place
                self._give_back(retired[:room])
                with contextlib.suppress(OSError):
                    store.durability.note_gone(store.cleared)  # or what is given back would be missed
                    self._give_back(retired)
                    return

    def refuse_closed(self) -> None:
        """Raise a ClosedError where `begin_closing` was called."""
        if self._is_closing:
            raise ClosedError(f"{self._store.root} was closed; open it again")

    def begin_closing(self) -> None:
        """Refuse to sync from now on; the store's lock must be held."""
        self._is_closing = True

    def sync_last(self) -> None:
        """Sync once more, after `begin_closing`, and after one that may be under way."""
        with self._one_at_a_time:
            self._sync()

    def _sync(self) -> None:
        store, heads, slots = self._store, np.full(self._store.layout.streams, -1, np.int64), set[int]()
        with contextlib.suppress(OSError):  # it goes on as it is
            store.episode_values.compact(store.lock, self._index.episode_ids)
        with store.lock:
            store.write_description_again()
            values = store.episode_values.note  # before it is known which rows there are: of no later ones
        begins, retired, tail = self._captured(heads, slots)
        slots.update(self._sealer.slots())
        layout = store.layout
        store.files.sync_all(layout.data_file(path, slot) for slot in sorted(slots) for path in layout.schema.recorded)
        store.sync(heads, begins, tail, values)
        self._give_back(retired)

    def _give_back(self, retired: list[Segment]) -> None:
        """Give the disk space of cleared segments back, which takes a dozen files to be removed for each."""
        for segment in retired:
            with self._store.lock:
                self._store.evict_flushed(segment)
            time.sleep(_PAUSE)

    def _captured(self, heads: Int64, slots: set[int]) -> tuple[Int64, list[Segment], CopyNote | None]:
        """Return what counted when rows were looked at: if some were cleared meanwhile, all are again, in the end in one go."""
        store = self._store
        for look in range(_LOOKS + 1):
            with store.lock if look == _LOOKS else nullcontext():
                cleared, begins = store.cleared, store.begins
                tail = store.copy_tail(self._unpacked(heads, slots))
                with store.lock:
                    retired = list(store.retired)
                    if (store.cleared == cleared).all():
                        break
        return begins, retired, tail

    def _unpacked(self, heads: Int64, slots: set[int]) -> Iterator[list[Unpacked]]:
        """Yield what is in the tail only, and note what belongs to it: the newest row of each stream, and open segments."""
        stream, streams = 0, len(heads)
        while stream < streams:
            some, left = list[Unpacked](), _AT_ONCE
            with self._store.lock:
                while left > 0 and stream < streams:
                    head = heads[stream] = int(self._index.heads[stream])
                    slots.update(segment.slot for segment in self._writer.segments.of(stream).values())
                    rows = self._writer.tail.unpacked(stream, head)
                    left -= _OF_A_STREAM + sum(part.rows.nbytes for part in rows)
                    some += rows
                    stream += 1
            yield some
            if stream < streams:
                time.sleep(_PAUSE)
