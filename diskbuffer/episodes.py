"""The episodes that a buffer holds, as users get them: to look at, to filter, and to sample from."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import column_paths, step_ids, truth
from diskbuffer.arguments.integers import shown
from diskbuffer.arguments.shown import Picture, Video
from diskbuffer.columns.derived import DerivedColumns
from diskbuffer.columns.giving_values import give_values
from diskbuffer.columns.tags import tag_episodes
from diskbuffer.errors import InputError, LookupInputError
from diskbuffer.opening.access import Access, OfBuffer
from diskbuffer.reading.batches.base import Batch
from diskbuffer.reading.episode_columns import EpisodeColumns, EpisodeFields, Int64, row_of
from diskbuffer.reading.episode_reader import EpisodeReader
from diskbuffer.runtime.notebook import notebook

if TYPE_CHECKING:
    import pandas


class Episode(EpisodeFields):
    """One episode: its stream, the first step that is there, how many steps are there, how it ended, its tag, and its id.

    A tuple of these six. Its id is that of the step that it began with, evicted or not, and never changes. What else it has is
    read when it is asked for. What is drawn needs pillow, Matplotlib for plots, or PyAV for MP4; a notebook shows an episode as a
    table and a film strip. Once its buffer evicts some of it, that raises an InputError. A pickled or copied episode is the tuple
    alone.
    """

    _reader: EpisodeReader | None = None
    _buffer: object = None  # which stays open meanwhile

    def __getstate__(self) -> None:
        """Return nothing: the buffer does not go with a pickle."""

    @property
    def identity(self) -> int | str | None:
        """As of `Episodes`; None where it has no buffer."""
        return None if self._reader is None else self._reader.identity

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

    @property
    def values(self) -> dict[str, bool | int | float | str]:
        """What it was given by name; see `Episodes.set_values`. Those of one that was evicted are still told for a while."""
        return {name: each.one(0) for name, each in self._read().values(np.array([self.id])).items()}

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
        frames: npt.NDArray[Any] = notebook("episode").frames(self._read(), self, column, n)
        return frames

    def film_strip(self, n: int = 8, column: str | None = None) -> Picture:
        """Return a film strip of `n` frames, spread evenly; see `frames`."""
        strip: Picture = notebook("episode").film_strip(self._read(), self, n, column)
        return strip

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
        video: Video = notebook("episode").video(self._read(), self, fps, column, every, scale, kind)
        return video

    def _repr_html_(self) -> str:
        html: str = notebook("episode").html(self._reader, self)
        return html


class Episodes(OfBuffer):
    """Episodes of a buffer of which a step can be sampled, stream after stream: a table that is read when it is first asked for.

    Index it as an array: ``episodes[3]`` is the fourth of them, ``episodes[episodes.length > 100]`` are some, which samplers
    take as ``episodes=``. As episodes come and go, their places change, and their ids do not: ``episodes.find(id)`` is one.
    Once read, which takes milliseconds for thousands, the table stays as it is, also when the buffer was closed;
    ``buffer.episodes`` is another one each time, and ``buffer.episodes[:]`` reads it at once.
    """

    def __init__(
        self,
        buffer: object,
        derived: DerivedColumns,
        access: Access,
        table: EpisodeColumns | None = None,
        steps: Int64 | None = None,
    ) -> None:
        self._buffer = buffer  # which stays open meanwhile
        self._derived, self._reader, self._access = derived, derived.reader, access
        self._known, self._steps = table, steps

    @property
    def _source(self) -> EpisodeReader:
        return EpisodeReader(self._reader)

    @property
    def _table(self) -> EpisodeColumns:
        if self._known is None:
            self._access.check_open()
            every = self._reader.episodes()
            self._known = every if self._steps is None else every.some(every.rows_of(self._steps, self._reader.streams))
        return self._known

    @property
    def identity(self) -> int | str:
        """What no other store has, but copies of this one; samplers and buffers refuse another's episodes."""
        return self._reader.identity

    @property
    def stream(self) -> Int64:
        """The environment, or that of one of several writers, (n,) int64."""
        return self._table.stream

    @property
    def start(self) -> Int64:
        """The first step that can be sampled, as in a batch's ``steps``, (n,) int64. Eviction may have taken earlier ones."""
        return self._table.start

    @property
    def length(self) -> Int64:
        """Steps that can be sampled, (n,) int64."""
        return self._table.length

    @property
    def ending(self) -> npt.NDArray[np.str_]:
        """How each ended, (n,) str: "terminated", "truncated" (both, then "terminated"), "cut off", or "running"."""
        return self._table.ending

    @property
    def tag(self) -> npt.NDArray[np.str_]:
        """The tag that `set_tag` gave, else "", (n,) str."""
        return self._table.tag

    @property
    def values(self) -> dict[str, npt.NDArray[Any]]:
        """What `set_values` gave, by name, as of now: (n,) bool, False where none was; int64, or float64, NaN; or text, "".

        Such as ``episodes[episodes.values["success"]]``. Names that none of these has are left out.
        """
        self._access.check_open()
        return {name: each.shown for name, each in self._reader.values_of_episodes(self.id).items()}

    @property
    def id(self) -> Int64:
        """The id of the step which the episode began with, (n,) int64, also where eviction has taken that step."""
        return self._table.id

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """Sums of the rewards that are there, (n, ...) float64, NaN where an episode was evicted since. Reads all of them."""
        return self._source.sum_rewards(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        if self._known is None:
            return "<Episodes, not read yet>"
        return f"<Episodes: {len(self):,}, of {int(self.length.sum()):,} steps>"

    def __str__(self) -> str:
        """Return a table of the first and the last; its returns are read."""
        text: str = notebook("episodes").text(self._source, self._table)
        return text

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
                some = self._table.some(which)
            except (IndexError, TypeError, ValueError):
                some = None
            if some is None or some.id.ndim != 1:
                raise InputError(
                    f"{len(self):,} episodes are selected from by a number, a slice, a mask or an array of numbers, found "
                    f"{shown(which)}; find(id) returns the episode of an id"
                ) from None
            return Episodes(self._buffer, self._derived, self._access, some)
        if not -len(self) <= n < len(self):
            raise LookupInputError(f"there is no episode number {n} of {len(self):,}; find(id) returns the episode of an id")
        episode = Episode(*self._table.one(n))
        episode._reader, episode._buffer = self._source, self._buffer
        return episode

    def find(self, id: int) -> Episode:
        """Return the episode of an id; an InputError where none of these has it."""
        return self[row_of(self.id, id)]

    def of(self, steps: Any) -> Episodes:
        """Return the buffer's episodes that steps lie in, each once.

        Parameters
        ----------
        steps : (n,) or (n, length) integers
            As in a batch's ``steps``; -1 in sequences is left out.

        Raises
        ------
        InputError
            A step was evicted, or never was one.
        """
        ids = step_ids(steps, of_sequences=True)
        ids = ids[ids != -1] if ids.ndim == 2 else ids
        gone = ids[self.remaining(ids) == 0]
        if len(gone):
            raise InputError(f"step {gone[0]} is in no episode that is there: it was evicted, or was never added")
        return Episodes(self._buffer, self._derived, self._access, None, ids)

    def set_tag(self, tag: str | None) -> int:
        """Tag these episodes, in place of the tags that they have; None takes them away.

        ``buffer.episodes.tag`` shows it from then on, and the column ``tag`` has its number: that of the first of `tag_names` is
        1, and 0 is none.

        Parameters
        ----------
        tag : str or None
            "demonstration", "task 3", ...; 65,535 different ones at most.

        Returns
        -------
        int
            How many episodes were tagged.

        Raises
        ------
        InputError
            That is no tag, an episode is not over, or it was evicted since. None was tagged.
        ReadOnlyError
            The buffer was opened with ``mode="r"``.
        """
        steps = self.start if self._steps is None else self._steps  # so that `of` costs no table
        with self._reader.lock:
            self._access.write_columns("episodes.set_tag()")
            return tag_episodes(self._derived, tag, steps)

    def set_values(self, /, **values: Any) -> int:
        """Give these episodes values by name, beside those that they have, or in place of them; None takes one away.

        ``buffer.episodes.values`` shows them, and conditions take their names: ``where="success and score > 0.5"``. A kill does
        not lose them; a power loss does, unless `flush` has run since. They are gone with their episode.

        Parameters
        ----------
        **values : bool, int, float, str or None, or (n,) of them
            One for all, or one for each, in their order: ``success=True, instruction="fold the towel"``. A text has at most
            64 KiB of UTF-8. All values of a name are of one kind: truths, numbers or texts. Integers have 64 bits, or 53 beside
            floats.

        Returns
        -------
        int
            How many episodes were given values.

        Raises
        ------
        InputError
            A name or a value is none, or of another kind; an episode is not over, or was evicted since. None was given any.
        ReadOnlyError
            The buffer was opened with ``mode="r"``, or has the stores of several writers, who give values each to their own.
        ClosedError, DiskFullError, CorruptionError
            It was closed; the disk is full; or the file of values is damaged. None was given any.

        Examples
        --------
        >>> import diskbuffer as db, tempfile
        >>> with db.ReplayBuffer(tempfile.mkdtemp() + "/store", columns={"obs": db.Column(), "action": db.Column()}) as buffer:
        ...     for step in range(4):
        ...         _ = buffer.add(step, 0, 1.0, step + 1, step % 2 == 1, False)
        ...     _ = buffer.episodes.set_values(success=[False, True], operator="Ada")
        ...     buffer.episodes[buffer.episodes.values["success"]][0].values
        {'operator': 'Ada', 'success': True}
        """
        self._access.recorder("episodes.set_values()")
        self._access.check_in_place()
        each_once = self._known is None and self._steps is not None
        steps = self._steps if each_once else self.start
        assert steps is not None
        return give_values(self._derived, steps, values, each_once=each_once)

    @property
    def tag_names(self) -> tuple[str, ...]:
        """The tags that the buffer's episodes were ever given; the column ``tag`` has their numbers, from 1 on."""
        return self._derived.store.layout.tags

    def remaining(self, steps: Any) -> Int64:
        """Count the steps of its episode that there are from each step on, itself among them; of one that runs, so far.

        Parameters
        ----------
        steps : (n,) integers
            As in a batch's ``steps``, of any of the buffer's episodes.

        Returns
        -------
        (n,) int64
            0 where a step was evicted, or never was one.
        """
        self._access.check_open()
        return self._reader.remaining(steps)

    def elapsed(self, steps: Any) -> Int64:
        """Count the steps of its episode that came before each step, evicted ones, too; -1 where a step itself was evicted."""
        self._access.check_open()
        return self._reader.elapsed(steps)

    def read(self, *, columns: Sequence[str] | None = None) -> Iterator[Batch]:
        """Yield one episode after the other, as `ReplayBuffer.episode` returns it. Those that were evicted since are left out.

        Parameters
        ----------
        columns : sequence of str, optional
            As in `ReplayBuffer.at`: these alone are read.
        """
        paths = column_paths(columns)
        return self._batches(paths)

    def _batches(self, paths: tuple[str, ...] | None) -> Iterator[Batch]:
        for episode in self:
            if self.remaining([episode.start])[0] < episode.length:
                continue
            try:
                batch = self._reader.episode(episode, paths)
            except InputError:
                if self.remaining([episode.start])[0] < episode.length:
                    continue  # another thread added since
                raise
            yield batch

    def to_pandas(self, *, steps: bool = False, columns: Sequence[str] | None = None, returns: bool = True) -> pandas.DataFrame:
        """Return them as a table, a row each by id: stream, start, length, returns, ending (categorical), tag, values by name.

        Parameters
        ----------
        steps : bool
            Whether to return a row for each of their steps instead, by its id: episode (its id), stream, t (the step's number in
            its episode), columns. Reads all of it into memory.
        columns : sequence of str, optional
            Of steps: columns' paths; those with 32 numbers a step at most by default. Arrays are taken apart: "obs[0]", "obs[1]",
            ...
        returns : bool
            Of episodes: whether to read all rewards and sum them up. Where a reward is an array, its components are
            "returns[0]", ...

        Raises
        ------
        InputError
            There is no such column, it is too large for a table, or an episode was evicted since.
        MissingPackageError
            pandas is not installed.
        """
        tables, paths = notebook("pandas_tables"), column_paths(columns)
        if not truth("steps", steps) and columns is not None:
            raise InputError("columns= are those of steps: give steps=True, too")
        table: pandas.DataFrame
        if steps:
            table = tables.of_steps(self._source, self._table, paths)
        else:
            table = tables.of_episodes(self._source, self._table, returns)
        return table

    def _repr_html_(self) -> str:
        html: str = notebook("episodes").html(self._source, self._table)
        return html
