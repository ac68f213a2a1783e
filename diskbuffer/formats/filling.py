"""Episodes into a buffer, block by block, from where an interrupted run stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column, ReplayBuffer
from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.data import EpisodeData
from diskbuffer.formats.rows import MAPPED, rows_at_a_time, with_final
from diskbuffer.plugin import KEPT, counted, either, is_observation, put_argument

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
_MOST_ROWS = 65536  # that are read at a time


def fill(
    buffer: ReplayBuffer,
    episodes: Iterable[EpisodeData],
    told: Callable[[int], None],
    derived: Mapping[str, Column] | None = None,
) -> None:
    """Add episodes to a buffer, but for those steps that an earlier call with the same episodes has added to it, and seal it.

    Each stream is filled in the order in which its episodes come, so how many steps it has ever had tells how far it was filled.
    Derived columns are written after the steps that they are of, those of an earlier call, too.

    Parameters
    ----------
    buffer : ReplayBuffer
        Empty, or filled in part with the same episodes, perhaps by a process that was killed. Opened with
        ``autoreset="disabled"``: with "next_step", steps that look like resets are none.
    episodes : iterable of EpisodeData
    told : callable
        Is given how many steps were added, or found to be there, each time.
    derived : mapping of str to Column, optional
        Columns to be written later than the steps, as `ReplayBuffer.write` does.

    Raises
    ------
    SourceError
        The rows of an episode's columns are not as many as its steps, or not of the buffer's dtypes and shapes.
    InputError
        As `ReplayBuffer.extend` raises it, of values: a NaN, say.
    """
    buffer._expect_cut_offs()  # an episode without a flag is nothing to warn of: the source says where each one ends
    filler = _Filler(buffer, told, derived or {})
    for number, episode in enumerate(episodes):
        _check(number, episode, {**filler.columns, **filler.derived})
        filler.add(episode)
    filler.finish()
    buffer.flush()
    buffer.seal()  # or it would be compressed when it is next written to, if ever


class _Filler:
    def __init__(self, buffer: ReplayBuffer, told: Callable[[int], None], derived: Mapping[str, Column]) -> None:
        self._buffer, self._told, self.derived = buffer, told, derived
        self.columns = {name: c for name, c in buffer.columns.items() if name not in (*buffer.derived, *derived, *KEPT)}
        self._streams = buffer.n_envs
        self._ever = buffer.counts()[1].tolist()  # steps that each stream has had when this began
        self._passed = [0] * self._streams  # steps of the episodes so far
        self._runs = [False] * self._streams  # whether the last one of these is not over
        self._tags: list[list[str]] = [[] for _ in range(self._streams)]  # of the episodes, in their order
        self._later: list[tuple[int, int, dict[str, Array]]] = []  # derived values: stream, number of the first step, values
        self._waiting = 0  # steps of these
        self._row_bytes = sum(column.row_bytes for column in self.columns.values())
        self._written = 0  # bytes of rows, since memory maps were let go

    def add(self, episode: EpisodeData) -> None:
        """Add what is not there yet of an episode."""
        stream = episode.stream
        self._tags[stream].append(episode.tag)
        self._runs[stream] = episode.running
        number = self._passed[stream]
        self._passed[stream] += episode.steps
        begin = min(max(self._ever[stream] - number, 0), episode.steps)
        self._told(begin)
        if begin == 0 and episode.lead and self._buffer.frame_stack > 1:
            self._extend(stream, self._first_step(episode), new_episode=True)
            self._told(1)
            begin = 1
        read = (rows for path, rows in episode.columns.items() if path in self.columns)
        block = rows_at_a_time(*read, most=_MOST_ROWS)
        for first in range(begin, episode.steps, block):
            last = min(first + block, episode.steps)
            values: dict[str, Any] = {}
            for path in episode.columns:
                if path in self.columns:
                    put_argument(values, path, _finite(path, self.columns[path], _rows(episode, path, first, last)))
            if "reward" in self.columns and "reward" not in values:  # a store has one anyway
                column = self.columns["reward"]
                values["reward"] = np.zeros((last - first, *column.shape), column.np_dtype)
            self._extend(stream, values, new_episode=first == 0)
            self._told(last - first)
            self._let_go(last - first)
        for first in range(0, episode.steps if self.derived else 0, _MOST_ROWS):
            last = min(first + _MOST_ROWS, episode.steps)
            values = {
                name: _finite(name, column, np.asarray(episode.columns[name][first:last]))
                for name, column in self.derived.items()
            }
            self._later.append((stream, number + first, values))
            self._waiting += last - first
            if self._waiting >= _MOST_ROWS:
                self._write_derived()

    def _extend(self, stream: int, values: dict[str, Any], *, new_episode: bool) -> None:
        """Add steps to a stream."""
        buffer = self._buffer
        with buffer._store.lock:
            obs, next_obs = values.pop("obs", None), values.pop("next_obs", None)
            buffer._writing().extend(values, obs, next_obs, stream, new_episode)

    def _let_go(self, steps: int) -> None:
        """Give back memory maps once there may be enough of them: nobody samples here, and they grow with the store."""
        self._written += steps * self._row_bytes
        if self._written > MAPPED:
            with self._buffer._store.lock:
                self._buffer._store.maps.retire_all()
            self._written = 0

    def _first_step(self, episode: EpisodeData) -> dict[str, Any]:
        """Return an episode's first step, its observations as stacks, whose earlier frames come from before the episode."""
        frames = self._buffer.frame_stack - 1
        values: dict[str, Any] = {}
        for path in episode.columns:
            if path not in self.columns:
                continue
            found = _finite(path, self.columns[path], _rows(episode, path, 0, 1))
            if is_observation(path):
                rows = np.concatenate([episode.lead[path][-frames:], found])
                put_argument(values, path, rows[None, :-1])
                put_argument(values, f"next_{path}", rows[None, 1:])
            else:
                put_argument(values, path, found)
        return values

    def _write_derived(self) -> None:
        """Write the derived values that wait to the steps that are there still."""
        there, ever = self._buffer.counts()
        for stream in {stream for stream, _, _ in self._later}:
            mine = [(number, values) for of, number, values in self._later if of == stream]
            lengths = [len(next(iter(values.values()))) for _, values in mine]
            ages = np.concatenate(
                [ever[stream] - 1 - number - np.arange(n) for (number, _), n in zip(mine, lengths, strict=True)]
            )
            kept = ages < there[stream]
            steps = self._buffer.recent_steps(ages[kept], stream)
            for name in self.derived:
                self._buffer.write(name, steps, np.concatenate([values[name] for _, values in mine])[kept])
        self._later, self._waiting = [], 0

    def finish(self) -> None:
        """End the episodes that are over, and write what is written once the steps are there."""
        self._write_derived()
        for name, column in self.derived.items():  # also where there are no steps
            self._buffer.write(name, np.zeros(0, np.int64), np.zeros((0, *column.shape), column.np_dtype))
        with self._buffer._store.lock:
            self._buffer._writing().cut_off([stream for stream in range(self._streams) if not self._runs[stream]])
        self._tag()

    def _tag(self) -> None:
        """Tag the episodes that are there: the newest ones of each stream."""
        if not any(tag for of_stream in self._tags for tag in of_stream):
            return
        episodes = self._buffer.episodes
        for stream, of_stream in enumerate(self._tags):
            starts = episodes.start[episodes.stream == stream]
            wanted = np.array(of_stream[len(of_stream) - len(starts) :], np.str_)
            there = episodes.tag[episodes.stream == stream]
            for tag in sorted(set(wanted[wanted != there].tolist()) - {""}):
                self._buffer.tag(tag, starts[(wanted == tag) & (there != tag)])


def _finite(path: str, column: Column, rows: Array) -> Array:
    """Return rows as they are; an InputError where one is not finite, and must be: `extend` has no option for it."""
    if rows.dtype.kind in "fc" and not column.allow_nan and not np.isfinite(rows).all():
        accept = either("allow_nan=True", "--allow-nan")
        raise InputError(f"{path}: found NaN or infinity; find where it comes from, or accept it: {accept}")
    return rows


def _rows(episode: EpisodeData, path: str, first: int, last: int) -> Array:
    """Return a column of some steps; of an observation, a row more."""
    rows = episode.columns[path]
    return np.asarray(with_final(rows, episode.steps)[first : last + 1] if is_observation(path) else rows[first:last])


def _check(number: int, episode: EpisodeData, columns: Mapping[str, Column]) -> None:
    for path in columns:
        if path not in episode.columns and path not in ("terminated", "truncated", "reward"):
            raise SourceError(f"episode {number} has no column {path!r}; it has {', '.join(episode.columns)}")
    for path, found in episode.columns.items():
        if path not in columns:
            continue
        column, rows = columns[path], found.shape[0] if found.shape else -1
        if rows != episode.steps and not (is_observation(path) and rows == episode.steps + 1):
            raise SourceError(
                f"episode {number} has {counted(episode.steps, 'step')}, and its column {path!r} {counted(rows, 'row')}"
                f"{': it may have as many, or one more' if is_observation(path) else ''}"
            )
        shape = tuple(found.shape[1:])
        fits = shape == column.shape or column.transform  # of pictures that are transformed, `extend` says what does not fit
        if not fits or found.dtype != column.np_dtype:
            raise SourceError(f"episode {number}: rows of {path!r} are {found.dtype}{list(shape)}, and should be {column}")
