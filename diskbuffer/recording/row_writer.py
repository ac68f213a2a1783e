"""Writing whole rows after a stream's newest one, with their checksums: segment by segment, each committed before the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.index.fields import ENDED, HEAD
from diskbuffer.index.index import Index
from diskbuffer.recording.cut_offs import CutOffs
from diskbuffer.recording.stream_log import StreamLog
from diskbuffer.schema import CHECKSUM
from diskbuffer.store.format.checksums import NOT_YET, OBS, STEP, row_checksums
from diskbuffer.store.format.layout import Layout

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


class RowWriter:
    """Write rows. The store's lock must be held in every call.

    Attributes
    ----------
    cut : (streams,) bool
        Which streams were told to start an episode with their next row, and have none since.
    """

    def __init__(self, layout: Layout, log: StreamLog, index: Index, cut_offs: CutOffs) -> None:
        self._layout, self._schema, self._log, self._index = layout, layout.schema.recorded, log, index
        self._writer, self._cut_offs = log.writer, cut_offs
        self.cut: Bools = np.zeros(layout.streams, np.bool_)

    def append(
        self, env: int, head: int, rows: dict[str, Array], starts: npt.NDArray[np.int64], leads: npt.NDArray[np.int64]
    ) -> None:
        """Write rows after a stream's newest, segment by segment, each committed before the next.

        Parameters
        ----------
        env, head : int
            The stream, and the position of its newest row.
        rows : dict of str to (1 + n, ...) array
            All columns but the checksum: first what was done at the newest row, or that it is an episode's last, then n rows.
        starts : (m,) int64
            Where episodes start among these.
        leads : (k, 2) int64
            Lead-ins among these, as `Index.add_leads` takes them.
        """
        writer, index = self._writer, self._index
        rows[CHECKSUM] = np.stack([self._checksums(env, head, rows, word) for word in (OBS, STEP)], axis=1)
        if not rows["is_last"][-1]:
            rows[CHECKSUM][-1, STEP] ^= NOT_YET
        done, new_head = head, head + len(rows["is_last"]) - 1
        try:
            while done < new_head:
                n = min(self._log.make_room_for_rows(env), new_head - done)
                some = slice(done + 1 - head, done + 1 - head + n)
                if done == head and done >= 0:
                    self.put_last(env, done, {path: rows[path][:1] for path in (*self._schema.step, "is_last")})
                for path, values in rows.items():
                    writer.put(path, env, done + 1, values[some])
                done += n
                steps_before = index.steps_before(env, max(0, done - n))
                index.start_episodes(env, starts[(starts > done - n) & (starts <= done)])
                if len(leads):
                    index.add_leads(env, leads[(leads[:, 0] > done - n) & (leads[:, 0] <= done)])
                index.advance(env, done, bool(rows["is_last"][done - head]))
                writer.commit(env, done)
                self.cut[env] = False
                self._log.note_rows(env, index.steps_before(env, done) - steps_before)
        except BaseException:  # what was committed stays; if that ends within a lead-in, its rows are nobody's
            writer.take_back(env, int(index.heads[env]))
            self.undo_newest(env)
            raise

    def put_last(self, stream: int, head: int, values: dict[str, Array]) -> None:
        """Write what was done at a stream's newest row: (1, ...) of each column."""
        for path, value in values.items():
            self._writer.put_last(path, stream, head, value[0])
        self._writer.put_last_checksum(stream, head, int(self._checksums(stream, head, values, STEP)[0]))

    def _checksums(self, stream: int, first: int, rows: dict[str, Array], word: int) -> npt.NDArray[np.uint32]:
        n = len(rows["is_last"])
        return row_checksums(self._schema, self._layout.salt, stream, first, n, rows, word)

    def undo_newest(self, stream: int) -> None:
        """Write the checksum of a stream's newest row anew: rows after it were written for an episode that did not come."""
        head = int(self._index.heads[stream])
        if head >= 0:
            self._writer.checksum_newest(stream, head, over=bool(self._index.table[stream, ENDED]))

    def cut_off(self, stream: int) -> None:
        """End a stream's running episode, if there is one, and have its next row start one."""
        table = self._index.table
        head = int(table[stream, HEAD])
        if head >= 0 and not table[stream, ENDED]:
            nothing = {path: np.zeros((1, *self._schema[path].shape), self._schema[path].np_dtype) for path in self._schema.step}
            self.put_last(stream, head, nothing | {"is_last": np.ones(1, np.bool_)})
            table[stream, ENDED] = 1
            self._cut_offs.asked_for += 1
        self.cut[stream] = True
