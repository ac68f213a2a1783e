"""Reading several writers' stores as one."""

from __future__ import annotations

from diskbuffer.index.index import Index
from diskbuffer.reading.batch_reader import BatchReader
from diskbuffer.reading.gather.store_tail import StoreTail
from diskbuffer.writers.store import MultiWriterStore


class MultiWriterReader(BatchReader):
    """Bring steps of several stores into batches: one draw, one plan and one gather over all."""

    _store: MultiWriterStore

    def _read(self) -> Index:
        return self._store.read(self.frame_stack - 1)

    def _tails(self) -> list[StoreTail]:
        return self._store.tails
