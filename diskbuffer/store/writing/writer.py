"""Where rows are written: to the open segments of every stream, and to its tail.

Rows go straight into memory-mapped files: flat columns into their segment, packed ones into the tail, a ring of some chunks for
each stream. When the ring fills up, all complete chunks are compressed, in several threads, and appended to their shards. A row
counts once its segment's length says so.
"""

from __future__ import annotations

import contextlib
from functools import partial

import numpy as np
import numpy.typing as npt

from diskbuffer.store.format.checksums import settle_row
from diskbuffer.store.store import Store
from diskbuffer.store.writing.open_segments import OpenSegments
from diskbuffer.store.writing.packer import Packer
from diskbuffer.store.writing.tail import Tail

Int64 = npt.NDArray[np.int64]


class Writer:
    """Give addresses to write rows to, and pack what was written.

    Attributes
    ----------
    segments : OpenSegments
    tail : Tail
    limits : (streams,) the position before which rows may be written until `prepare` is due
    opened : list of (int, int)
        Streams and slots of segments that were opened since the owner emptied it.
    completed : list of int
        Slots of segments whose every row is written and packed, since the owner emptied it.
    """

    def __init__(self, store: Store, heads: Int64, slots: list[Int64]) -> None:
        """Open the newest segments. `heads` are the positions of the newest rows, which the owner keeps up to date."""
        layout = store.layout
        self._store, self._layout = store, layout
        self._packer = Packer(layout)
        self.segments = OpenSegments(store, self._packer.pool)
        self.tail = Tail(store, self.segments, self._packer)
        self.limits = np.zeros(layout.streams, np.int64)
        self.opened: list[tuple[int, int]] = []
        self.completed: list[int] = []
        try:
            for stream in range(layout.streams):
                self._reopen(stream, int(heads[stream]), slots[stream])
            self._complete_packed(heads)
        except BaseException:
            self.close()
            raise

    # Opening

    def _reopen(self, stream: int, head: int, slots: Int64) -> None:
        """Open again the segments that a stream's newest rows lie in, as a kill or a close left them."""
        rows, first = self._layout.segment_rows, head // self._layout.segment_rows - len(slots) + 1
        oldest_in_tail = max(0, head + 1 - self._layout.tail_rows)
        for ordinal in range(max(first, oldest_in_tail // rows), first + len(slots)):
            slot = int(slots[ordinal - first])
            if ordinal < first + len(slots) - 1 and (self._store.verification.is_sealed(slot) or self._is_compact(slot)):
                continue
            self.segments.reopen(stream, ordinal, slot)
        for path in self._layout.packed:
            self.tail.restore(path, stream, head)
        self._set_limit(stream)

    def _is_compact(self, slot: int) -> bool:
        """Return whether a kill came between sealing's renames and its note in the table; it is sealed again then."""
        files, layout = self._store.files, self._layout
        return any(files.stat(layout.data_file(p, slot)).st_size != layout.live_bytes(p) for p in layout.packed)

    # Room

    def prepare(self, heads: Int64, only: int | None = None) -> None:
        """Make room for two more rows in every stream, or in one: pack what is complete, open segments.

        `heads` are the positions of the newest rows. An error leaves everything as it was, but for what was packed.
        """
        streams = range(self._layout.streams) if only is None else (only,)
        failed = self._has_failed()
        runs = self.tail.complete_runs(heads)
        half = (self._layout.tail_rows if self._layout.packed else self._layout.segment_rows) // 2
        if failed or not self._packer.worth_a_thread(runs) or self.tail.room(heads) < half // 2:
            self._packer.pack(runs)
        else:
            self._packer.begin(runs)
        self._complete_packed(heads)
        for stream in streams:
            head = int(heads[stream])
            self._reserve(stream, head)
            if only is None:
                self.segments.make_ahead(stream, head)
            if only is None or self._layout.packed:
                self.limits[stream] = min(self.limits[stream], head + 2 + half)  # then half a tail is packed, or a segment made
            if (end := int(self.segments.first_ends[stream])) > head:
                self.limits[stream] = min(self.limits[stream], max(end + 1, head + 3))  # then that segment is complete

    def _has_failed(self) -> bool:
        """Return whether the disk failed what was packed beside calls: it is tried again at once, as there may be room by now."""
        try:
            self._packer.finish()
        except OSError:
            return True
        return False

    def _reserve(self, stream: int, head: int) -> None:
        """Open the segments that the two rows after the newest fall into, where they are not open."""
        size = self._layout.segment_rows
        for ordinal in range(max(0, head + 1) // size, (head + 2) // size + 1):
            if ordinal not in self.segments.of(stream):
                self.opened.append((stream, self.segments.open(stream, ordinal)))
        self._set_limit(stream)

    def _set_limit(self, stream: int) -> None:
        self.limits[stream] = min(self.segments.end(stream), self.tail.end(stream))

    # Rows

    def settle_newest(self, heads: Int64) -> None:
        """Leave nothing at each stream's newest row of a step that failed."""
        layout = self._layout
        for stream in np.flatnonzero(heads >= 0).tolist():
            head = int(heads[stream])
            settle_row(layout.schema, layout.salt, stream, head, partial(self._newest_row, stream, head))

    def _newest_row(self, stream: int, head: int, path: str) -> npt.NDArray[np.uint8]:
        """View a stream's newest row in a column, (row_bytes,)."""
        if path in self._layout.chunks_of:
            return self.tail.row(path, stream, head)
        segment, rows = self.segments.at(stream, head), self._layout.segment_rows
        row: npt.NDArray[np.uint8] = segment.flats[path].array(np.uint8, (rows, self._layout.schema[path].row_bytes))[head % rows]
        return row

    # Packing

    def pack(self, heads: Int64) -> None:
        """Compress every complete chunk that is still in the tail only, and append it to its shard, now."""
        self._has_failed()  # what it was is packed now, or is an error now
        self._packer.pack(self.tail.complete_runs(heads))
        self._complete_packed(heads)

    def _complete_packed(self, heads: Int64) -> None:
        """Write no more to segments whose every row is written and packed.

        A row is written once there is another after it: only then is what was done there known.
        """
        until = self.tail.packed_until(heads)
        for stream in np.flatnonzero(self.segments.first_ends <= until).tolist():  # a few, of many environments
            self.completed += self.segments.drop_before(stream, int(until[stream]))

    # Closing

    def publish(self, heads: Int64) -> None:
        """Write incomplete chunks to their shards, filled up with zeros, for readers that do not know of the tail."""
        self.pack(heads)
        for stream, head in enumerate(heads.tolist()):
            for path, _, first, rows in self.tail.unpacked(stream, head):
                if len(rows):
                    segment = self.segments.at(stream, first)
                    segment.shards[path].publish(rows, first - segment.first_row)

    def close(self) -> None:
        """Stop the threads. Segments made ahead that no row came into are removed."""
        with contextlib.suppress(OSError):
            self._packer.finish()
        self._packer.close()
        self.segments.close()
