"""Stores that are open to be looked at: one, or those of several writers, each followed as its writers go on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, DiskBufferError, NotAStoreError
from diskbuffer.index.fields import ENDED, FLOOR, HEAD, LOW
from diskbuffer.index.streams import Streams
from diskbuffer.reading.restore_index import read_index
from diskbuffer.schema.schema import TAG
from diskbuffer.store import directory
from diskbuffer.store.building import is_there
from diskbuffer.store.copies.marks import OF_STORE, MarkPaths
from diskbuffer.store.episode_values import stamp
from diskbuffer.store.format.layout import CHECKSUMS, SEGMENTS
from diskbuffer.store.opening import open_store
from diskbuffer.store.segment_rows import SegmentRows
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import is_held, read_holder
from diskbuffer.writers import learner_lock
from diskbuffer.writers.marks import PATHS

if TYPE_CHECKING:
    from diskbuffer.writers.store import MultiWriterStore

Int64 = npt.NDArray[np.int64]
_UNKNOWN: dict[str, Any] = {"pid": None, "host": None, "since": None}
_KNOWN = [HEAD, ENDED, LOW, FLOOR]  # of a stream: another one whenever rows or episodes are


class ReadStores(Protocol):
    """What a reader reads.

    Attributes
    ----------
    store : Store
        One store, or several with the face of one.
    index : Streams
        Its rows and episodes, as of the last look.
    opened : int
        How often it was opened: with another number, a step's id may be another step's.
    """

    store: Store
    index: Streams
    opened: int

    def look(self) -> bool:
        """See what has changed; return whether anything has."""

    def writer(self) -> dict[str, Any] | None:
        """Return who writes now, as far as is known; None where nobody does."""

    def parts(self) -> tuple[Files, MarkPaths, dict[str, tuple[Store, Streams]]]:
        """Return the directory of all, where its marks are, and each store with its rows: by its name below, "" of one alone."""

    def rows(self, column: str, slot: int, stream: int, first: int, offsets: Int64) -> npt.NDArray[Any]:
        """Read rows of a stream's segment, whose first row has the position `first`, by their offsets in it; (n, *shape)."""

    def close(self) -> None:
        """Release what is mapped; it is mapped again when it is read again."""


class OneStore:
    """One writer's store; see `ReadStores`."""

    store: Store
    index: Streams

    def __init__(self, place: Path, frame_stack: int | None) -> None:
        self._place, self._frame_stack = place, frame_stack
        self.opened = 0
        self._open()

    def _open(self) -> None:
        try:
            if not is_there(self._place):
                raise NotAStoreError(f"there is no store at {self._place}")
            store = open_store(self._place, writable=False)
        except NotAStoreError as error:
            if not self._has_copy():
                raise
            raise CorruptionError(str(error)) from error
        self.index, self.store = self._indexed(store), store
        self._values = stamp(store.files)
        self.opened += 1

    def _has_copy(self) -> bool:
        """Return whether the file that describes the store is damaged, and a repair restores it from its copy."""
        with contextlib.suppress(DiskBufferError, OSError):
            return directory.damaged_group(self._place) is not None
        return False

    def _indexed(self, store: Store) -> Streams:
        """Read which rows count."""
        index = read_index(store, (self._frame_stack or store.layout.frame_stack) - 1, Streams)
        index.begin_at(store.begins)
        return index

    def look(self) -> bool:
        """See what has changed; a store that went back to a mark, or was replaced by another, is opened anew."""
        before = self._signature()
        try:
            with self.store.lock:
                self.index = self._indexed(self.store)
            self._values = stamp(self.store.files)
        except (CorruptionError, NotAStoreError):
            self._open()
        return self._signature() != before

    def _signature(self) -> tuple[Any, ...]:
        """Return what is another one whenever something has changed that a reader tells of."""
        layout, table = self.store.layout, self.store.table
        numbers = self.index.table[:, _KNOWN].tobytes()
        tags = table.column(f"{CHECKSUMS}/{TAG}".removeprefix(f"{SEGMENTS}/")).tobytes() if TAG in layout.derived else b""
        described = (layout.salt, layout.capacity, layout.tags, layout.removals, tuple(layout.schema))
        return (numbers, self.index.begins.tobytes(), tags, self._values, described, self.store.following.history)

    def writer(self) -> dict[str, Any] | None:
        """Return who writes to it."""
        return _holder(self.store.files)

    def parts(self) -> tuple[Files, MarkPaths, dict[str, tuple[Store, Streams]]]:
        """Return the one store."""
        return self.store.files, OF_STORE, {"": (self.store, self.index)}

    def rows(self, column: str, slot: int, stream: int, first: int, offsets: Int64) -> npt.NDArray[Any]:
        """Read rows of a segment."""
        return SegmentRows(self.store, column, slot, (stream, first)).read(offsets)

    def close(self) -> None:
        """Release what is mapped."""
        with self.store.lock:
            self.store.maps.retire_all()


class WritersStores:
    """The stores of several writers, as ``ReplayBuffer(path, mode="r")`` sees them; see `ReadStores`.

    A damaged one among them is a CorruptionError.
    """

    index: Streams
    opened: int = 1

    def __init__(self, files: Files, frame_stack: int | None) -> None:
        from diskbuffer.writers.store import MultiWriterStore

        self._stores: MultiWriterStore = MultiWriterStore(files)
        self.store = cast(Store, self._stores)  # it has the same face, for all that reads
        self._context = (frame_stack or self._stores.layout.frame_stack) - 1
        self._numbers, self._values = b"", list[Any]()
        self.look()

    def look(self) -> bool:
        """See what has changed, and which writers came."""
        with self._stores.lock:
            layout, before = self._stores.layout, (self._numbers, self._values)
            self.index = self._stores.read(self._context)
            self._numbers = self.index.table[:, _KNOWN].tobytes()
            tagged = TAG in self._stores.layout.derived  # by a learner, whose files have no checksums to compare
            self._values = [stamp(member.store.files) for member in self._stores.members if member.is_there]
            return tagged or (self._numbers, self._values) != before or self._stores.layout is not layout

    def writer(self) -> dict[str, Any] | None:
        """Return one of those who write to stores, or who writes columns beside them."""
        root, names = self._stores.all_files, [member.entry.name for member in self._stores.members]
        holder = next(filter(None, (_holder(root.below(name)) for name in names)), None)
        return holder or (_UNKNOWN if is_held(root, learner_lock.LOCK) else None)

    def parts(self) -> tuple[Files, MarkPaths, dict[str, tuple[Store, Streams]]]:
        """Return the stores that are there."""
        stores = {
            member.entry.name: (member.store, cast(Streams, member.index)) for member in self._stores.members if member.is_there
        }
        return self._stores.all_files, PATHS, stores

    def rows(self, column: str, slot: int, stream: int, first: int, offsets: Int64) -> npt.NDArray[Any]:
        """Read rows of a segment."""
        if column in self._stores.layout.derived:
            return self._stores.values(column, slot)[offsets]
        member, own = self._stores.find(slot)
        return SegmentRows(member.store, column, own, (stream - member.entry.first_stream, first)).read(offsets)

    def close(self) -> None:
        """Do nothing: what is mapped is small, as each writer's store is followed by its own reader."""


def _holder(files: Files) -> dict[str, Any] | None:
    return read_holder(files) or _UNKNOWN if is_held(files) else None
