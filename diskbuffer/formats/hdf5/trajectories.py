"""What robomimic, LIBERO and ManiSkill have in common: a group of arrays for each episode."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import LossError, SchemaError, SourceError
from diskbuffer.formats.hdf5.files import Hdf5File, Node, holds
from diskbuffer.formats.naming import Keys
from diskbuffer.formats.rows import Repeated
from diskbuffer.plugin import Contents, EpisodeData, Rows, counted, format_option, is_observation

FLAGS = "flags/"  # columns of flags as they are in the file, True in the middle of episodes, too
_SHOWN = 10
_DIGITS = 18  # of an episode's number


@dataclass(frozen=True)
class Trajectory:
    """An episode of a file.

    Attributes
    ----------
    file : Hdf5File
    keys : tuple of str
        Names of the groups that lead to it.
    tag : str
    number : int
        The one in its name.
    """

    file: Hdf5File
    keys: tuple[str, ...]
    tag: str = ""
    number: int = 0

    @property
    def group(self) -> Node:
        """Its group."""
        node = self.file.root
        for key in self.keys:
            node = node.group(key)
        return node

    @property
    def where(self) -> str:
        """Its place, for messages."""
        return f"{self.file.path}: {'/'.join(self.keys)}"


class TrajectorySource:
    """Read the episodes of one file or several.

    All of them are looked through when this is made, but for their values: sizes and dtypes are those of all then, and what only
    some episodes have is known.

    Parameters
    ----------
    trajectories : list of Trajectory
    read : callable
        Returns an episode's arrays by their columns' paths, of flags only those as they are in the file; and the names of what is
        left out.
    ends : callable
        Returns "terminated" and "truncated" of an episode's last step, given its arrays.
    environment, metadata : mapping or None
    losses : mapping
        What else is lost.

    Raises
    ------
    SourceError
        A file is damaged, or is not what its format says.
    """

    def __init__(
        self,
        trajectories: list[Trajectory],
        read: Callable[[Trajectory], tuple[dict[str, Rows], set[str]]],
        ends: Callable[[Mapping[str, Rows], int], tuple[bool, bool]],
        *,
        environment: Mapping[str, Any] | None,
        metadata: Mapping[str, Any] | None,
        losses: Mapping[str, str],
    ) -> None:
        self._trajectories, self._read, self._ends = trajectories, read, ends
        self._columns: dict[str, Column] = {}
        self._steps: list[int] = []
        left: set[str] = set()
        for number, trajectory in enumerate(trajectories):
            columns, steps, others = self._arrays(trajectory)
            left |= others
            if number == 0:
                self._columns = {path: _column(rows, path, trajectory) for path, rows in columns.items()}
                self._final = all(rows.shape[0] > steps for path, rows in columns.items() if is_observation(path))
            left |= columns.keys() ^ self._columns.keys()
            self._steps.append(steps)
        for path in left & self._columns.keys():
            if is_observation(path) or path.split("/")[0] in ("action", "reward"):
                raise SourceError(f"{trajectories[0].file.path}: some episodes have {path!r}, and others have not")
            del self._columns[path]
        self.losses: dict[str, str] = dict(losses)
        if left:
            self.losses["arrays"] = (
                "a column has a number, or an array of one shape, for each step of each episode; left out are "
                f"{', '.join(sorted(left)[:_SHOWN])}"
            )
        self.contents = Contents(
            self._columns,
            len(trajectories),
            sum(self._steps),
            final=self._final,
            environment=environment,
            metadata=metadata,
            tags=any(one.tag for one in trajectories),
        )

    def _arrays(self, trajectory: Trajectory) -> tuple[dict[str, Rows], int, set[str]]:
        """Return an episode's columns, its steps, and the names of what is none."""
        columns, left = self._read(trajectory)
        actions = [rows for path, rows in columns.items() if path == "action" or path.startswith("action/")]
        if not actions or not any(is_observation(path) for path in columns):
            what = "observations" if actions else "actions"
            raise SourceError(
                f"{trajectory.where} has no {what}; files of states alone are made whole by the format's own scripts"
            )
        steps = actions[0].shape[0] if actions[0].shape else 0
        if steps < 1:
            raise SourceError(f"{trajectory.where} has no steps")
        kept: dict[str, Rows] = {}
        for path, rows in columns.items():
            length = rows.shape[0] if rows.shape else -1
            if length == steps or (is_observation(path) and length == steps + 1):
                kept[path] = rows
            elif is_observation(path) or path == "action" or path.startswith("action/"):
                raise SourceError(f"{trajectory.where} has {counted(steps, 'action')}, and {path} has {counted(length, 'row')}")
            else:
                left.add(path)
        if not any(path.split("/")[0] == "reward" for path in kept):  # which a store has anyway
            kept["reward"] = Repeated(np.zeros((), np.float32), steps)
        return kept, steps, left

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes, in the order of their numbers."""
        for trajectory, steps in zip(self._trajectories, self._steps, strict=True):
            arrays, _, _ = self._arrays(trajectory)
            columns = {path: rows for path, rows in arrays.items() if path in self._columns}
            for flag, value in zip(("terminated", "truncated"), self._ends(arrays, steps), strict=True):
                columns[flag] = last_only(value, steps)
            yield EpisodeData(columns, steps, trajectory.tag)

    def close(self) -> None:
        """Close files."""
        for file in {id(one.file): one.file for one in self._trajectories}.values():
            file.close()


class Following:
    """Observations, with the final one that the last of the next observations is.

    All others should be the observations that come after: where they are not, that is a LossError.
    """

    def __init__(self, rows: Rows, following: Rows, where: str, *, check: bool = True) -> None:
        if rows.shape[:1] in ((), (0,)) or following.shape[:1] in ((), (0,)):
            raise SourceError(f"{where}: expected observations of one step at least, found none")
        if following.shape != rows.shape or following.dtype != rows.dtype:
            raise SourceError(
                f"{where}: observations are {rows.dtype}{list(rows.shape)}, next ones {following.dtype}{list(following.shape)}"
            )
        self._rows, self._following, self._where, self._check = rows, following, where, check
        self._steps = rows.shape[0]
        self.shape = (self._steps + 1, *rows.shape[1:])
        self.dtype = rows.dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self._steps + 1)
        values = np.asarray(self._rows[first : min(last, self._steps)])
        if self._check and len(values) > 1:
            following = np.asarray(self._following[first : first + len(values) - 1])
            if following.tobytes() != values[1:].tobytes():
                raise LossError(
                    f"{self._where}: next observations are not those that come after, in rows {first} to {last}; a "
                    f"store has one of both. To go by the observations: {format_option('next_obs', 'last')}"
                )
        if last > self._steps:
            end = np.asarray(self._following[self._steps - 1 : self._steps])
            values = np.concatenate([values, end]) if first < last else values
        return values


def last_only(value: bool, steps: int) -> npt.NDArray[np.bool_]:
    """Return flags of which only the last may be True."""
    flags = np.zeros(steps, bool)
    flags[-1] = value
    return flags


def last_of(rows: Rows | None, steps: int) -> bool:
    """Return the last of some flags."""
    return rows is not None and bool(np.any(np.asarray(rows[steps - 1 : steps])))


def arrays_in(group: Node) -> tuple[dict[Keys, Rows], set[str]]:
    """Return the arrays in a group that have rows of numbers, and the names of those that have not."""
    arrays: dict[Keys, Rows] = {}
    left = set()
    for keys, node in group.arrays():
        if node.handle.shape and holds(np.dtype(node.handle.dtype)):
            arrays[keys] = node.rows()
        else:
            left.add("/".join(keys))
    return arrays, left


def numbered(file: Hdf5File, group: Node, prefix: str) -> list[tuple[int, str]]:
    """Return names such as "demo_7" with their numbers, in their order; a SourceError where there are none."""
    names = [name for name in group.names() if name.startswith(prefix) and name[len(prefix) :].isdecimal()]
    if not names:
        raise SourceError(
            f"{file.path} has no {group.name}/{prefix}0, {prefix}1, ...: it has no episodes, or is of another format"
        )
    longest = max(names, key=len)
    if len(longest) - len(prefix) > _DIGITS:
        raise SourceError(f"{file.path}: numbers of episodes have {_DIGITS} digits at most, found {longest[:50]}...")
    return sorted((int(name[len(prefix) :]), name) for name in names)


def not_read(groups: Iterable[tuple[Node, Collection[str]]]) -> dict[str, str]:
    """Return as a loss what is in groups beside what is read of them."""
    left = [f"{group.name}/{name}".lstrip("/") for group, known in groups for name in sorted(set(group.names()) - set(known))]
    return {"groups": f"what is no episode is left out: {', '.join(left[:_SHOWN])}"} if left else {}


def _column(rows: Rows, path: str, trajectory: Trajectory) -> Column:
    try:
        return Column(tuple(rows.shape[1:]), rows.dtype)
    except SchemaError as error:
        raise SourceError(f"{trajectory.where}: {path} cannot be a column: {error}") from error
