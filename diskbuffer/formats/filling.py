"""Episodes into a buffer, block by block, from where an interrupted run stopped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.buffer import ReplayBuffer
from diskbuffer.errors import SourceError
from diskbuffer.formats.data import EpisodeData
from diskbuffer.nested import put
from diskbuffer.schema import KEPT, Column, is_obs
from diskbuffer.transforms import are_pictures, picture_axes
from diskbuffer.wording import counted

_BLOCK = 8 * 1024**2  # bytes of rows that are read at a time, of all columns together
_MOST_ROWS = 65536


def fill(buffer: ReplayBuffer, episodes: Iterable[EpisodeData], told: Callable[[int], None]) -> None:
    """Add episodes to a buffer, but for those steps that an earlier call with the same episodes has added to it.

    Each stream is filled in the order in which its episodes come, so how many steps it has ever had tells how far it was filled.

    Parameters
    ----------
    buffer : ReplayBuffer
        Empty, or filled in part with the same episodes, perhaps by a process that was killed.
    episodes : iterable of EpisodeData
    told : callable
        Is given how many steps were added, or found to be there, each time.

    Raises
    ------
    SourceError
        The rows of an episode's columns are not as many as its steps, or not of the buffer's dtypes and shapes.
    InputError
        As `ReplayBuffer.extend` raises it, of values: a NaN, say.
    """
    filler = _Filler(buffer, told)
    for number, episode in enumerate(episodes):
        _check(number, episode, filler.columns)
        filler.add(episode)
    buffer.cut_off()
    _tag(buffer, filler.tags)
    buffer.flush()


class _Filler:
    def __init__(self, buffer: ReplayBuffer, told: Callable[[int], None]) -> None:
        self._buffer, self._told = buffer, told
        self.columns = {name: c for name, c in buffer.columns.items() if name not in buffer.derived and name not in KEPT}
        self.tags: dict[int, list[str]] = {}  # of each stream's episodes, in their order
        self._there = buffer._reader.counts()[1].tolist()  # steps of each stream that were added before, and not yet passed

    def add(self, episode: EpisodeData) -> None:
        """Add what is not there yet of an episode."""
        stream = self._buffer.n_envs if episode.protected else episode.stream
        self.tags.setdefault(stream, []).append(episode.tag)
        begin = min(self._there[stream], episode.steps)
        self._there[stream] -= begin
        self._told(begin)
        block = episode.steps if episode.protected else self._rows_of(episode)  # each call with protected steps starts an episode
        for first in range(begin, episode.steps, block):
            last = min(first + block, episode.steps)
            values: dict[str, Any] = {}
            for path in episode.columns:
                if path in self.columns:
                    put(values, path, _rows(episode, path, first, last))
            self._buffer.extend(
                **values, env=episode.stream, protect=episode.protected, new_episode=None if episode.protected else first == 0
            )
            self._told(last - first)

    def _rows_of(self, episode: EpisodeData) -> int:
        """Return how many rows to read at a time."""
        found = (rows for path, rows in episode.columns.items() if path in self.columns)
        size = sum(math.prod(rows.shape[1:]) * rows.dtype.itemsize for rows in found)
        return max(1, min(_MOST_ROWS, _BLOCK // size))


def _rows(episode: EpisodeData, path: str, first: int, last: int) -> npt.NDArray[Any]:
    """Return a column of some steps; of an observation, a row more. The last one stands for a final one that is not known."""
    found = np.asarray(episode.columns[path][first : last + is_obs(path)])
    return np.concatenate([found, found[-1:]]) if is_obs(path) and len(found) == last - first else found


def _check(number: int, episode: EpisodeData, columns: Mapping[str, Column]) -> None:
    flags = ("terminated", "truncated")
    for path in columns:
        if path not in episode.columns and path not in flags:
            raise SourceError(f"episode {number} has no column {path!r}; it has {', '.join(episode.columns)}")
    for path, found in episode.columns.items():
        if path not in columns:
            continue
        column, rows = columns[path], found.shape[0] if found.shape else -1
        if rows != episode.steps and not (is_obs(path) and rows == episode.steps + 1):
            raise SourceError(
                f"episode {number} has {counted(episode.steps, 'step')}, and its column {path!r} {counted(rows, 'row')}"
                f"{': it may have as many, or one more' if is_obs(path) else ''}"
            )
        shape = tuple(found.shape[1:])
        fits = shape == column.shape or (column.transform and are_pictures(shape, picture_axes(column.transforms, column.shape)))
        if not fits or found.dtype != column.np_dtype:
            raise SourceError(f"episode {number}: rows of {path!r} are {found.dtype}{list(shape)}, and should be {column}")


def _tag(buffer: ReplayBuffer, tags: Mapping[int, list[str]]) -> None:
    """Tag the episodes that are there: the newest ones of each stream."""
    if not any(tag for of_stream in tags.values() for tag in of_stream):
        return
    episodes = buffer.episodes
    for stream, of_stream in tags.items():
        starts = episodes.start[episodes.stream == stream]
        wanted = np.array(of_stream[len(of_stream) - len(starts) :])
        there = episodes.tag[episodes.stream == stream]
        for tag in sorted(set(wanted[wanted != there].tolist()) - {""}):
            buffer.tag(tag, starts[(wanted == tag) & (there != tag)])
