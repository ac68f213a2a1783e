"""What an import reads of a source, in its order: episodes, the steps of each in blocks of a few MB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import SourceError
from diskbuffer.formats.rows import rows_at_a_time, with_final
from diskbuffer.plugin import EpisodeData, Source, counted, is_observation

if TYPE_CHECKING:
    from diskbuffer.plugin import Appender  # and with it the buffer, which who reads does not need

Array = npt.NDArray[Any]
MOST_ROWS = 65536  # that are read at a time


class Block(NamedTuple):
    """What comes next.

    Attributes
    ----------
    kind : {"episode", "stack", "steps", "derived", "end"}
        An episode begins; its first step, with the frames ahead of it; consecutive steps; derived values of steps; it is over.
    facts : dict of str to Any
        What JSON holds. Of all kinds the ``stream``; of an episode its ``tag``, ``values``, and how many of its steps are
        ``present`` and not read; of derived values the number of their ``first`` step in the stream.
    arrays : dict of str to array
        By path: of n steps (n, ...), of observations (n + 1, ...). Of a first step, observations (frames + 1, ...).
    """

    kind: str
    facts: dict[str, Any]
    arrays: dict[str, Array]


class Wanted(NamedTuple):
    """What is read of episodes.

    Attributes
    ----------
    columns, derived : mapping of str to Column
        By path, what rows must be: of columns that are given with steps, and of derived ones.
    present : sequence of int
        How many steps of each stream are not to be read again.
    frame_stack : int
        How many frames a stack has: of an episode's first step, the frames ahead of it are read, too.
    """

    columns: Mapping[str, Column]
    derived: Mapping[str, Column]
    present: Sequence[int]
    frame_stack: int

    @classmethod
    def by(cls, appender: Appender) -> Wanted:
        """Return what is left to be read for a store."""
        return cls(appender.columns, appender.derived, appender.ever, appender.frame_stack)


class Opened:
    """A source that this process reads; what another process reads is a `confined.ConfinedSource`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.contents, self.losses, self.close = source.contents, source.losses, source.close

    def blocks(self, wanted: Wanted) -> Iterator[Block]:
        """Yield all that is wanted of it."""
        return blocks(self._source.episodes(), wanted)


def blocks(episodes: Iterable[EpisodeData], wanted: Wanted) -> Iterator[Block]:
    """Yield all that is wanted of episodes.

    Raises
    ------
    SourceError
        The rows of an episode's columns are not as many as its steps, or not of the dtypes and shapes that are wanted.
    """
    passed, columns = Counter[int](), {**wanted.columns, **wanted.derived}
    for number, episode in enumerate(episodes):
        _check(number, episode, columns)
        first = passed[episode.stream]
        present = min(max(wanted.present[episode.stream] - first, 0), episode.steps)
        for kind, facts, arrays in _blocks_of(episode, wanted, present):
            yield Block(kind, {**facts, "stream": episode.stream}, arrays)
        size = rows_at_a_time(*(episode.columns[path] for path in wanted.derived), most=MOST_ROWS)
        for begin in range(0, episode.steps if wanted.derived else 0, size):
            end = min(begin + size, episode.steps)
            values = {path: np.asarray(episode.columns[path][begin:end]) for path in wanted.derived}
            yield Block("derived", {"first": first + begin, "stream": episode.stream}, values)
        if not episode.running:
            yield Block("end", {"stream": episode.stream}, {})
        passed[episode.stream] += episode.steps


def _blocks_of(episode: EpisodeData, wanted: Wanted, present: int) -> Iterator[Block]:
    """Yield an episode's beginning, and its steps after those that are present."""
    yield Block("episode", {"tag": episode.tag, "values": dict(episode.values), "present": present}, {})
    paths = [path for path in episode.columns if path in wanted.columns]
    if present == 0 and episode.lead and wanted.frame_stack > 1:
        frames = {path: episode.lead[path][1 - wanted.frame_stack :] for path in paths if is_observation(path)}
        rows = {path: _rows_of(episode, path, 0, 1) for path in paths}
        yield Block("stack", {}, {path: np.concatenate([frames.get(path, each[:0]), each]) for path, each in rows.items()})
        present = 1
    block = rows_at_a_time(*(episode.columns[path] for path in paths), most=MOST_ROWS)
    for first in range(present, episode.steps, block):
        last = min(first + block, episode.steps)
        yield Block("steps", {}, {path: _rows_of(episode, path, first, last) for path in paths})


def _rows_of(episode: EpisodeData, path: str, first: int, last: int) -> Array:
    """Return a column of some steps; of an observation, a row more."""
    rows = episode.columns[path]
    return np.asarray(with_final(rows, episode.steps)[first : last + 1] if is_observation(path) else rows[first:last])


def _check(number: int, episode: EpisodeData, columns: Mapping[str, Column]) -> None:
    """Raise a SourceError where an episode's columns are not what they must be."""
    for path in columns:
        if path not in episode.columns and path not in ("terminated", "truncated", "reward"):
            raise SourceError(f"episode {number} has no column {path!r}; it has {', '.join(episode.columns)}")
    for path, values in episode.columns.items():
        if path not in columns:
            continue
        column, rows = columns[path], values.shape[0] if values.shape else -1
        if rows != episode.steps and not (is_observation(path) and rows == episode.steps + 1):
            raise SourceError(
                f"episode {number} has {counted(episode.steps, 'step')}, and its column {path!r} {counted(rows, 'row')}"
                f"{': it may have as many, or one more' if is_observation(path) else ''}"
            )
        shape = tuple(values.shape[1:])
        fits = shape == column.shape or column.transform  # of pictures that are transformed, `extend` says what does not fit
        if not fits or values.dtype != column.np_dtype:
            raise SourceError(f"episode {number}: rows of {path!r} are {values.dtype}{list(shape)}, and should be {column}")
