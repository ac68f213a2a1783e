"""Find out whose rows a slot holds, where the segment table does not tell.

The rows tell it themselves. A shard says which segment it is; where there is none, the checksum of a row starts from its stream
and its position, and those that it can have are tried.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store.format.checksums import OBS, STEP, covered, row_checksums
from diskbuffer.store.inspection import Inspected
from diskbuffer.store.segments import shard
from diskbuffer.store.store import Store

Identity = tuple[int, int]  # the stream, and the position of the first row
_AT_ONCE = 4096  # candidates


def find_rows(store: Store, slot: int, reach: npt.NDArray[np.int64]) -> tuple[Identity, int]:
    """Return whose rows a slot holds, and how many, from the first on; none if that cannot be found out.

    `reach` has the first and the last position of each stream that come into question, (streams, 2).
    """
    for identity in dict.fromkeys([store.table.identity(slot), *_candidates(store, slot, reach)]):
        if rows := _rows_there(store, slot, identity):
            return identity, rows
    return (0, 0), 0


def _candidates(store: Store, slot: int, reach: npt.NDArray[np.int64]) -> Iterable[Identity]:
    if store.layout.packed:
        return _by_shards(store, slot)
    return _by_checksums(store, slot, reach)


def _by_shards(store: Store, slot: int) -> Iterator[Identity]:
    for path in store.layout.packed:
        with contextlib.suppress(CorruptionError):
            mapped = store.files.map(store.layout.data_file(path, slot), -1, writable=False)
            identity = shard.identity_of(mapped, store.layout.chunks(path)).tolist()
            yield identity[1], identity[2]


def _by_checksums(store: Store, slot: int, reach: npt.NDArray[np.int64]) -> Iterator[Identity]:
    """Yield the streams and positions with which the checksum of a slot's first row is right."""
    layout = store.layout
    segment = Inspected(store, slot, 1, decode=False, identity=(0, 0))
    word, paths = segment.word(0, OBS), covered(layout.schema, OBS)
    if word is None or not all(segment.is_readable(path) for path in paths):
        return
    rows = {path: segment.rows(path, 0, 1) for path in paths}
    for stream, (first, last) in enumerate(reach.tolist()):
        for begin in range(first, last + 1, _AT_ONCE * layout.segment_rows):
            n = min(_AT_ONCE, (last - begin) // layout.segment_rows + 1)
            same = {path: np.broadcast_to(row, (n, row.shape[1])) for path, row in rows.items()}
            words = row_checksums(layout.schema, layout.salt, stream, begin, n, same, OBS, apart=layout.segment_rows)
            yield from ((stream, begin + at * layout.segment_rows) for at in np.flatnonzero(words == word).tolist())


def _rows_there(store: Store, slot: int, identity: Identity) -> int:
    """Return how many rows a slot has, from the first on, if they are those."""
    stream, first = identity
    if not (0 <= stream < store.layout.streams and 0 <= first < 2**56 and first % store.layout.segment_rows == 0):
        return 0
    segment = Inspected(store, slot, store.layout.segment_rows, decode=True, identity=identity)
    obs = segment.verified(OBS)
    n = int(np.append(obs & segment.verified(STEP), False).argmin())
    return n + 1 if n < len(obs) and obs[n] else n
