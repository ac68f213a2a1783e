"""Tags of episodes: the column "tag" has a number at every step, and the store's description the names of the numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.columns.derived import DerivedColumns
from diskbuffer.errors import InputError
from diskbuffer.index.fields import ENDED, FLOOR, HEAD
from diskbuffer.inputs import step_names
from diskbuffer.reading.episode_columns import TAG_COLUMN
from diskbuffer.reading.reader import until_found
from diskbuffer.schema import TAG

Array = npt.NDArray[Any]


def tag_episodes(columns: DerivedColumns, tag: str | None, steps: Any) -> int:
    """Tag the episodes that steps lie in; return how many those are."""
    if tag is not None and (not isinstance(tag, str) or not tag or len(tag) > 200):
        raise InputError(f"a tag must be a string of 1 to 200 characters, or None, found {str(tag)[:300]!r}")
    names = step_names(steps, of_sequences=True)
    names = names[names != -1] if names.ndim == 2 else names
    with columns.store.lock:
        return until_found([columns.reader], lambda: _tag(columns, tag, names))


def _tag(columns: DerivedColumns, tag: str | None, names: Array) -> int:
    index = columns.reader.index
    streams, positions = names % len(index.table), names // len(index.table)
    starts, ends = index.episodes_of(streams, positions)
    running = (starts >= 0) & (ends == index.table[streams, HEAD]) & (index.table[streams, ENDED] == 0)
    if (starts < 0).any() or running.any():
        bad = names[(starts < 0) | running][0]
        raise InputError(
            f"step {bad} was evicted, was never added, or its episode is not over; tag episodes that are there, whole"
        )
    episodes = np.unique(np.stack([streams, np.maximum(starts, index.table[streams, FLOOR]), ends]), axis=1)
    of, first, end = episodes
    lengths = end - first
    positions = np.repeat(end - np.cumsum(lengths), lengths) + np.arange(lengths.sum())
    rows = index.rows_of(np.repeat(of, lengths), positions)
    columns.hold_rows(rows)
    columns.ensure(TAG, TAG_COLUMN)
    number = 0 if tag is None else numbers_of(columns, [tag])[0]
    columns.put(TAG, rows, np.full(len(rows), number, TAG_COLUMN.np_dtype))
    return int(episodes.shape[1])


def numbers_of(columns: DerivedColumns, names: Collection[str]) -> list[int]:
    """Return the numbers of names, as of tags; new ones are on the disk when this returns."""
    with columns.store.lock:
        new = set(names) - set(columns.store.layout.tags)
        if len(columns.store.layout.tags) + len(new) > 2**16 - 1:
            raise InputError(
                "a store has 65,535 different tags, and strings in columns, at most; keep numbers in a column of your own"
            )
        return columns.store.add_tags(list(names))
