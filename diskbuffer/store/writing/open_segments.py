"""The segments that rows are written to: of each stream the one with its newest row, and the next."""

from __future__ import annotations

import contextlib
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.store.segments.shard import LiveShard
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Map

Int64 = npt.NDArray[np.int64]
_NONE = 2**63 - 1  # where no segment is open


class Places(NamedTuple):
    """Where rows lie, and what has them count, for native code: addresses in mapped files, which `OpenSegments` keeps up to date.

    Attributes
    ----------
    addresses : (columns, streams, 2) int64
        Where the row at position 0 would lie in the older and in the newest of a stream's open segments; of packed columns, where
        its ring in the tail begins.
    begins : (streams,) int64
        The positions from which on rows are in the newest segment.
    lengths : (streams, 2, 2) int64
        Of the older and the newest segment: the address of its length in the segment table, and the seed of `length_word`.
    salt : int
        What rows' checksums start from.
    segment_rows : int
    """

    addresses: Int64
    begins: Int64
    lengths: Int64
    salt: int
    segment_rows: int


@dataclass
class OpenSegment:
    """A segment that rows are still written to, or whose last chunks are not packed yet."""

    slot: int
    first_row: int
    flats: dict[str, Map] = field(default_factory=dict)
    shards: dict[str, LiveShard] = field(default_factory=dict)


class OpenSegments:
    """Open segments, and say where they are.

    At most two of a stream are open: the older and the newest.

    Attributes
    ----------
    places : where rows lie; `Tail` puts the addresses of packed columns there
    first_ends : (streams,) the positions after each stream's first open segment, beyond all rows where it has none
    """

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store, self._layout, self._executor = store, store.layout, executor
        self._paths = tuple(self._layout.schema.recorded)
        self._open: list[dict[int, OpenSegment]] = [{} for _ in range(self._layout.streams)]
        self._ahead: dict[int, tuple[int, Future[OpenSegment]]] = {}  # next segments in the making, and their slots
        streams = self._layout.streams
        self.places = Places(
            np.zeros((len(self._paths), streams, 2), np.int64),
            np.zeros(streams, np.int64),
            np.zeros((streams, 2, 2), np.int64),
            self._layout.salt,
            self._layout.segment_rows,
        )
        self.first_ends = np.full(streams, _NONE)

    def of(self, stream: int) -> dict[int, OpenSegment]:
        """Return a stream's open segments by their number."""
        return self._open[stream]

    def at(self, stream: int, position: int) -> OpenSegment:
        """Return the open segment that a position lies in."""
        return self._open[stream][position // self._layout.segment_rows]

    def has(self, stream: int, position: int) -> bool:
        """Return whether the segment that a position lies in is written to, or not packed yet."""
        return position // self._layout.segment_rows in self._open[stream]

    def all(self) -> list[OpenSegment]:
        """Return all open segments."""
        return [segment for stream in self._open for segment in stream.values()]

    def slots(self) -> list[int]:
        """Return the slots of all open segments."""
        return [segment.slot for segment in self.all()]

    def end(self, stream: int) -> int:
        """Return the position after a stream's open segments."""
        return (max(self._open[stream], default=-1) + 1) * self._layout.segment_rows

    def flat(self, path: str, stream: int, position: int) -> npt.NDArray[Any]:
        """View the segment that a position lies in, in a flat column: (segment_rows, ...)."""
        column = self._layout.schema[path]
        shape = (self._layout.segment_rows, *column.shape)
        return self.at(stream, position).flats[path].array(column.np_dtype, shape)

    def shards(self, path: str, stream: int) -> dict[int, LiveShard]:
        """Return the shards of a stream's open segments in a packed column, by their number."""
        return {ordinal: segment.shards[path] for ordinal, segment in self._open[stream].items()}

    # Opening

    def reopen(self, stream: int, ordinal: int, slot: int) -> None:
        """Open a segment that has rows already."""
        self._attach(stream, make_segment(self._store, slot, ordinal * self._layout.segment_rows, create=False))

    def open(self, stream: int, ordinal: int) -> int:
        """Open a new segment, made ahead if it was; return its slot."""
        first_row = ordinal * self._layout.segment_rows
        slot, making = self._ahead.pop(stream, (-1, None))
        if making is None:
            slot = self._store.take_slot(stream, first_row)
        try:
            if making is None or making.exception():  # which may be over by now
                segment = make_segment(self._store, slot, first_row, create=True)
            else:
                segment = making.result()
        except BaseException:
            self._store.free.append(slot)
            raise
        self._attach(stream, segment)
        return slot

    def make_ahead(self, stream: int, head: int) -> None:
        """Ask another thread to make the files of a stream's next segment, which takes a while, from the half of this one on."""
        rows = self._layout.segment_rows
        if stream in self._ahead or head % rows < rows // 2 or head // rows + 1 in self._open[stream]:
            return
        first_row = (head // rows + 1) * rows
        with contextlib.suppress(OSError):  # there is time to try again
            slot = self._store.take_slot(stream, first_row)
            try:
                self._ahead[stream] = slot, self._executor.submit(make_segment, self._store, slot, first_row, create=True)
            except RuntimeError:  # the interpreter ends, and there are no other threads any more: it is made when it is due
                self._store.free.append(slot)

    def _attach(self, stream: int, segment: OpenSegment) -> None:
        """Direct writes of a stream, and reads, to a segment."""
        store, slot, ordinal = self._store, segment.slot, segment.first_row // self._layout.segment_rows
        addresses, begins, lengths = self.places[:3]
        addresses[:, stream, 0], lengths[stream, 0] = addresses[:, stream, 1], lengths[stream, 1]
        begins[stream], lengths[stream, 1] = segment.first_row, store.table.length_place(slot)
        for path, mapped in segment.flats.items():
            store.maps.hold(path, slot, mapped)
            before = segment.first_row * self._layout.schema[path].row_bytes
            addresses[self._paths.index(path), stream, 1] = mapped.address - before
        for path, shard in segment.shards.items():
            store.maps.hold(path, slot, shard.map)
        self._open[stream][ordinal] = segment
        self._note_first(stream)

    # Closing

    def drop_before(self, stream: int, position: int) -> list[int]:
        """Write no more to segments that end before a position or there; return their slots."""
        done = [n for n in self._open[stream] if (n + 1) * self._layout.segment_rows <= position]
        slots = [self._open[stream].pop(n).slot for n in done]
        self._note_first(stream)
        return slots

    def _note_first(self, stream: int) -> None:
        first = min(self._open[stream], default=None)
        self.first_ends[stream] = _NONE if first is None else (first + 1) * self._layout.segment_rows

    def close(self) -> None:
        """Remove segments that were made ahead, and that no row came into; write no more to the others."""
        for slot, making in self._ahead.values():
            making.exception()  # which waits for it
            with contextlib.suppress(OSError):  # the next opening does it
                self._store.remove_files(slot)
        self._ahead.clear()
        for segments in self._open:
            segments.clear()


def make_segment(store: Store, slot: int, first_row: int, *, create: bool) -> OpenSegment:
    """Open a slot's files for writing, new ones where `create` is set."""
    layout, files, segment = store.layout, store.files, OpenSegment(slot, first_row)
    store.durability.refuse_to_write_elsewhere()
    if create:
        store.durability.sync_names_of_derived()
    for path in layout.flat:
        name, size = layout.data_file(path, slot), layout.flat_bytes(path)
        segment.flats[path] = files.create_mapped(name, size) if create else files.map(name, size, writable=True)
    for path in layout.packed:
        segment.shards[path] = LiveShard(files, layout, path, slot, store.table.identity(slot), create=create)
    return segment
