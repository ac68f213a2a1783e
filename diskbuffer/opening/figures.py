"""What a buffer is, in figures."""

from __future__ import annotations

from typing import Any

from diskbuffer.index.fields import LOW
from diskbuffer.opening.access import Access
from diskbuffer.reading.batch_reader import BatchReader
from diskbuffer.store.store import Store


def figures_of(store: Store, reader: BatchReader, access: Access) -> dict[str, Any]:
    """Return what `ReplayBuffer.stats` tells, but for its limiter."""
    with store.lock:
        index, layout, recorder = reader.index, store.layout, access.own_recorder
        rows = int((index.heads + 1 - index.table[:, LOW]).sum())
        log = None if recorder is None else recorder.log
        figures: dict[str, Any] = {
            "steps": len(index),
            "added": index.added(),
            "capacity": store.capacity,
            "episodes": index.count_episodes(),
            "cut_off": 0 if recorder is None else recorder.cut_offs.total,
            "n_envs": layout.n_envs,
            "segments": sum(len(index.slots(stream)) for stream in range(layout.streams)),
            "unsealed": 0 if log is None else log.unsealed,
            "seal_error": None if log is None or log.seal_error is None else str(log.seal_error),
            "raw_bytes": rows * sum(column.row_bytes for column in layout.schema.columns.values()),
            "index_bytes": index.nbytes,
            "decoder": "compiled, LZ4",
            "threads": reader.gatherer.threads,
            "compression": {} if log is None else log.sealer.figures(),
        }
    return figures | {"disk_bytes": store.disk_bytes()}
