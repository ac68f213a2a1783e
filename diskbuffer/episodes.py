"""The episodes that a buffer holds, as users get them: to look at, to filter, and to sample from."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.notebook import notebook
from diskbuffer.reading.episode_columns import EpisodeColumns, EpisodeFields, Int64, row_of
from diskbuffer.reading.episode_reader import EpisodeReader
from diskbuffer.shown import Picture, Video

if TYPE_CHECKING:
    import pandas


class Episode(EpisodeFields):
    """One episode: its stream, the first step that is there, how many steps are there, how it ended, its tag, and its id.

    A tuple of these six. Its id is that of the step that it began with, evicted or not, and never changes. What else it has is
    read when it is asked for, and needs pillow, or PyAV for MP4, where it is drawn; a notebook shows it as a table and a film
    strip. Once its buffer evicts some of it, that raises an InputError. A pickled or copied episode is the tuple alone.
    """

    _reader: EpisodeReader | None = None

    def __getstate__(self) -> None:
        """Return nothing: the buffer does not go with a pickle."""

    def _read(self) -> EpisodeReader:
        if self._reader is None:
            raise InputError("this episode has no buffer to read from: take it from buffer.episodes, such as buffer.episodes[3]")
        return self._reader

    @property
    def steps(self) -> Int64:
        """The names of its steps, (length,), as in a batch's ``steps``."""
        return self.start + np.arange(self.length) * self._read().streams

    @property
    def returns(self) -> float | npt.NDArray[np.float64]:
        """The sum of its rewards that are there; an array where a reward is one. NaN if it was evicted since."""
        return self._read().returns(self)

    def frames(self, column: str | None = None, n: int | None = None) -> npt.NDArray[Any]:
        """Return its observations, single frames: (T + 1, ...), the last of which is the final one.

        Parameters
        ----------
        column : str, optional
            A column's path, such as "obs/camera"; of one that is no observation there are T rows. The first column of pictures by
            default, else the only column of observations.
        n : int, optional
            So many, spread evenly, the first and the last among them. All by default.

        Raises
        ------
        InputError
            The episode was evicted since, there is no such column, or one must be chosen.
        """
        found: npt.NDArray[Any] = notebook("episode").frames(self._read(), self, column, n)
        return found

    def film_strip(self, n: int = 8, column: str | None = None) -> Picture:
        """Return a film strip of `n` frames, spread evenly; see `frames`."""
        found: Picture = notebook("episode").film_strip(self._read(), self, n, column)
        return found

    def video(
        self,
        fps: float = 15,
        *,
        column: str | None = None,
        every: int | None = None,
        scale: int | None = None,
        kind: Literal["mp4", "gif"] | None = None,
    ) -> Video:
        """Return a movie of its frames, which a notebook plays: ``episode.video().save("episode.mp4")`` keeps it.

        Parameters
        ----------
        fps : float
            Frames a second.
        column : str, optional
            As in `frames`.
        every : int, optional
            Show every so many frames. By default so that there are 1,000 at most.
        scale : int, optional
            How many pixels, each way, one pixel becomes. By default, small frames become about 300 pixels high.
        kind : {"mp4", "gif"}, optional
            MP4 where PyAV is installed, else GIF.

        Raises
        ------
        InputError
            As in `frames`; or an argument does not fit.
        MissingPackageError
            PyAV, or pillow, is not installed.
        """
        found: Video = notebook("episode").video(self._read(), self, fps, column, every, scale, kind)
        return found

    def plot(self, columns: Sequence[str] | None = None) -> Picture:
        """Return a plot of columns over the steps of the episode.

        Parameters
        ----------
        columns : sequence of str, optional
            Columns' paths. By default rewards and their sum so far, actions, and what else has 8 components at most.
        """
        found: Picture = notebook("episode").plot(self._read(), self, columns)
        return found

    def _repr_html_(self) -> str:
        found: str = notebook("episode").html(self._reader, self)
        return found


@dataclass(frozen=True)
class Episodes(EpisodeColumns):
    """Episodes of which a step can be sampled, stream after stream, as columns of equal length.

    Index it as an array: ``episodes[3]`` is the fourth of them, ``episodes[episodes.length > 100]`` are some, which samplers
    take as ``episodes=``. As episodes come and go, their places change, and their ids do not: ``episodes.find(id)`` is one.

    Attributes
    ----------
    stream : (n,) int64
    start : (n,) int64
        The first step that can be sampled, as in a batch's ``steps``. Eviction may have taken earlier ones.
    length : (n,) int64
        Steps that can be sampled.
    ending : (n,) str
        "terminated", "truncated" (both, then "terminated"), "cut off", or "running".
    tag : (n,) str
        As `ReplayBuffer.tag` gave it, else "".
    id : (n,) int64
        That of the step which the episode began with, as in a batch's ``steps``, also where eviction has taken that step.
    """

    _source: EpisodeReader = field(repr=False, compare=False)

    @classmethod
    def of(cls, columns: EpisodeColumns, source: EpisodeReader) -> Episodes:
        """Return episodes that read from a source when they are asked."""
        return cls(columns.stream, columns.start, columns.length, columns.ending, columns.tag, columns.id, source)

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """Sums of the rewards that are there, (n, ...) float64, NaN where an episode was evicted since. Reads all of them."""
        return self._source.sum_rewards(self)

    def __iter__(self) -> Iterator[Episode]:
        return (self[n] for n in range(len(self)))

    @overload
    def __getitem__(self, which: int | np.integer[Any]) -> Episode: ...

    @overload
    def __getitem__(self, which: slice | npt.NDArray[Any] | list[Any]) -> Episodes: ...

    def __getitem__(self, which: Any) -> Episode | Episodes:
        try:
            n = operator.index(which)
        except TypeError:
            try:
                return Episodes.of(self.some(which), self._source)
            except (IndexError, TypeError) as error:
                raise InputError(f"episodes are selected by a number, a slice or a mask: {error}") from error
        episode = Episode(*self.one(n))
        episode._reader = self._source
        return episode

    def find(self, id: int) -> Episode:
        """Return the episode of an id; an InputError where none of these has it."""
        return self[row_of(self.id, id)]

    def to_pandas(self, *, returns: bool = True) -> pandas.DataFrame:
        """Return them as a table, a row each by id: stream, start, length, returns, ending (categorical), tag.

        Parameters
        ----------
        returns : bool
            Whether to read all rewards and sum them up. Where a reward is an array, its components are "returns[0]", ...

        Raises
        ------
        MissingPackageError
            pandas is not installed.
        """
        found: pandas.DataFrame = notebook("pandas_tables").of_episodes(self._source, self, returns)
        return found

    def _repr_html_(self) -> str:
        found: str = notebook("episodes").html(self._source, self)
        return found
