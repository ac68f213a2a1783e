"""An index that follows a writer elsewhere: what has come since is read, and nothing else.

As long as no other history begins, and no power loss takes rows, rows that are there stay as they are, but for each environment's
newest: an episode may end there later. So rows are read from the newest known on, where anything has changed.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, EvictedError
from diskbuffer.index.fields import ENDED
from diskbuffer.index.index import Index, Of, Rows
from diskbuffer.reading.stored_index import Flags, Known, read_rows, values_of
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.storage.following import Following, Seen
from diskbuffer.storage.format.layout import TABLE_WORDS
from diskbuffer.storage.format.words import OPEN, Entries, head_of
from diskbuffer.storage.segments import Segments
from diskbuffer.storage.store import Store

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOVING_SECONDS = 10.0  # that a reader tries again while a writer elsewhere evicts what it is about to read
_TRIES = 3  # where nothing moves
_PAUSE = 1e-3  # seconds between them


class IndexFollower:
    """Read the index of a store that is open to read, and keep it up with whoever writes to it; the store's lock must be held.

    Parameters
    ----------
    store : Store
    context : int
        As in `Index`.
    """

    def __init__(self, store: Store, context: int) -> None:
        self._store, self._context = store, context
        self._following, self._session = Following(store), store.manifest.state.session
        self._index = self._empty()

    def read(self) -> Index:
        """Return the index as it is by now: the same object, where rows were added and evicted, and else another one.

        Raises
        ------
        CorruptionError
            The store is damaged, or was removed or replaced.
        EvictedError
            A writer evicts faster than it can be read, or goes back to a mark.
        """
        begun, tries, before = time.monotonic(), 0, None
        while True:
            try:
                return self._read()
            except (CorruptionError, EvictedError, FileNotFoundError) as error:  # or a file was evicted, or sealed, meanwhile
                now = self._store.manifest.state, self._following.evicted()
                tries = 1 if before is None or now[0] is not before[0] or now[1] != before[1] else tries + 1
                before = now
                if tries == _TRIES:
                    raise
                if time.monotonic() - begun > MOVING_SECONDS:
                    raise EvictedError(f"{self._store.root}: files come and go faster than they can be read") from error
            time.sleep(_PAUSE)

    def _open_ends(self) -> dict[int, bool]:
        """Return how episodes end where the store's writer was killed, as long as nobody has opened it since."""
        if self._store.manifest.state.session != self._session:
            self._store.open_ends = {}
        return self._store.open_ends

    def _empty(self) -> Index:
        layout = self._store.layout
        return Index(layout.environments, layout.segment_rows, self._context, layout.lanes)

    def _read(self) -> Index:
        seen = self._following.look()
        index = self._empty() if seen.anew else self._index
        index.drop_below(seen.low)
        self._expect(seen)
        rows, first_steps = find_growth(index, seen, self._store.flags, self._store.layout.lanes, self._open_ends())
        with Uninterrupted():
            index.restore(rows, first_steps)
            index.drop_below(seen.low)
            self._index = index
            self._following.settle(seen)
        return index

    def _expect(self, seen: Seen) -> None:
        """Have the flags of files that are elsewhere come together."""
        files, layout = self._store.files, self._store.layout
        if files.block_bytes:
            numbers = np.unique(seen.begun.segments // layout.lanes).tolist()
            files.expect((layout.data_file("is_last", number), None) for number in numbers)


def find_growth(index: Index, seen: Seen, flags: Flags, lanes: int, open_ends: dict[int, bool]) -> tuple[Rows, Of]:
    """Return what has come since an index was read, as `Index.restore` takes it; what was evicted is not in it any more.

    A CorruptionError where segments are missing. Costs what has come, and some 0.1 us for each environment.
    """
    known, owners = Known.of(index), seen.begun.environments
    begun = seen.begun[(seen.begun.firsts < seen.rows[owners]) & (seen.begun.segments > known.newest[owners])]
    changed = seen.rows != known.heads + 1
    changed[begun.environments] = True
    same = np.flatnonzero(~changed & (known.heads >= 0))
    ended = _ended(index, same, known.heads[same], flags, lanes)
    for environment, is_over in open_ends.items():
        ended[same == environment] = is_over
    changed[same] = ended != index.table[same, ENDED]
    changed &= seen.low < seen.rows
    had = np.flatnonzero(changed & (known.heads >= 0))
    entries = _entries_of(*index.segments_from(had, known.begins[had])).joined(begun[changed[begun.environments]])
    segments = Segments.of(*entries.in_order(seen.rows), seen.low, known.begins)
    ends = np.zeros(len(changed), np.int64)
    ends[segments.entries.environments] = segments.ends  # of several, the last counts
    if (lacking := changed & (ends != seen.rows)).any():
        environment = int(np.argmax(lacking))
        raise CorruptionError(
            f"the segment table lacks entries of environment {environment}, which has rows up to {seen.rows[environment] - 1}; "
            "damaged. `diskbuffer check --repair` saves what can be saved"
        )
    return read_rows(segments, flags, lanes, open_ends, known)


def _ended(index: Index, environments: Int64, heads: Int64, flags: Flags, lanes: int) -> Bools:
    """Return whether episodes end with the newest rows of environments, (n,)."""
    rows = index.rows_of(environments, heads)
    segments, within = rows // index.segment_rows, rows % index.segment_rows
    return values_of("is_last", segments, within, flags, lanes)


def _entries_of(environments: Int64, firsts: Int64, segments: Int64) -> Entries:
    """Return entries of segments that an index knows, (n,): only what `Entries.in_order` needs is in them."""
    words = np.zeros((len(segments), TABLE_WORDS), np.int64)
    words[:, 0], words[:, 1] = head_of(environments, 0), firsts
    return Entries(segments, words, np.full(len(segments), OPEN, np.uint8))
