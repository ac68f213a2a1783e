"""Seeing that nothing has become of a store, without reading it: one stat, and a comparison of memory for all stores together.

A writer adds, evicts and seals by words of the segment table, which is mapped here, and finishes an episode by a flag of the
newest row, which is mapped, too. All else that it does to a store (more slots, other columns, another opening, the way back to a
mark) puts a file in the place of another in one directory, whose times tell. A directory's time has the kernel's ticks, so one
that was changed just now may be changed again within the same: it is not relied on until some time has gone by.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, EvictedError
from diskbuffer.index.fields import ENDED, HEAD
from diskbuffer.index.index import Index
from diskbuffer.native.blocks import note_changes
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files

Int64 = npt.NDArray[np.int64]
SETTLED = 2_000_000_000  # nanoseconds after which a directory's time would have become another one; file systems count in these
_PLACE = f"{SEGMENTS}/length"  # whose entries are replaced
Stamp = tuple[int, ...]


def stamp_of(files: Files) -> Stamp | None:
    """Return what changes when a file of a store is put in another's place; None where that cannot be relied on yet.

    A store that is not there has one, too.
    """
    before, stamp = time.time_ns() - SETTLED, files.stamp(_PLACE)
    return None if max(stamp[2:], default=0) > before else stamp


class Watched:
    """What is compared of a store, and with what; it stays mapped as long as this is held.

    Parameters
    ----------
    store : Store
        Before it is read: what comes after this is a change.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._held = store, list[Any]()
        self._slots, self._table = store.table.slots, [*store.table.places("length", "sealed"), store.cleared_place]
        self._seen = [(address, np.copy(words)) for address, words in self._table]

    def finished(self, index: Index) -> Int64 | None:
        """Return what to compare with what, once the store was read as `index`: (n, 3), address, address, bytes.

        None where the store has grown meanwhile, or its description was being replaced.
        """
        if self._store.table.slots != self._slots or not self._store.following.is_described:
            return None
        comparisons = [(address, int(words.ctypes.data), words.nbytes) for address, words in self._seen]
        if self._store.kept is None:  # somebody may be writing
            try:
                comparisons += self._flags(index)
            except (CorruptionError, EvictedError):  # evicted meanwhile
                return None
        self._held.append(self._seen)
        return np.array(comparisons, np.int64).reshape(-1, 3)

    def _flags(self, index: Index) -> list[tuple[int, int, int]]:
        ended, comparisons = index.table[:, ENDED].astype(np.uint8), []
        self._held.append(ended)
        for stream in np.flatnonzero(index.table[:, HEAD] >= 0).tolist():
            slot, row = int(index.slots(stream)[-1]), int(index.table[stream, HEAD]) % index.segment_rows
            flags = self._store.values("is_last", slot)
            self._held.append(flags)
            comparisons.append((int(flags.ctypes.data) + row, int(ended.ctypes.data) + stream, 1))
        return comparisons


def changed(watched: Sequence[Int64]) -> npt.NDArray[np.bool_]:
    """Tell of each of several stores, by what `Watched.finished` returned, whether anything is not what it was."""
    flags = np.zeros(len(watched), np.bool_)
    if watched:
        of = np.repeat(np.arange(len(watched)), [len(places) for places in watched])
        note_changes(np.concatenate(watched), of, flags)
    return flags
