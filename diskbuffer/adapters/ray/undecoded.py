"""Batches on their way as they are stored: compressed chunks, where these are fewer bytes, which the receiver decodes.

A uniform draw takes whole chunks for single frames, and a stack of four and what follows it mostly lies in two chunks of four: so
stored frames are fewer bytes if they compress to less than some five eighths. Flat columns are copied row by row.
"""

from __future__ import annotations

import pickle
import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer import ReplayBuffer
from diskbuffer.adapters.ray.names import unique
from diskbuffer.adapters.ray.packing import Packed, unpack
from diskbuffer.draws import Draw
from diskbuffer.native import gather
from diskbuffer.plugin import Batch
from diskbuffer.reading.batch_reader import Planned
from diskbuffer.reading.batches.base import Request
from diskbuffer.reading.batches.pool import ArraysPool
from diskbuffer.reading.delivery import Delivery
from diskbuffer.reading.gather.gatherer import Gatherer, default_threads
from diskbuffer.reading.gather.store_tail import StoreTail
from diskbuffer.reading.gather.stored_parts import Parts, plan_of, take_parts
from diskbuffer.reading.gather.targets import Columns

Int64 = npt.NDArray[np.int64]
_KNOWN = 64  # descriptions of columns that a receiver remembers


class Undecoded(NamedTuple):
    """A batch that is not decoded: what it is to be, what was drawn, and what is stored of it."""

    shard: int
    columns: bytes  # pickled: schema, packed columns, padding
    frame_stack: int
    form: Any
    drawn: Draw
    names: Int64  # of the drawn steps, by the shard's own names
    apart: int
    parts: list[Parts]

    @property
    def nbytes(self) -> int:
        """How many bytes it is to send, about."""
        return len(self.columns) + sum(part.nbytes for part in self.parts)


def undecoded(buffer: ReplayBuffer, planned: Planned, shard: int) -> Undecoded | None:
    """Return a planned batch as it is stored; None where that is not less, as after it was decoded."""
    request, (portion,) = planned.request, planned.portions
    if not request.columns.targets[0, :, gather.CHUNK_ROWS].any():
        return None
    pool = buffer._reader.pool
    arrays = pool.take(request)
    try:
        parts: list[Parts] = []
        left = sum(memory.nbytes for memory in arrays.memories)
        for memory, plan in zip(arrays.memories, portion.plans, strict=True):
            found = take_parts(plan, memory.targets, left)
            if found is None:
                return None
            left -= found.nbytes
            parts.append(found)
    finally:
        pool.give(arrays)
    layout = buffer._store.layout
    packed = {path: (layout.chunk_rows(path), layout.chunks(path)) for path in layout.packed}
    columns = pickle.dumps(
        (request.columns.schema, request.columns.paths, packed, bool(request.columns.targets[0, 0, gather.ZEROS]))
    )
    drawn = planned.drawn._replace(notes=dict(planned.drawn.notes))
    assert isinstance(planned.apart, int)
    return Undecoded(shard, columns, request.frame_stack, request.form, drawn, planned.firsts, planned.apart, parts)


class Decoder:
    """Decode what shards send, in threads of its own; any number of callers at once."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Columns, Gatherer]] = {}
        self._lock = threading.Lock()
        self._pool = ArraysPool()
        self._delivery = Delivery(self._pool)

    def batch(self, sent: Undecoded | Packed) -> Batch:
        """Return the batch, whose steps have unique names; one that was decoded already, too.

        Raises
        ------
        CorruptionError
            A chunk is damaged, on the disk or on its way.
        """
        if isinstance(sent, Packed):
            return unpack(sent)
        columns, gatherer = self._columns(sent.columns)
        notes = {name: note.copy() for name, note in sent.drawn.notes.items()}  # what came over Ray cannot be written to
        drawn = sent.drawn._replace(notes=notes)
        arrays = self._delivery.take(Request(columns, sent.frame_stack, sent.form, drawn.size))
        width = len(columns.schema.columns)
        for memory, parts in zip(arrays.memories, sent.parts, strict=True):
            gatherer.run(plan_of(parts, memory.targets, width), memory)
        arrays.note(drawn, unique(sent.form.names(drawn, sent.names, sent.apart), sent.shard))
        arrays.finish(drawn)
        batch: Batch = self._delivery.deliver(self._delivery.send(arrays))
        return batch

    def _columns(self, description: bytes) -> tuple[Columns, Gatherer]:
        with self._lock:
            found = self._known.get(description)
            if found is None:
                schema, paths, packed, zeros = pickle.loads(description)  # from our own shards, over Ray
                columns = Columns.of(schema, packed, zeros, [StoreTail(dict.fromkeys(packed, 0), 1, 0)])
                columns = columns if columns.paths == paths else columns.select(paths)
                columns.targets[:, :, gather.CHECKSUMS] = -1  # rows' own are not sent; the chunks' are
                largest = max((rows * schema[path].row_bytes for path, (rows, _) in packed.items()), default=0)
                gatherer = Gatherer(largest, default_threads(), _describe)
                if len(self._known) >= _KNOWN:
                    self._known = {}
                found = self._known[description] = columns, gatherer
            return found


def _describe(path: str, slot: int, stream: int, first: int, last: int) -> str:  # noqa: ARG001
    return f"what a shard sent of {path!r}"
