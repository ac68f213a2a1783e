"""Zarr v2 replay buffers of diffusion_policy and UMI as episodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.described import NAME, described
from diskbuffer.formats.naming import column_paths
from diskbuffer.formats.options import names_in
from diskbuffer.formats.rows import RowRange, column_of
from diskbuffer.formats.zarr2.group import Group, ZarrRows
from diskbuffer.plugin import BUILT_IN, Contents, EpisodeData, Rows, escape_key, format_option

ENDS, STREAMS = "meta/episode_ends", "meta/stream"
UMI_ACTION = ("eef_pos", "eef_rot_axis_angle", "gripper_width")  # of each robot: what UMI makes its actions of


class ZarrSource:
    """Read a group with `data`, arrays of all steps, and `meta/episode_ends`, where each episode ends.

    Episodes of T steps have T observations: the final one is not known, and nothing says how they ended.

    Parameters
    ----------
    path : pathlib.Path
        A directory, or a zip.
    action : str
        The array of actions, or several, separated by commas.
    obs : str or collection of str, optional
        Those of observations; by default all that are nothing else.
    steps : str or collection of str
        Arrays that are neither, and become columns of steps.
    umi : bool
        Whether actions are made of poses where there are none, as UMI does.
    """

    def __init__(
        self,
        path: Path,
        *,
        action: str | Collection[str] = "action",
        obs: str | Collection[str] | None = None,
        steps: str | Collection[str] = (),
        umi: bool = False,
    ) -> None:
        self._path, self._group = path, Group(path)
        names = [name for name in self._group.arrays if name.count("/") == 1 and name.startswith("data/")]
        if ENDS not in self._group.arrays or not names:
            raise SourceError(f"{path} should have arrays data/... and {ENDS}, and has {', '.join(self._group.arrays) or 'none'}")
        self._arrays = {name.removeprefix("data/"): ZarrRows(self._group, name) for name in names}
        ends = ZarrRows(self._group, ENDS)
        self._ends = _checked(ends, path)
        description = self._group.metadata(".zattrs").get(NAME)
        self._left: dict[str, str] = {}
        losses = {name: f"data/{name} is {rows.dtype}" for name, rows in self._arrays.items() if rows.dtype.kind not in "biufc"}
        self._of = (
            self._described(description) if description is not None else self._from_options(action, obs, steps, set(losses), umi)
        )
        total = int(self._ends[-1])
        for name, rows in self._arrays.items():
            if rows.shape[:1] != (total,):
                raise SourceError(
                    f"{path}: data/{name} should have {total} rows, where the last episode ends, and is {rows.shape}"
                )
        columns = {path: column_of(rows, self._path, path) for path, rows in self._of.items()}
        contents = Contents(columns) if description is None else self._restored(description, columns)
        self._streams = self._read_streams(contents.n_envs)
        self.contents = replace(contents, episodes=len(self._ends), steps=total, final=False)
        self.losses: Mapping[str, str] = self._more_losses(losses | self._left)

    def _described(self, description: Any) -> dict[str, Rows]:
        """Return the array of each column, as an export of ours tells."""
        contents = described(description, self._path)
        names = description.get("keys")
        if not isinstance(names, dict) or not all(isinstance(n, str) and n in self._arrays for n in names.values()):
            raise SourceError(f"{self._path}: it does not have the arrays that its attributes tell of")
        if names.keys() - {"terminated", "truncated"} != contents.columns.keys():
            raise SourceError(f"{self._path}: its attributes tell of other columns than of arrays")
        return {path: self._arrays[name] for path, name in names.items()}

    def _restored(self, description: Any, columns: Mapping[str, Column]) -> Contents:
        contents = described(description, self._path)
        for path, column in {**contents.columns, **{p: c for p, c in BUILT_IN.items() if p in columns}}.items():
            if (column.shape, column.np_dtype) != (columns[path].shape, columns[path].np_dtype):
                raise SourceError(f"{self._path}: {path!r} should be {column}, as its attributes tell, and is {columns[path]}")
        return contents

    def _from_options(
        self,
        action: str | Collection[str],
        obs: str | Collection[str] | None,
        steps: str | Collection[str],
        but: set[str],
        umi: bool,
    ) -> dict[str, Rows]:
        """Return the array of each column, as the caller tells."""
        options = {"action": names_in("action", action), "obs": names_in("obs", obs or ()), "steps": names_in("steps", steps)}
        poses = [name for name in sorted(self._arrays) if umi and name.split("_", 1)[-1] in UMI_ACTION]
        made = umi and options["action"] == ["action"] and "action" not in self._arrays and bool(poses)
        for option, names in options.items():
            missing = [name for name in names if name not in self._arrays and not made]
            if missing:
                raise InputError(
                    f"there is no array data/{missing[0]} in {self._path}; there are {', '.join(self._arrays)}. Say which are "
                    f"what: {format_option(option, 'NAME')}"
                )
        rest = [name for name in self._arrays if name not in (*options["action"], *options["steps"], *but)]
        seen = options["obs"] or rest
        if not seen:
            raise SourceError(f"{self._path} has no observations: its arrays are {', '.join(self._arrays)}")
        columns: dict[str, Rows] = {"obs" if len(seen) == 1 else f"obs/{escape_key(name)}": self._arrays[name] for name in seen}
        if made:
            columns["action"] = _Beside([self._arrays[name] for name in _in_umis_order(poses)], self._path)
        elif len(options["action"]) == 1:
            columns["action"] = self._arrays[options["action"][0]]
        else:
            columns |= {f"action/{escape_key(name)}": self._arrays[name] for name in options["action"]}
        more = column_paths([(name,) for name in options["steps"]], {}, taken=("obs", "action"))
        left = [name for name in rest if name not in seen and not (made and name in poses)]
        if left:
            self._left["arrays"] = (
                f"{', '.join(left)}: neither actions, nor among the observations and columns of steps that were named"
            )
        return columns | {path: self._arrays[name] for (name,), path in more.items()}

    def _read_streams(self, n_envs: int) -> npt.NDArray[np.int64]:
        if STREAMS not in self._group.arrays or n_envs == 1:
            return np.zeros(len(self._ends), np.int64)
        rows = ZarrRows(self._group, STREAMS)
        streams = rows[: len(self._ends)] if rows.shape == self._ends.shape and rows.dtype.kind in "iu" else np.array([-1])
        if streams.min() < 0 or streams.max() >= n_envs:
            raise SourceError(f"{self._path}: {STREAMS} should have an environment for each episode, of {n_envs}")
        return streams.astype(np.int64)

    def _more_losses(self, losses: dict[str, str]) -> dict[str, str]:
        nested = [name for name in self._group.arrays if name.count("/") > 1 or not name.startswith(("data/", "meta/"))]
        if nested:
            losses["groups"] = f"arrays elsewhere than in data and meta are not read: {', '.join(nested)}"
        meta = [name for name in self._group.arrays if name.startswith("meta/") and name not in (ENDS, STREAMS, *nested)]
        if meta:
            losses["meta"] = f"{', '.join(meta)}: what was noted of episodes"
        return losses

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes."""
        for number in range(len(self._ends)):
            begin, end = int(self._ends[number - 1]) if number else 0, int(self._ends[number])
            columns: dict[str, Rows] = {path: RowRange(rows, begin, end) for path, rows in self._of.items()}
            yield EpisodeData(columns, end - begin, stream=int(self._streams[number]))

    def close(self) -> None:
        """Close the file."""
        self._group.close()


class _Beside:
    """Rows of several arrays, joined along their only other axis."""

    def __init__(self, arrays: list[ZarrRows], where: Path) -> None:
        self._arrays = arrays
        if any(len(rows.shape) != 2 or rows.shape[0] != arrays[0].shape[0] for rows in arrays):
            raise SourceError(f"{where}: poses should be vectors, of as many rows each, found {[rows.shape for rows in arrays]}")
        self.shape = (arrays[0].shape[0], sum(rows.shape[1] for rows in arrays))
        self.dtype = np.result_type(*(rows.dtype for rows in arrays))

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        return np.concatenate([part[rows] for part in self._arrays], axis=1)


def _in_umis_order(poses: list[str]) -> list[str]:
    """Return robot0's position, rotation and gripper, then robot1's."""
    return sorted(poses, key=lambda name: (len(name.split("_")[0]), name.split("_")[0], UMI_ACTION.index(name.split("_", 1)[1])))


def _checked(ends: ZarrRows, path: Path) -> npt.NDArray[np.int64]:
    if len(ends.shape) != 1 or ends.dtype.kind not in "iu" or not ends.shape[0]:
        raise SourceError(f"{path}: {ENDS} should be whole numbers, one of each episode, and is {ends.dtype}{list(ends.shape)}")
    numbers = ends[: ends.shape[0]].astype(np.int64)
    steps = np.diff(numbers, prepend=0)
    if steps.min() < 1:
        number = int(np.argmin(steps >= 1))
        raise SourceError(
            f"{path}: {ENDS} should ascend, and episode {number} ends at {numbers[number]}, {steps[number]} steps on"
        )
    return numbers
