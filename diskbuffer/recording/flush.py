"""Bringing rows to the disk, while others add and sample."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import ClosedError
from diskbuffer.index.index import Index
from diskbuffer.runtime.signals import Interruptible
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import one_sync_at_a_time
from diskbuffer.store.tail_copy import Unpacked
from diskbuffer.store.writing.sealer import Sealer
from diskbuffer.store.writing.writer import Writer

Int64 = npt.NDArray[np.int64]

_AT_ONCE = 1024**2  # bytes of the tail that are copied while the store's lock is held, some 0.2 ms
_OF_A_STREAM = 32 * 1024  # that take as long as what is done for a stream anyway
_PAUSE = 0.2e-3  # seconds in which others, who wait for the lock, get it


class Flush:
    """Sync every row that there is. One at a time; the store's lock must not be held, and is taken for some 0.2 ms at a time.

    Each stream is brought to the disk as it was at one moment, but not all at the same.
    """

    def __init__(self, store: Store, index: Index, writer: Writer, sealer: Sealer) -> None:
        self._store, self._index, self._writer, self._sealer = store, index, writer, sealer
        self._one_at_a_time = threading.Lock()  # before the store's lock, never while that is held
        self._is_closing = False
        self._heads: Int64 | None = None  # up to which rows were synced last

    def sync(self) -> None:
        """Sync what there is; a ClosedError where the store is being closed by another thread, or was."""
        with self._one_at_a_time, Interruptible():
            self.refuse_closed()
            self._sync()

    def sync_what_is_new(self) -> None:
        """Sync, if steps were added since it was done last, or values written."""
        if self._heads is None or self._store.durability.written or (self._heads != self._index.heads).any():
            with one_sync_at_a_time():
                self.sync()

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
        with store.lock:
            store.write_description_again()
            layout, written = store.layout, list(store.durability.written)  # a column may be removed meanwhile
        tail = store.copy_tail(self._unpacked(heads, slots))
        slots.update(self._sealer.slots())
        store.files.sync_all(layout.data_file(path, slot) for slot in sorted(slots) for path in layout.schema.recorded)
        store.sync(heads, [layout.data_file(path, slot) for path, slot in sorted(written)], tail)
        self._heads = heads

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
