"""The stores of a multi-writer store, each read by a reader of its own, with numbers of slots that hold for all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, EvictedError, LockedError, NotAStoreError
from diskbuffer.index.index import Index
from diskbuffer.reading.follow_index import IndexFollower
from diskbuffer.reading.gather.store_tail import StoreTail
from diskbuffer.store.opening import open_store
from diskbuffer.store.segments.mapped import Epoch
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import Description, Entry, refuse_strange
from diskbuffer.writers.watching import Stamp, Watched, stamp_of

Int64 = npt.NDArray[np.int64]
BLOCK = 256  # slots that a store gets numbers for at a time


class Member:
    """One writer's store.

    Attributes
    ----------
    entry : Entry
    number : int
        Among all stores.
    index : Index or None
        As of the last look; None as long as there is nothing to read.
    numbers : (slots,) int64
        The number, among all slots of all stores, of each of its own.
    tail : StoreTail, optional
        What is its own, for the gather; None where it is not there.
    watched : (n, 3) int64, optional
        What to compare with what, to see that nothing has become of it since; None where that is not known.
    """

    def __init__(self, root: Files, entry: Entry, number: int) -> None:
        self.entry, self.number = entry, number
        self._above = root.root
        self._files = Files(root.root / entry.name)
        self._store: Store | None = None
        self._follower: IndexFollower | None = None
        self.index: Index | None = None
        self.numbers: Int64 = np.empty(0, np.int64)
        self._copied: tuple[Epoch, int] | None = None  # of the store's maps, when they were last looked at
        self._moved_in: Store | None = None  # the store whose slots were last asked for
        self._stamp: Stamp | None = None  # as of the last look
        self._watching: Watched | None = None
        self.tail: StoreTail | None = None
        self.watched: Int64 | None = None

    @property
    def store(self) -> Store:
        """The open store; an EvictedError where there is none any more, of which an older index tells."""
        if self._store is None:
            raise self.removed()
        return self._store

    def removed(self) -> EvictedError:
        """Return the error of who reads what is gone."""
        return EvictedError(f"{self._files.root} was removed; refresh, and read again")

    def may_have_changed(self) -> bool:
        """Return whether a file of it was put in another's place; where not, what is `watched` tells whether anything changed."""
        return self._stamp is None or stamp_of(self._files) != self._stamp

    def look(self, common: Description, context: int) -> None:
        """See what there is by now: opened where it was not yet, forgotten where it is gone, or another's."""
        self.forget_look()
        stamp = stamp_of(self._files)
        try:
            if self.entry.removed:
                raise NotAStoreError(f"{self._files.root} was removed")
            if self._store is None:
                self._open(common, context)
            assert self._follower is not None
            watching = Watched(self.store)
            self.index = self._follower.read()
            self.watched = watching.finished(self.index)
            self._watching = watching
        except NotAStoreError:  # it is not made yet, or was removed
            self.close()
        except LockedError:  # it is being recovered, and there is nothing new
            return
        except CorruptionError:
            if self._store is None or self._store.files.is_in_place():
                raise
            self.close()
        self._stamp = stamp if self._store is None or self.watched is not None else None

    def _open(self, common: Description, context: int) -> None:
        store = open_store(Files(self._files.root), writable=False)  # what is at the path by now
        refuse_strange(common.common, store.layout, self._above)
        if store.layout.streams != self.entry.streams:
            raise NotAStoreError(f"{store.root} has {store.layout.streams} streams, and {self.entry.streams} are described")
        self._store, self._follower, self.tail = store, IndexFollower(store, context), StoreTail.of(store)

    def forget_look(self) -> None:
        """Mark everything as to be read at the next look."""
        self._stamp = self.watched = None

    def close(self) -> None:
        """Forget the store, and unmap its files, those that plans read once these are done."""
        if self._store is not None:
            self._store.close()
        self._store = self._follower = self.index = self._copied = self._watching = self.watched = self.tail = None

    def forget_rows(self) -> None:
        """Treat what was seen as unknown until the next look."""
        self._copied = None
        self.forget_look()
        if self._store is not None:
            self._store.forget_rows()

    @property
    def is_there(self) -> bool:
        """Whether there is anything to read."""
        return self._store is not None and self.index is not None

    def has_changed_maps(self) -> bool:
        """Return whether what is mapped is other than when this was last asked."""
        maps = self.store.maps
        now = maps.epoch, maps.sources.shape[1]
        changed, self._copied = self._copied is None or now[0] is not self._copied[0] or now[1] != self._copied[1], now
        return changed

    def take_moved(self) -> set[int] | None:
        """Return the slots with other rows than when this was last called; None for all, of another store or none."""
        known, self._moved_in = self._moved_in, self._store
        moved = set[int]() if self._store is None else self._store.following.take_moved()
        return moved if known is not None and known is self._store else None
