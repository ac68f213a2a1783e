"""From a store's files to the index: which rows there are, and where episodes start and end.

Only the segment table, the heads and one flag a row are read: where episodes end. All else follows. Two more flags are read where
an episode of no step is: whether it is a row of a stack's prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.index.fields import LOW
from diskbuffer.index.index import Index, Of, Rows
from diskbuffer.native.arrays import address_of
from diskbuffer.native.blocks import find_set
from diskbuffer.storage.segments import Segments

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Flags = Callable[[str, int], Bools]  # of a column and a file, (lanes, segment_rows)


class Known(NamedTuple):
    """What an index has already, (environments,) int64 each; rows that are not looked at again are as they were.

    Attributes
    ----------
    heads : int64
        The newest rows, -1 where there are none.
    lows : int64
        The oldest rows.
    alone : int64
        As `Index.newest_alone`: what becomes of these rows depends on what comes.
    newest : int64
        Numbers of the newest segments, -1 where there are none.
    """

    heads: Int64
    lows: Int64
    alone: Int64
    newest: Int64

    @staticmethod
    def of(index: Index) -> Known:
        """Return what an index has."""
        return Known(index.heads.copy(), index.table[:, LOW].copy(), index.newest_alone(), index.newest_segments())

    @property
    def begins(self) -> Int64:
        """The rows from which on an index is read, where anything has changed; -1 for all."""
        return np.minimum(self.heads, self.alone)


def read_rows(
    segments: Segments, flags: Flags, lanes: int, open_ends: dict[int, bool], known: Known | None = None
) -> tuple[Rows, Of]:
    """Return the rows of a store for `Index.restore`, and how many steps environments had before that were not known.

    `flags` returns a flag of all rows of a file; `open_ends` tells, where the flag at an environment's newest row does not count,
    whether an episode ends there. With `known`, what an index has is left out; of its environments that have changed, `segments`
    has the rows from `known.begins` on. About 1 ms for 100,000 steps.
    """
    entries, of, first, last = segments.entries, segments.entries.environments, segments.is_first, segments.is_last
    known = known or _nothing(int(of.max(initial=-1)) + 1)
    found, ends = _rows_with("is_last", segments, flags, lanes)
    environments, heads, ended = of[last], segments.ends[last] - 1, np.zeros(int(last.sum()), np.bool_)
    newest = last[found] & (ends == segments.ends[found] - 1)
    ended[np.searchsorted(environments, of[found[newest]])] = True
    for environment, is_over in open_ends.items():
        ended[environments == environment] = is_over
    oldest = first & (known.heads[of] < 0)
    gaps, after_gaps = _gaps(segments)
    starts_of = np.concatenate([of[oldest], of[found], gaps])
    starts = np.concatenate([np.minimum(segments.firsts, entries.episode_starts)[oldest], ends + 1, after_gaps])
    order = np.lexsort((starts, starts_of))
    starts_of, starts = starts_of[order], starts[order]
    counts = (np.diff(starts, prepend=-1) != 0) | (np.diff(starts_of, prepend=-1) != 0)
    counts &= _are_new(starts_of, starts, environments, heads, known)
    prefixes_of, prefixes = _prefixes(segments, found, ends, flags, lanes, known)
    there = _are_new(prefixes_of, prefixes[:, 0], environments, heads, known)
    begun = entries.segments > known.newest[of]
    rows = Rows(
        environments,
        heads,
        ended,
        Of(of[begun], entries.firsts[begun]),
        entries.segments[begun],
        Of(starts_of[counts], starts[counts]),
        Of(prefixes_of[there], prefixes[there]),
    )
    return rows, Of(of[oldest], entries.steps_before[oldest])


def _nothing(environments: int) -> Known:
    none = np.full(environments, -1)
    return Known(none, none, none + 1, none)


def _are_new(of: Int64, rows: Int64, environments: Int64, heads: Int64, known: Known) -> Bools:
    """Return which rows of environments there are, and were not known, (n,); `environments` have new `heads`."""
    if len(of) == 0:
        return np.zeros(0, np.bool_)
    return np.asarray((rows > known.heads[of]) & (rows <= heads[np.searchsorted(environments, of)]))


def _rows_with(flag: str, segments: Segments, flags: Flags, lanes: int) -> tuple[Int64, Int64]:
    """Return the rows with a flag by environment and position: which segment each is in, and its position, (rows,)."""
    files, lane = segments.entries.segments // lanes, segments.entries.segments % lanes
    addresses, held = np.zeros(len(files), np.int64), list[Bools]()
    for file in np.unique(files).tolist():
        mine = files == file
        held.append(flags(flag, file))
        if (segments.ends - segments.entries.firsts)[mine].max() > held[-1].shape[1]:
            raise CorruptionError(
                f"the segment table lacks entries: a segment has more than {held[-1].shape[1]} rows without them"
            )
        addresses[mine] = address_of(held[-1]) + lane[mine] * held[-1].shape[1]
    runs = addresses + segments.firsts - segments.entries.firsts
    which, row = find_set(runs, np.ascontiguousarray(segments.ends - segments.firsts))
    return which, segments.firsts[which] + row


def _gaps(segments: Segments) -> tuple[Int64, Int64]:
    """Return where rows are missing between segments, as a power loss took them: environments, and positions after missing rows.

    They count as episodes of one row, so that none of them is a step, and the row before them is the last of its episode.
    """
    behind = np.flatnonzero(~segments.is_last & (segments.ends < np.append(segments.firsts[1:], 0)))
    counts = segments.firsts[behind + 1] - segments.ends[behind] + 1
    positions = np.repeat(segments.ends[behind] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    return np.repeat(segments.entries.environments[behind], counts), positions


def _prefixes(segments: Segments, found: Int64, ends: Int64, flags: Flags, lanes: int, known: Known) -> tuple[Int64, Int64]:
    """Return stacks' prefixes: environments, and the first row of each episode and of its prefix, (n, 2).

    `found` and `ends` are the segments and positions of rows that are the last of an episode. Each row of a prefix is an episode
    by itself and truncated; the first of them is terminated, too. Of one that began before the oldest row, that is not known.
    """
    environments, is_first = segments.entries.environments, segments.is_first
    is_new = known.heads[environments] < 0
    is_next = (np.diff(ends, prepend=-2) == 1) & (np.diff(environments[found], prepend=-1) == 0)
    starts_here = segments.entries.episode_starts >= segments.firsts
    begins_alone = np.where(is_new, starts_here, known.alone[environments] <= known.heads[environments])
    after_gap = np.append(True, segments.ends[:-1] < segments.firsts[1:])[: len(environments)]
    after_gap = np.where(is_first, begins_alone, after_gap)
    alone = is_next | (after_gap[found] & (ends == segments.firsts[found]))
    of, at = found[alone], ends[alone]
    places = segments.entries.segments[of], at - segments.entries.firsts[of]
    truncated, terminated = (values_of(path, *places, flags, lanes) for path in ("truncated", "terminated"))
    of, at, begins = of[truncated], at[truncated], terminated[truncated]
    if len(at) == 0:
        return np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
    apart = np.append(True, (np.diff(at) != 1) | (np.diff(environments[of]) != 0) | begins[1:])
    first = np.flatnonzero(apart)
    episodes = at[np.append(first[1:] - 1, len(at) - 1)] + 1
    lows, firsts = np.where(is_new, segments.firsts, known.lows[environments])[of[first]], at[first]
    began_before = is_first[of[first]] & (firsts == lows) & (lows > 0) & ~begins[first]
    return environments[of[first]], np.stack([episodes, firsts - began_before], axis=1)


def values_of(flag: str, numbers: Int64, rows: Int64, flags: Flags, lanes: int) -> Bools:
    """Return a flag of some rows, (n,), given by their segments and their places in these."""
    found, files = np.zeros(len(numbers), np.bool_), numbers // lanes
    for file in np.unique(files).tolist():
        mine = files == file
        found[mine] = flags(flag, file)[numbers[mine] % lanes, rows[mine]]
    return found
