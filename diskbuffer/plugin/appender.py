"""Writing episodes to a new store block by block, by a run that may be killed, and then goes on where it was."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from diskbuffer.buffer import ReplayBuffer
from diskbuffer.index.named_values import Value
from diskbuffer.opening.store_info import StoreInfo
from diskbuffer.schema.endings import RUNNING
from diskbuffer.schema.nested import put_argument
from diskbuffer.schema.schema import KEPT, Column
from diskbuffer.store.copies import arrays as stored_arrays

Array = npt.NDArray[Any]
_MOST_ROWS = 65536  # of derived columns that wait to be written


class Appender:
    """Write episodes to a new store, or go on with one that an earlier run has begun, with the same calls in the same order.

    How many steps an environment has ever had tells how far the earlier run came: what it has written is passed over. The store's
    capacity must hold all that is appended.

    Parameters
    ----------
    place : path-like
        A directory at which there is nothing, or what an earlier run has left.
    like : StoreInfo, optional
        Of a store that the new one is like: columns, sizes, capacity, environment, metadata.
    derived : mapping of str to Column, optional
        Columns that are written after the steps that they are of. Those of `like`, by default.
    tags : sequence of str, optional
        Tags in the order of their numbers; others get the next ones. Those of `like`, by default.
    arrays : mapping of str to array, optional
        Kept in it, as `Copies.snapshot` keeps them.
    **options
        Of `ReplayBuffer`; in place of what `like` has.

    Attributes
    ----------
    columns : dict of str to Column
        That are given with the steps, by path.

    Raises
    ------
    SchemaError
        What is at the place is another store than is asked for.
    LockedError, NotAStoreError, InputError
        As `ReplayBuffer` raises them.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from diskbuffer import Column
    >>> from diskbuffer.plugin import Appender
    >>> place, columns = tempfile.mkdtemp() + "/store", {"obs": Column((), "int64"), "action": Column((), "int64")}
    >>> with Appender(place, columns=columns) as appender:
    ...     appender.begin(tag="first")
    ...     appender.append({"obs": np.arange(11), "action": np.zeros(10, int)})
    ...     appender.end()
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        like: StoreInfo | None = None,
        *,
        derived: Mapping[str, Column] | None = None,
        tags: Sequence[str] | None = None,
        arrays: Mapping[str, Array] | None = None,
        **options: Any,
    ) -> None:
        settings = {"autoreset": "disabled"} | ({} if like is None else like.options()) | options
        self._derived = {} if like is None else {path: like.columns[path] for path in sorted(like.derived - {"tag"})}
        self._derived = self._derived if derived is None else dict(derived)
        ReplayBuffer(place, **settings).close()  # which also opens the one that was begun
        # In next-step mode, steps that look like resets would be left out.
        self._buffer = buffer = ReplayBuffer(place, mode="r+", autoreset="disabled", writer=settings.get("writer"))
        self.frame_stack = buffer.frame_stack
        others = {*buffer.columns.derived, *self._derived, *KEPT}
        self.columns = {path: column for path, column in buffer.columns.items() if path not in others}
        try:
            stored_arrays.write(buffer._store.files, stored_arrays.checked(arrays or {}))
            for tag in tags if tags is not None else () if like is None else like.tags:
                buffer.episodes.of([]).set_tag(tag)
        except BaseException:
            buffer.close()
            raise
        self._ever = buffer.counts()[1].tolist()  # steps that each environment has had when this began
        self._passed = [0] * buffer.n_envs  # steps so far, those of an earlier run among them
        self._over = [False] * buffer.n_envs  # whether the newest episode is
        self._is_first = [False] * buffer.n_envs  # whether the next step begins it
        # Of the episodes, in their order
        self._tags: list[list[str]] = [[] for _ in range(buffer.n_envs)]
        self._values: list[list[Mapping[str, Value]]] = [[] for _ in range(buffer.n_envs)]
        self._later: list[tuple[int, int, Mapping[str, Array]]] = []  # environment, number of the first step, derived values
        self._waiting = 0  # steps of these

    @property
    def derived(self) -> dict[str, Column]:
        """The columns that `write_columns` takes."""
        return dict(self._derived)

    @property
    def ever(self) -> tuple[int, ...]:
        """How many steps of each environment an earlier run has written."""
        return tuple(self._ever)

    def count(self, env: int = 0) -> int:
        """Return how many steps of an environment were appended, or passed over, so far."""
        return int(self._passed[env])

    def present(self, steps: int, env: int = 0) -> int:
        """Return how many of the next `steps` steps of an environment an earlier run has written; they need not be read."""
        return int(min(max(self._ever[env] - self._passed[env], 0), steps))

    def skip(self, steps: int, env: int = 0) -> None:
        """Pass over steps that are `present`."""
        passed = self.present(steps, env)
        self._passed[env] += passed
        self._is_first[env] = self._is_first[env] and not passed

    def begin(self, env: int = 0, tag: str = "", values: Mapping[str, Value] = MappingProxyType({})) -> None:
        """Begin an episode, whose steps are appended next; a tag of "" is none. It is given its values once it is over."""
        self._tags[env].append(tag)
        self._values[env].append(values)
        self._over[env], self._is_first[env] = False, True

    def append(self, block: Mapping[str, Any], env: int = 0) -> None:
        """Append the next steps of an environment, of the episode that `begin` was called for.

        Parameters
        ----------
        block : mapping of str to array
            By path, (T, ...) of each column; observations (T + 1, ...), the last of which is what the last step led to, or
            (T, ...) beside ``next_obs``. A reward that is missing is 0, and so are flags.
        env : int

        Raises
        ------
        InputError
            As `ReplayBuffer.extend` raises it, of values: a NaN, say.
        """
        steps = _steps(block)
        present, is_first = self.present(steps, env), self._is_first[env]
        self._passed[env] += steps
        self._is_first[env] = self._is_first[env] and not steps
        if present == steps:
            return
        values: dict[str, Any] = {}
        for path, rows in block.items():
            put_argument(values, path, rows[present:])
        if "reward" in self.columns and "reward" not in values:  # a store has one anyway
            column = self.columns["reward"]
            values["reward"] = np.zeros((steps - present, *column.shape), column.np_dtype)
        self._buffer.extend(**values, env=env, new_episode=is_first and not present)

    def write_columns(self, values: Mapping[str, Array], first: int, env: int = 0) -> None:
        """Write derived columns of steps that were appended, or passed over.

        Parameters
        ----------
        values : mapping of str to array
            Of each derived column, (n, ...).
        first : int
            The number of the first of these steps among those of the environment, as `count` told it before they were appended.
        env : int
        """
        self._later.append((env, first, values))
        self._waiting += len(next(iter(values.values())))
        if self._waiting >= _MOST_ROWS:
            self._write_later()

    def _write_later(self) -> None:
        """Write the derived values that wait to the steps that are there still."""
        stored, ever = self._buffer.counts()
        for env in {env for env, _, _ in self._later}:
            mine = [(first, values) for of, first, values in self._later if of == env]
            numbers = np.concatenate([first + np.arange(len(next(iter(values.values())))) for first, values in mine])
            ages = ever[env] - 1 - numbers
            kept = ages < stored[env]
            steps = self._buffer.steps(ages[kept], env)
            for name in self._derived:
                self._buffer.columns.write(name, steps, np.concatenate([values[name] for _, values in mine])[kept])
        self._later, self._waiting = [], 0

    def end(self, env: int = 0) -> None:
        """Say that an environment's newest episode is over; one that is not may go on when the store is written to later."""
        self._over[env] = True

    def commit(self) -> None:
        """Write what waits, tag episodes, and bring all of it to the disk."""
        self._write_later()
        for name, column in self._derived.items():  # also where there are no steps
            self._buffer.columns.write(name, np.zeros(0, np.int64), np.zeros((0, *column.shape), column.np_dtype))
        self._buffer.cut_off(np.flatnonzero(self._over).tolist())
        self._tag()
        self._give_values()
        self._buffer.flush(recompress=True)  # or it would be compressed when it is next written to, if ever

    def _tag(self) -> None:
        """Tag the episodes that are there: the newest ones of each environment."""
        if not any(tag for of_env in self._tags for tag in of_env):
            return
        episodes = self._buffer.episodes
        for env, tags in enumerate(self._tags):
            mine = episodes.stream == env
            starts, current = episodes.start[mine], episodes.tag[mine]
            expected = np.array(tags[len(tags) - len(starts) :], np.str_)
            for tag in sorted(set(expected[expected != current].tolist()) - {""}):
                episodes.of(starts[(expected == tag) & (current != tag)]).set_tag(tag)

    def _give_values(self) -> None:
        """Give the episodes that are there, and over, their values."""
        if not any(values for of_env in self._values for values in of_env):
            return
        episodes = self._buffer.episodes
        for env, values in enumerate(self._values):
            mine = episodes[episodes.stream == env]
            over = mine[mine.ending != RUNNING]
            rows = np.array(values[len(values) - len(mine) :], object)[mine.ending != RUNNING]
            names = dict.fromkeys(name for row in rows for name in row)
            over.set_values(**{name: [row.get(name) for row in rows] for name in names})

    def close(self) -> None:
        """Close the store, which has what was appended so far; `commit` first, to have all else."""
        self._buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Commit, unless there was an error, and close."""
        try:
            if error is None:
                self.commit()
        finally:
            self.close()


def _steps(block: Mapping[str, Any]) -> int:
    tops = {path.split("/")[0]: len(rows) for path, rows in block.items()}
    others = [n for top, n in tops.items() if top not in ("obs", "next_obs")]
    return others[0] if others else tops.get("next_obs", tops.get("obs", 1) - 1)
