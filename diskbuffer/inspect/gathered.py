"""A look at what is at a path: a store, or the stores of several writers as one, for which it imports PyTorch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy.typing as npt

from diskbuffer.bucket import Bucket, place_of
from diskbuffer.errors import CorruptionError
from diskbuffer.gathering.description import is_gathering
from diskbuffer.inspect import stored_view, view
from diskbuffer.inspect.rows import SegmentRows
from diskbuffer.inspect.stored_view import StoredView
from diskbuffer.inspect.view import Int64, StoreView
from diskbuffer.storage.format.layout import Layout as Layout2
from diskbuffer.storage.manifest import Manifest
from diskbuffer.storage.opening import is_format_2
from diskbuffer.store import directory
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.store import Store
from diskbuffer.store.system.bucket_files import BucketFiles
from diskbuffer.store.system.files import Files

if TYPE_CHECKING:
    from diskbuffer.gathering.store import GatheredStore


def open_view(path: str | os.PathLike[str] | Bucket, frame_stack: int | None = None) -> StoreView:
    """Look at what is at a path: a store, or the stores of several writers as one; see `StoreView`."""
    place = place_of(path)
    files = BucketFiles(place) if isinstance(place, Bucket) else Files(place)
    if is_format_2(files):
        return StoredView(place, frame_stack)
    several = is_gathering(files)
    return (GatheredView if several else StoreView)(place, frame_stack)


def read_layout(root: Path) -> Layout | Layout2:
    """Return what a store's metadata say of it, whatever else is damaged."""
    return Manifest(Files(root)).state.layout if is_format_2(root) else directory.read_metadata(Files(root))[0]


def writer_at(root: Path) -> dict[str, Any] | None:
    """Return who writes to the store at a path: ``pid``, ``host``, ``since``, as far as is known; None where nobody does."""
    files = Files(root)
    return stored_view.writer_of(files) if is_format_2(root) else view.writer_of(files)


class GatheredView(StoreView):
    """Look at the stores of several writers, as ``ReplayBuffer(path, mode="r")`` sees them; see `StoreView`.

    A damaged one among them is a CorruptionError.
    """

    def _open(self) -> None:
        from diskbuffer.gathering.store import GatheredStore  # which imports PyTorch

        files = BucketFiles(self.path) if isinstance(self.path, Bucket) else Files(self.path)
        self._stores: GatheredStore = GatheredStore(files)
        self._episodes = None
        self._store = cast(Store, self._stores)  # it has the same face, for all that reads
        with self._stores.lock:
            self._index = self._stores.read(self.frame_stack - 1)

    def _open_remains(self, damage: str) -> None:
        raise CorruptionError(damage)

    def refresh(self) -> bool:
        """See what was added, evicted, tagged or cleared since, and which writers came; return whether anything was."""
        with self._lock, self._stores.lock:
            before, columns = (self._index, self._index.version), self.layout
            self._index = self._stores.read(self.frame_stack - 1)
            changed = (self._index, self._index.version) != before or self.layout is not columns
            if changed:
                self._episodes = None
            return changed

    def _segment(self, column: str, slot: int, stream: int, first: int, offsets: Int64) -> npt.NDArray[Any]:
        if column in self.layout.derived:
            return self._stores.values(column, slot)[offsets]
        member, own = self._stores.find(slot)
        return SegmentRows(member.store, column, own, (stream - member.entry.first_stream, first)).read(offsets)

    def let_go(self) -> None:
        """Do nothing: what is mapped is shared by all readers of these stores."""
