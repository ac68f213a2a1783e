"""The episodes that a buffer holds, as columns: to look at, to filter, and to sample from."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from diskbuffer.endings import CUT_OFF, RUNNING, TERMINATED, TRUNCATED
from diskbuffer.errors import InputError
from diskbuffer.index.fields import ENDED, FLOOR, HEAD, LOW
from diskbuffer.index.streams import Streams
from diskbuffer.schema import TAG, Column
from diskbuffer.store.store import Store
from diskbuffer.wording import counted

if TYPE_CHECKING:
    import pandas

    from diskbuffer.inspect.notebook.shown import Picture, Video
    from diskbuffer.inspect.notebook.source import Source

Int64 = npt.NDArray[np.int64]
TAG_COLUMN = Column((), "uint16")  # of tags: numbers of names, from 1 on


class _Fields(NamedTuple):
    stream: int
    start: int
    length: int
    ending: str
    tag: str


class Episode(_Fields):
    """One episode: its stream, the step it starts with, how many steps are there, how it ended, and its tag.

    A tuple of these five. What else it has is read when it is asked for, and needs pillow, or PyAV for MP4, where it is drawn;
    a notebook shows it as a table and a film strip. Once its buffer evicts some of it, that raises an InputError. A pickled or
    copied episode is the tuple alone.
    """

    _reader: Source | None = None

    def __getstate__(self) -> None:
        """Return nothing: the buffer does not go with a pickle."""

    def _read(self) -> Source:
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
        source = self._read()
        stream, start, length = np.array([[self.stream], [self.start], [self.length]], np.int64)
        sums = Episodes(stream, start, length, np.array([self.ending]), np.array([self.tag]), source).returns[0]
        return sums if np.ndim(sums) else float(sums)

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
        from diskbuffer.inspect.notebook import episode

        return episode.frames(self._read(), self, column, n)

    def film_strip(self, n: int = 8, column: str | None = None) -> Picture:
        """Return a film strip of `n` frames, spread evenly; see `frames`."""
        from diskbuffer.inspect.notebook import episode

        return episode.film_strip(self._read(), self, n, column)

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
        from diskbuffer.inspect.notebook import episode

        return episode.video(self._read(), self, fps, column, every, scale, kind)

    def plot(self, columns: Sequence[str] | None = None) -> Picture:
        """Return a plot of columns over the steps of the episode.

        Parameters
        ----------
        columns : sequence of str, optional
            Columns' paths. By default rewards and their sum so far, actions, and what else has 8 components at most.
        """
        from diskbuffer.inspect.notebook import episode

        return episode.plot(self._read(), self, columns)

    def _repr_html_(self) -> str:
        from diskbuffer.inspect.notebook import episode

        return episode.html(self._reader, self)


@dataclass(frozen=True)
class Episodes:
    """Episodes of which a step can be sampled, stream after stream, as columns of equal length.

    Index it as an array: ``episodes[3]`` is one, ``episodes[episodes.length > 100]`` are some, which samplers take as
    ``episodes=``.

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
    """

    stream: Int64
    start: Int64
    length: Int64
    ending: npt.NDArray[np.str_]
    tag: npt.NDArray[np.str_]
    _source: Source = field(repr=False, compare=False)

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """Sums of the rewards that are there, (n, ...) float64, NaN where an episode was evicted since. Reads all of them."""
        return self._source.sum_rewards(self)

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[Episode]:
        return (self[n] for n in range(len(self)))

    @overload
    def __getitem__(self, which: int | np.integer[Any]) -> Episode: ...

    @overload
    def __getitem__(self, which: slice | npt.NDArray[Any] | list[Any]) -> Episodes: ...

    def __getitem__(self, which: Any) -> Episode | Episodes:
        columns = (self.stream, self.start, self.length, self.ending, self.tag)
        try:
            n = operator.index(which)
        except TypeError:
            try:
                stream, start, length, ending, tag = (column[which] for column in columns)
                return Episodes(stream, start, length, ending, tag, self._source)
            except (IndexError, TypeError) as error:
                raise InputError(f"episodes are selected by a number, a slice or a mask: {error}") from error
        episode = Episode(*(column[n].item() for column in columns))
        episode._reader = self._source
        return episode

    def to_pandas(self, *, returns: bool = True) -> pandas.DataFrame:
        """Return them as a table, a row each: stream, start, length, returns, ending (categorical), tag.

        Parameters
        ----------
        returns : bool
            Whether to read all rewards and sum them up. Where a reward is an array, its components are "returns[0]", ...

        Raises
        ------
        MissingPackageError
            pandas is not installed.
        """
        from diskbuffer.inspect.notebook import pandas_tables

        return pandas_tables.of_episodes(self, returns)

    def _repr_html_(self) -> str:
        from diskbuffer.inspect.notebook import episodes

        return episodes.html(self._source, self)


def pick_episode(episodes: Episodes, number: Any) -> Episode:
    """Return the episode of a number, negative ones from the end; an InputError where there is none."""
    try:
        at = operator.index(number)
    except TypeError:
        raise InputError(f"expected an episode's number, or one of buffer.episodes, found {number!r}") from None
    if not -len(episodes) <= at < len(episodes):
        raise InputError(f"there is no episode {at}: the buffer has {counted(len(episodes), 'episode')}, numbered from 0 on")
    return episodes[at]


class Listed(NamedTuple):
    """Columns of `Episodes`, (episodes,) each."""

    stream: Int64
    start: Int64
    length: Int64
    ending: npt.NDArray[np.str_]
    tag: npt.NDArray[np.str_]


def list_episodes(store: Store, index: Streams) -> Listed:
    """Read the episodes of an index; the store's lock must be held. O(episodes)."""
    streams = store.layout.streams
    names = np.array(["", *store.layout.tags])
    columns: list[list[Any]] = [[], [], [], [], []]
    for stream in range(streams):
        head = int(index.table[stream, HEAD])
        starts = np.maximum(index.starts(stream), index.table[stream, FLOOR])
        ends = np.append(starts[1:] - 1, head) if len(starts) else starts
        some = ends > starts
        starts, ends = starts[some], ends[some]
        tagged = TAG in store.layout.derived and store.layout.schema[TAG] == TAG_COLUMN
        store.maps.ensure(index.slots(stream).tolist(), ("terminated", "truncated", *((TAG,) if tagged else ())))  # all at once
        ending = np.full(len(ends), CUT_OFF, f"U{len(TERMINATED)}")
        ending[_at(store, index, stream, ends - 1, "truncated")] = TRUNCATED
        ending[_at(store, index, stream, ends - 1, "terminated")] = TERMINATED
        if len(ends) and ends[-1] == head and not index.table[stream, ENDED]:
            ending[-1] = RUNNING
        tags = np.zeros(len(starts), np.int64)
        if tagged:
            tags = _at(store, index, stream, starts, TAG).astype(np.int64)
            tags[tags >= len(names)] = 0  # a writer elsewhere has named it since
        found = (np.full(len(ends), stream), starts * streams + stream, ends - starts, ending, names[tags])
        for column, values in zip(columns, found, strict=True):
            column.append(values)
    stream_, start, length, ending_, tag = (np.concatenate(column) for column in columns)
    return Listed(stream_, start, length, ending_, tag)


def sum_rewards(store: Store, index: Streams, episodes: Episodes | Listed) -> npt.NDArray[np.float64]:
    """Sum up the rewards of episodes; the store's lock must be held."""
    path = next(path for path in store.layout.schema.step if path.split("/")[0] == "reward")
    rows, streams = index.segment_rows, store.layout.streams
    sums = np.zeros((len(episodes.start), *store.layout.schema[path].shape))
    firsts = episodes.start // streams
    there = (firsts >= index.table[episodes.stream, FLOOR]) & (firsts < index.table[episodes.stream, HEAD])
    sums[~there] = np.nan
    for stream in range(streams):
        mine = np.flatnonzero((episodes.stream == stream) & there)
        mine = mine[np.argsort(firsts[mine], kind="stable")]
        begins, ends = firsts[mine], firsts[mine] + episodes.length[mine]
        low = int(index.table[stream, LOW])
        if len(mine):
            store.maps.ensure(index.slots(stream)[(begins[0] - low) // rows : (ends[-1] - 1 - low) // rows + 1].tolist(), (path,))
        for ordinal in range(int(begins[0]) // rows, int(ends[-1] - 1) // rows + 1) if len(mine) else ():
            first = ordinal * rows
            here = slice(int(np.searchsorted(ends, first, side="right")), int(np.searchsorted(begins, first + rows)))
            if here.start >= here.stop:
                continue
            bounds = np.stack([np.maximum(begins[here], first), np.minimum(ends[here], first + rows)], axis=1) - first
            with np.errstate(invalid="ignore", over="ignore"):  # what lies between episodes may be anything
                values = store.values(path, int(index.slots(stream)[ordinal - low // rows])).astype(np.float64)
                values = np.concatenate([values, np.zeros((1, *values.shape[1:]))])
                sums[mine[here]] += np.add.reduceat(values, bounds.ravel(), axis=0)[::2]
    return sums


def _at(store: Store, index: Streams, stream: int, positions: Int64, name: str) -> npt.NDArray[Any]:
    """Read a flat column at positions of a stream, in ascending order."""
    rows, first = index.segment_rows, int(index.table[stream, LOW]) // index.segment_rows
    found = np.zeros(len(positions), store.layout.schema[name].np_dtype)
    segments = positions // rows
    for segment in range(segments[0], segments[-1] + 1) if len(positions) else ():
        here = slice(*np.searchsorted(segments, (segment, segment + 1)).tolist())
        if here.start == here.stop:
            continue
        values = store.values(name, int(index.slots(stream)[segment - first]))
        found[here] = values[positions[here] % rows]
    return found
