"""Tags of episodes: the column "tag" has a number at every step, and the store's description the names of the numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.integers import shown
from diskbuffer.columns.derived import DerivedColumns
from diskbuffer.errors import InputError
from diskbuffer.index.fields import ENDED, FLOOR, HEAD
from diskbuffer.index.index import Index
from diskbuffer.reading.batch_reader import until_found
from diskbuffer.reading.episode_columns import TAG_COLUMN
from diskbuffer.schema.schema import TAG

Int64 = npt.NDArray[np.int64]


def tag_episodes(columns: DerivedColumns, tag: str | None, steps: Int64) -> int:
    """Tag the episodes that steps, (n,), lie in; return how many those are."""
    if tag is not None and (not isinstance(tag, str) or not tag or len(tag) > 200 or "\0" in tag):
        raise InputError(f"a tag must be a string of 1 to 200 characters, none of them NUL, or None, found {shown(tag)}")
    with columns.store.lock:
        return until_found([columns.reader], lambda: _tag(columns, tag, steps))


def _tag(columns: DerivedColumns, tag: str | None, ids: Int64) -> int:
    store, index = columns.store, columns.reader.index
    size = store.layout.segment_rows
    episodes = np.unique(episodes_that_are_over(index, ids, "tagged"), axis=1)
    rows: dict[int, list[slice]] = {}  # of each slot
    for stream, start, end in episodes.T.tolist():
        first = max(start, int(index.table[stream, FLOOR]))
        for begin in range(first // size * size, end, size):
            rows.setdefault(index.slot(stream, begin), []).append(slice(max(first - begin, 0), min(end - begin, size)))
    store.refuse_evicted(list(rows))
    columns.ensure(TAG, TAG_COLUMN)
    number = 0 if tag is None else _number(columns, tag)
    values = {slot: store.derived(TAG, slot) for slot in rows}  # before the first is written to: making a file may fail
    for slot, some in rows.items():
        for which in some:
            values[slot][which] = number
        store.note_checksum(TAG, slot)
    return int(episodes.shape[1])


def episodes_that_are_over(index: Index, ids: Int64, done: str) -> Int64:
    """Return of each step the stream of its episode, and the positions of its first row and its last, (3, n).

    An InputError, which says what was to be `done`, where a step is not there, or its episode is not over.
    """
    streams, positions = ids % len(index.table), ids // len(index.table)
    starts, ends = index.episodes_of(streams, positions)
    running = (starts >= 0) & (ends == index.table[streams, HEAD]) & (index.table[streams, ENDED] == 0)
    if (starts < 0).any():
        raise InputError(f"step {ids[starts < 0][0]} was evicted since, or was never added; take buffer.episodes anew")
    if running.any():
        raise InputError(
            f"the episode of step {ids[running][0]} is not over, and can be {done} once it is; "
            "buffer.episodes[buffer.episodes.ending != 'running'] leaves such out"
        )
    return np.stack([streams, starts, ends])


def _number(columns: DerivedColumns, tag: str) -> int:
    """Return the number of a tag; a new one is on the disk when this returns."""
    tags = columns.store.layout.tags
    if tag not in tags and len(tags) == 2**16 - 1:
        raise InputError("a store has 65,535 different tags at most; keep numbers in a column of your own")
    return columns.store.add_tag(tag)
