"""Reading several writers' stores as one."""

from __future__ import annotations

from diskbuffer.gathering.store import GatheredStore
from diskbuffer.index.index import Index
from diskbuffer.reading.bringing import Bringing
from diskbuffer.reading.gather.gatherer import Elsewhere
from diskbuffer.reading.gather.targets import Own
from diskbuffer.reading.reader import Reader
from diskbuffer.store.system.bucket_files import BucketFiles


class GatheredReader(Reader):
    """Bring steps of several stores into batches: one draw, one plan and one gather over all."""

    _store: GatheredStore

    def _read(self) -> Index:
        return self._store.read(self.frame_stack - 1)

    def _own(self) -> list[Own]:
        return self._store.own

    def _elsewhere(self) -> Elsewhere | None:
        store, files = self._store, self._store.all_files
        return Bringing(store, files, store.slots, store.verification.check) if isinstance(files, BucketFiles) else None
