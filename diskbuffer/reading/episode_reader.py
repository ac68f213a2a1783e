"""Single columns of steps and of whole episodes, as arrays: what notebooks show is made of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import ClosedError, InputError
from diskbuffer.index.index import Index
from diskbuffer.index.named_values import Named
from diskbuffer.reading.batch_reader import BatchReader
from diskbuffer.reading.episode_columns import EpisodeColumns, EpisodeFields
from diskbuffer.samplers.draws import Draw
from diskbuffer.schema.schema import Column, is_observation

Int64 = npt.NDArray[np.int64]


class EpisodeReader:
    """Read one column of steps, or of an episode, from a reader's store. Decodes the chunks that hold them, and no others."""

    def __init__(self, reader: BatchReader) -> None:
        self._of = reader

    @property
    def _reader(self) -> BatchReader:
        if self._of.closed:
            raise ClosedError("the buffer that these episodes are of was closed; open it again, and take them from there")
        return self._of

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of batches, by path: the observation's first."""
        columns = self._reader.columns
        return {path: columns.schema[path] for path in columns.paths}

    @property
    def streams(self) -> int:
        """How far the names of consecutive steps lie apart."""
        return self._reader.streams

    @property
    def frame_stack(self) -> int:
        """Frames in an observation."""
        return self._reader.frame_stack

    @property
    def identity(self) -> int | str:
        """What no other store has, but copies of this one."""
        return self._of.identity

    @property
    def origin(self) -> dict[str, Any]:
        """Where the steps come from: ``path``, and ``environment``, which is None where nothing is known of it."""
        return self._reader.origin

    def sum_rewards(self, episodes: EpisodeColumns) -> npt.NDArray[np.float64]:
        """Return the sums of the rewards of episodes, (n, ...), NaN where one was evicted."""
        return self._reader.sum_rewards(episodes)

    def values(self, ids: Int64) -> dict[str, Named]:
        """Return the values of episodes by name."""
        return self._reader.values_of_episodes(ids)

    def when_they_ended(self, episodes: EpisodeColumns) -> Int64:
        """Return when each of the listed episodes ended, in steps of all environments, about."""
        return self._reader.when_they_ended(episodes)

    def returns(self, episode: EpisodeFields) -> float | npt.NDArray[np.float64]:
        """Return the sum of the rewards of one."""
        sums = self.sum_rewards(EpisodeColumns(*(np.array([value]) for value in episode)))[0]
        return sums if np.ndim(sums) else float(sums)

    def elapsed(self, steps: Int64) -> Int64:
        """Count the steps of its episode before each step, evicted ones, too; -1 where it was evicted itself."""
        return self._reader.elapsed(steps)

    def steps(self, path: str, steps: Int64) -> npt.NDArray[Any]:
        """Return a column of given steps as batches have it, (n, ...): observations are stacks.

        Parameters
        ----------
        path : str
        steps : (n,) int64

        Raises
        ------
        InputError
            A step was evicted, or there is no such column.
        """
        reader = self._reader
        stack = reader.frame_stack if is_observation(path) else 1
        rows = reader.rows(path, reader.draw_named(steps), before=stack - 1, rows=stack)
        return rows[:, 0] if stack == 1 else rows

    def episode(self, path: str, episode: EpisodeFields, which: Int64 | None = None) -> npt.NDArray[Any]:
        """Return a column of an episode: its steps, (T, ...), or its single frames with the final one, (T + 1, ...).

        Parameters
        ----------
        path : str
        episode : EpisodeFields
        which : (n,) int64, optional
            These rows alone, from 0 on.

        Raises
        ------
        InputError
            The episode was evicted, at least in part, or there is no such column.
        """
        reader, rows = self._reader, episode.length + is_observation(path)
        stream, first = np.array([episode.stream], np.int64), np.array([episode.start // self.streams], np.int64)
        positions = first if which is None else first + which

        def draw(index: Index) -> Draw:
            start, end = index.episodes_of(stream, first)
            if start[0] < 0 or end[0] - first[0] < episode.length:
                raise InputError(
                    f"the episode of {episode.length:,} steps from step {episode.start} on was evicted since, at least in part, "
                    "or cleared; buffer.episodes has those that are there"
                )
            n = len(positions)
            return Draw(stream.repeat(n), positions, start.repeat(n), end.repeat(n))

        if which is None:
            values: npt.NDArray[Any] = reader.rows(path, draw, before=0, rows=rows)[0]
        else:
            values = reader.rows(path, draw, before=0, rows=1)[:, 0]
        return values
