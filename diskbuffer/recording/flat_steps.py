"""Arrays of steps into rows of flat columns: what `Trajectories` does where no observation is a stack, compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.index.fields import HEAD
from diskbuffer.index.index import Index
from diskbuffer.native.arrays import address_of
from diskbuffer.recording import flat_kernel, kernel
from diskbuffer.recording.cut_offs import CutOffs
from diskbuffer.recording.equality import copy_bools
from diskbuffer.recording.stream_log import StreamLog
from diskbuffer.store.format.layout import NEXT_STEP, Layout

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
_NOBODY_TOLD = np.zeros(0, np.bool_)
_ROWS_OF_A_STEP = 2  # at most: it starts an episode, and leads to an observation


class FlatSteps:
    """Record steps of a store that has no packed column. The store's lock must be held, and no signal come in between.

    Parameters
    ----------
    layout, log, index, cut_offs
        As of `Recorder`.
    cut : (streams,) bool
        Which streams were told to start an episode with their next row.
    sources, flags
        As of `kernel.record`, of single frames that lie one behind the other. The first four fields of a source are `places`.
    """

    def __init__(
        self,
        layout: Layout,
        log: StreamLog,
        index: Index,
        cut_offs: CutOffs,
        cut: Bools,
        sources: Int64,
        flags: Int64,
    ) -> None:
        self._layout, self._log, self._index, self._cut_offs, self._cut = layout, log, index, cut_offs, cut
        self._sources, self._flags = sources.copy(), flags
        self._places = sources[:, : kernel.ROW_BYTES].copy()
        schema = layout.schema.recorded
        place = {path: n for n, path in enumerate(schema)}
        self._step_places = [place[path] for path in schema.step]
        self._obs_places = [place[path] for path in schema.obs]
        self._step_paths, self._obs_paths = schema.step, schema.obs
        self._next_step = layout.autoreset == NEXT_STEP
        bools = [(place[path], kernel.VALUE) for path in (*schema.step, *schema.obs) if schema[path].np_dtype == np.bool_]
        bools += [(place[path], kernel.NEXT) for path in schema.obs if schema[path].np_dtype == np.bool_]
        # Where truth values are: the column, the field of a place, and the bytes of one step's.
        self._bools = np.array([(c, field, sources[c, kernel.ROW_BYTES]) for c, field in bools], np.int64)

    def record_arrays(
        self,
        columns: Mapping[str, Array],
        before: Mapping[str, Array],
        after: Mapping[str, Array],
        told: Bools | None,
        stream: int,
    ) -> int:
        """Record arrays of steps, (n, ...) each and contiguous, n at least 1; return how many there were, as resets are not.

        `told` tells which start an episode, None where values tell. See `record`.
        """
        places = self._places
        places[self._step_places, 0] = [address_of(columns[path]) for path in self._step_paths]
        places[self._obs_places, 0] = [address_of(before[path]) for path in self._obs_paths]
        places[self._obs_places, 2] = [address_of(after[path]) for path in self._obs_paths]
        return len(self.record(places, len(columns["terminated"]), stream, told))

    def record(self, places: Int64, n: int, stream: int, told: Bools | None = None) -> Int64:
        """Record `n` steps, at least one; return the positions of their rows. Resets are left out.

        An OSError where there is no room: some steps may be recorded then, which count.

        Parameters
        ----------
        places : (columns, 4) int64
            Of every recorded column of the schema, in its order: the address of the first step's value, and how far that of the
            next lies from it; of observations the same of those after the steps. Nothing of it is checked, but truth values that
            are other bytes than 0 and 1 are not taken from there: they count as true.
        n, stream : int
        told : (n,) bool, optional
            Which steps start an episode; where it is missing, values tell.
        """
        sources, table, segments = self._sources, self._index.table, self._log.writer.segments
        sources[:, : kernel.ROW_BYTES] = places
        clean = [] if flat_kernel.bools_are_clean(places, self._bools, n) else self._clean_bools(n)
        rows, limits = self._layout.segment_rows, self._log.writer.limits
        events = np.empty((n, flat_kernel.EVENT_FIELDS), np.int64)
        n = flat_kernel.decide(
            table,
            sources,
            self._flags,
            segments.bases,
            stream,
            rows,
            self._next_step,
            bool(self._cut[stream]),
            _NOBODY_TOLD if told is None else told,
            events,
        )
        events, done = events[:n], 0
        kinds = events[:, flat_kernel.KIND]
        try:
            while done < n:
                if table[stream, HEAD] + _ROWS_OF_A_STEP >= limits[stream]:
                    self._log.make_room_for_rows(stream, _ROWS_OF_A_STEP)
                before_these, done = (
                    done,
                    flat_kernel.write(
                        table,
                        sources,
                        self._flags,
                        segments.bases,
                        segments.lengths,
                        stream,
                        rows,
                        int(limits[stream]),
                        self._layout.salt,
                        events,
                        done,
                    ),
                )
                some = slice(before_these, done)
                starts = events[some, flat_kernel.POSITION][kinds[some] >= kernel.STARTED]
                if len(starts):
                    self._index.start_episodes(stream, starts)
                self._cut[stream] = False
                self._log.note_rows(stream, done - before_these)
        finally:
            self._cut_offs.steps += done
            self._cut_offs.note(int((kinds[:done] == kernel.CUT_OFF).sum()))
            del clean  # until here, compiled code reads it
        return np.asarray(events[:, flat_kernel.POSITION])

    def _clean_bools(self, n: int) -> list[Array]:
        """Have all truth values of `n` steps read from copies, of bytes of 0 or 1; return these, to be kept meanwhile."""
        copies = []
        for column, field, size in self._bools.tolist():
            address, apart = self._sources[column, field : field + 2].tolist()
            copies.append(np.empty((n, size), np.uint8))
            for step, copy in enumerate(copies[-1]):
                copy_bools(address_of(copy), address + step * apart, size)
            self._sources[column, field : field + 2] = address_of(copies[-1]), size
        return copies
