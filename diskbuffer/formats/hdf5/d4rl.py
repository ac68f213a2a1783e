"""D4RL: flat arrays of all steps, in which terminals and timeouts end episodes.

Published at https://github.com/Farama-Foundation/D4RL/wiki; read there by ``d4rl.OfflineEnv.get_dataset``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.hdf5.files import Hdf5File, Node, holds
from diskbuffer.formats.hdf5.robomimic import NEXT_OBS
from diskbuffer.formats.hdf5.trajectories import FLAGS, Following, last_of, last_only
from diskbuffer.formats.naming import Keys, column_paths
from diskbuffer.formats.notes import fitting
from diskbuffer.formats.rows import RowRange, Shaped, without_nan
from diskbuffer.plugin import Contents, EpisodeData, Format, Rows, Source, counted, format_option, integer_or_none

_NAMED = {
    "observations": "obs",
    "actions": "action",
    "rewards": "reward",
    "terminals": f"{FLAGS}terminals",
    "timeouts": f"{FLAGS}timeouts",
}
_NEEDED = ("observations", "actions", "rewards", "terminals")
_BLOCK = 1024**2
_MOST_TEXT = 64 * 1024
ENDS = ("terminals", "timeouts")


def read(path: Path, *, max_episode_steps: int | None = None, ends: str = "terminals", next_obs: str = "check") -> Source:
    """Open a file.

    Parameters
    ----------
    path : pathlib.Path
    max_episode_steps : int, optional
        After so many steps an episode was truncated: of older files, which have no ``timeouts``. 0 where only terminals end
        them.
    ends : {"terminals", "timeouts"}
        Whether terminals end episodes, as timeouts do, or timeouts alone. In AntMaze's files a terminal says that the goal was
        reached, and in some of them the ant walked on.
    next_obs : {"check", "last"}
        Whether ``next_observations``, where there are such, must be the observations that come after, or only each episode's
        last of them is read.

    Raises
    ------
    InputError
        An option is wrong, or `max_episode_steps` is needed.
    SourceError
        It is no such file, or is damaged.
    """
    if next_obs not in NEXT_OBS or ends not in ENDS:
        raise InputError(
            f"next_obs must be one of {', '.join(NEXT_OBS)}, ends of {', '.join(ENDS)}; found {next_obs!r}, {ends!r}"
        )
    max_episode_steps = integer_or_none("max_episode_steps, 0 for none,", max_episode_steps, 0)
    file = Hdf5File(path, "hdf5")
    try:
        return _D4rl(file, max_episode_steps, ends == "terminals", next_obs == "check")
    except BaseException:
        file.close()
        raise


class _D4rl:
    """Read a file's episodes."""

    def __init__(self, file: Hdf5File, most: int | None, by_terminals: bool, check: bool) -> None:
        self._file, self._check = file, check
        root = file.root
        missing = [name for name in _NEEDED if name not in root.names()]
        if missing:
            raise SourceError(f"{file.path} has no {', '.join(missing)}: it is no file of D4RL")
        self._steps = root.array("observations").shape[0] if root.array("observations").shape else 0
        self._rows, left = self._arrays(root)
        self._next = root.array("next_observations") if "next_observations" in root.names() else None
        timeouts = self._rows.get(f"{FLAGS}timeouts")
        if timeouts is None and most is None:
            raise InputError(
                f"{file.path} has no timeouts: say after how many steps episodes were truncated, "
                f"{format_option('max_episode_steps', 1000)}, for one (0 where only terminals end them)"
            )
        self._ends = self._find_ends(timeouts, most if timeouts is None else None, by_terminals)
        self._by_terminals, self._most = by_terminals, most if timeouts is None else None
        self._columns = {path: Column(tuple(rows.shape[1:]), rows.dtype) for path, rows in self._rows.items()}
        metadata, losses = self._metadata(root)
        self.losses: dict[str, str] = losses
        if left:
            self.losses["arrays"] = (
                f"a column has a value for each of {counted(self._steps, 'step')}; these have not, and are left out: "
                f"{', '.join(sorted(left))}"
            )
        self.contents = Contents(self._columns, len(self._ends), self._steps, final=self._next is not None, metadata=metadata)

    def _arrays(self, root: Node) -> tuple[dict[str, Rows], list[str]]:
        """Return the columns of all steps, and the names of arrays that are none."""
        arrays: dict[Keys, Rows] = {}
        left = []
        for keys, node in root.arrays():
            if keys[0] == "metadata" or keys == ("next_observations",):
                continue
            name = "/".join(keys)
            if not node.handle.shape or node.handle.shape[0] != self._steps or not holds(np.dtype(node.handle.dtype)):
                if name in _NEEDED:
                    raise SourceError(f"{self._file.path}: {name} should have {counted(self._steps, 'row')} of numbers")
                left.append(name)
                continue
            rows: Rows = node.rows()
            if name in ("rewards", "terminals", "timeouts") and rows.shape == (self._steps, 1):  # of older files
                rows = Shaped(rows, ())
            if name in ("rewards", "terminals", "timeouts") and rows.shape != (self._steps,):
                raise SourceError(f"{self._file.path}: {name} has the shape {list(rows.shape)}, and should have a value a step")
            arrays[keys] = rows
        return {path: arrays[keys] for keys, path in column_paths(arrays, _NAMED).items()}, left

    def _flags(self, name: str, rows: Rows, first: int, last: int) -> npt.NDArray[np.bool_]:
        return without_nan(np.asarray(rows[first:last]), f"{self._file.path}: {name}", first).astype(bool)

    def _find_ends(self, timeouts: Rows | None, most: int | None, by_terminals: bool) -> npt.NDArray[np.int64]:
        """Return the row after each episode's last."""
        if not self._steps:
            raise SourceError(f"{self._file.path} has no steps")
        blocks = []
        for first in range(0, self._steps, _BLOCK):
            last = min(first + _BLOCK, self._steps)
            over = np.zeros(last - first, bool)
            if by_terminals:
                over |= self._flags("terminals", self._rows[f"{FLAGS}terminals"], first, last)
            if timeouts is not None:
                over |= self._flags("timeouts", timeouts, first, last)
            blocks.append(first + 1 + np.flatnonzero(over))
        ends = np.concatenate([*blocks, np.array([self._steps])])
        ends = np.unique(ends).astype(np.int64)
        if most:
            starts = np.concatenate([[0], ends[:-1]])
            ends = np.concatenate(
                [np.append(np.arange(a + most, b, most), b) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
            )
        return ends

    def _metadata(self, root: Node) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """Return what is said of the data: texts and numbers. Weights of policies are arrays, and left out."""
        group, fields, left = root.get("metadata"), dict[str, Any](), []
        for keys, node in group.arrays() if group is not None else ():
            value = _single(node)
            if value is None:
                left.append("/".join(keys))
            else:
                fields["/".join(keys)] = value
        for name in root.attributes():
            value = root.attribute(name)
            fields[name] = value if isinstance(value, str | int | float | bool) else str(value)[:500]
        metadata, losses = fitting("d4rl", fields)
        if left:
            losses["metadata"] = " ".join(
                [*losses.values(), f"a store's metadata has texts and numbers, and these are left out: {', '.join(sorted(left))}"]
            )
        return metadata if fields else None, losses

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes, in their order."""
        starts = np.concatenate([[0], self._ends[:-1]])
        for begin, end in zip(starts.tolist(), self._ends.tolist(), strict=True):
            steps = end - begin
            columns: dict[str, Rows] = {path: RowRange(rows, begin, end) for path, rows in self._rows.items()}
            if self._next is not None:
                where = f"{self._file.path}: observations of the episode from step {begin} on"
                columns["obs"] = Following(columns["obs"], RowRange(self._next, begin, end), where, check=self._check)
            terminated = last_of(columns[f"{FLAGS}terminals"], steps)
            truncated = last_of(columns.get(f"{FLAGS}timeouts"), steps)
            if self._most and steps == self._most and not terminated:
                truncated = True
            columns["terminated"], columns["truncated"] = last_only(terminated, steps), last_only(truncated, steps)
            yield EpisodeData(columns, steps)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _single(node: Node) -> Any:
    """Return a text or a number; None where it is something else."""
    dataset = node.handle
    if dataset.shape not in ((), (1,)) or dataset.is_virtual or dataset.external or dataset.dtype.itemsize > _MOST_TEXT:
        return None
    if holds(np.dtype(dataset.dtype)):
        node.rows()  # which checks it
        with node.file.errors(node.name):
            return np.ravel(dataset[()])[0].item()
    with node.file.errors(node.name):
        value = np.ravel(dataset[()])[0]
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        return text if isinstance(text, str) and len(text) <= _MOST_TEXT else None


D4RL = Format("d4rl", "D4RL's HDF5: flat arrays of steps", read)
