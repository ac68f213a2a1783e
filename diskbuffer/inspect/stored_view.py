"""A look at a store of format 2, over the core's light reader of it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, FormatError, NotAStoreError
from diskbuffer.index.index import Index
from diskbuffer.inspect.episodes import EpisodeTable, build
from diskbuffer.inspect.view import StoreView
from diskbuffer.reading.damaged_reader import DamagedReader
from diskbuffer.reading.light_reader import LightReader
from diskbuffer.schema import TAG
from diskbuffer.storage import lock
from diskbuffer.storage.copies import marks
from diskbuffer.storage.format.layout import FORMAT
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files


def writer_of(files: Files) -> dict[str, Any] | None:
    """Return who writes to a store: ``pid``, ``host``, ``since``, as far as is known; None where nobody does."""
    if not lock.is_held(files):
        return None
    return {name: (lock.read_holder(files) or {}).get(name) for name in ("pid", "host", "since")}


class StoredView(StoreView):
    """Look at a store of format 2; see `StoreView`."""

    format = FORMAT
    marks_directory = marks.MARKS

    def _open(self) -> None:
        self.damage = None
        try:
            self._take(LightReader(self.path, self._frame_stack))
        except CorruptionError as error:
            self._open_remains(str(error))

    def _open_remains(self, damage: str) -> None:
        path = self._directory(damage)
        self.damage, self._seen = damage, self._stamp()  # before it is read: what changes meanwhile is looked at again
        self._take(DamagedReader(path, self._frame_stack))

    def _take(self, light: LightReader) -> None:
        self._light = light
        self._history = self._light.store.manifest.state.history
        self._listed: tuple[tuple[Any, ...], EpisodeTable] | None = None
        self._seen_last = self._signature()

    @property
    def store(self) -> Store:
        """The store, opened to read."""
        return cast(Store, self._light.store)  # it has the same face, for all that looks

    @property
    def index(self) -> Index:
        """Its environments, as of the last look."""
        return self._light.index

    @property
    def writer(self) -> dict[str, Any] | None:
        """Who writes to the store now: ``pid``, ``host``, ``since``, as far as is known; None where nobody does."""
        return writer_of(self._light.store.files)

    @property
    def left(self) -> str:
        """How the last writer left it: "clean", "killed", "power loss"."""
        session, boot = self._light.store.manifest.state.session, self._light.store.files.boot_id()
        return "clean" if session.closed else "killed" if boot and session.boot == boot else "power loss"

    @property
    def marks(self) -> tuple[str, ...]:
        """Names of its marks, the oldest first."""
        return marks.names(self._light.store.files)

    @property
    def firsts(self) -> npt.NDArray[np.int64]:
        """The position of the oldest row of each environment that a step can be sampled with, (environments,) int64.

        Clearing leaves the newest row, by which a reset is known; it belongs to no step.
        """
        found, index = self.lows, self.index
        environments, starts, began, _ = index.sampled_episodes()
        environments, oldest = np.unique(environments, return_index=True)
        found[environments] = np.maximum(found[environments], np.maximum(began, starts - index.context)[oldest])
        return found

    def segments(self) -> tuple[int, int]:
        """Return how many segments hold rows, and how many of them are sealed."""
        with self._lock, self._light.store.lock:
            store, index = self._light.store, self._light.index
            environments = np.flatnonzero(self.heads >= 0)
            _, _, numbers = index.segments_from(environments, self.lows[environments])
            return len(numbers), int(store.manifest.state.is_sealed(numbers // store.layout.lanes).sum())

    def refresh(self) -> bool:
        """See what was added, evicted, tagged or cleared since; return whether anything was. Costs what has come."""
        with self._lock:
            if self.damage is not None and self._stamp() == self._seen:
                return False
            try:
                self._light.refresh()
            except (CorruptionError, NotAStoreError):
                self._open_anew()
                return True
            if self.damage is not None or self._is_another():
                self._open_anew()
                return True
            before, self._seen_last = self._seen_last, self._signature()
            return self._seen_last != before

    def _open_anew(self) -> None:
        before = self._light
        try:
            self._open()
        except FormatError:
            raise NotAStoreError(f"{self.path} is another store by now, of another format; open it again") from None
        before.close()

    def _signature(self) -> tuple[Any, ...]:
        """Return what is another one whenever something has changed that this tells of."""
        index, layout = self._light.index, self._light.store.layout
        described = (layout.salt, layout.capacity, layout.tags, layout.removals, tuple(layout.schema))
        return id(index), index.version, described, self._tags()

    def _tags(self) -> bytes:
        """Return the numbers of all episodes' tags."""
        if TAG not in self._light.store.layout.derived:
            return b""
        return self._light.retried(lambda: self._build().tag.tobytes())

    def _list(self) -> EpisodeTable:
        try:
            return self._light.retried(self._build)
        except CorruptionError as error:
            if self.damage is not None:
                raise
            self._open_remains(str(error))
            return self._light.retried(self._build)

    def _build(self) -> EpisodeTable:
        return build(self._light.store, self._light.index)

    def episodes(self) -> EpisodeTable:
        """Return the episodes of which a step can be sampled; of the last look, and as long the same object."""
        with self._lock:
            before = id(self._light.index), self._light.index.version, self._seen_last
            if self._listed is None or self._listed[0] != before:
                found = self._list()
                self._listed = (id(self._light.index), self._light.index.version, self._seen_last), found
            return self._listed[1]

    def read(self, column: str, steps: Any) -> npt.NDArray[Any]:
        """Read rows of a column by step ids, as `StoreView.read` does."""
        with self._lock:
            found = self._light.read(column, steps)
            if self.damage is None:
                self._light.store.manifest.follow()
            if self._is_another():
                self._open_anew()
            return found

    def _is_another(self) -> bool:
        """Return whether the store went back to a mark: what a step's id names may be another step."""
        return self._light.store.manifest.state.history != self._history

    def let_go(self) -> None:
        """Give back the memory maps of segments, and with them the pages that were read; who reads on maps them again."""
        with self._lock, self._light.store.lock:
            self._light.store.maps.retire_all()
