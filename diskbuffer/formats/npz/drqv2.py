"""Episodes of DrQ-v2, and of those who took its replay over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.naming import column_paths
from diskbuffer.formats.npz.directory import FileSchema, files_of
from diskbuffer.formats.rows import RowRange, Shaped, column_of
from diskbuffer.plugin import Contents, EpisodeData, Format, Rows, integer

_NAMED = {"observation": "obs", "action": "action", "reward": "reward", "discount": "env_discount"}
_NAME = re.compile(r"(.+)_(\d{1,9})_(\d{1,9})\.npz")


class DrQv2Source:
    """Read a directory of episodes, ``TIME_NUMBER_LENGTH.npz``.

    A file of T steps has T + 1 rows. Row 0 has the first observation, and zeros; each other one has the action before its
    observation, and what came of it. Whoever wrote it ends episodes where the environment did: with a discount of 0 that is a
    termination, otherwise a truncation.

    Parameters
    ----------
    path : pathlib.Path
        The directory.
    frame_stack : int
        How many frames are stacked along the observation's first axis. Then single frames are stored, and a stack that does not
        go on where the one before it was is a SourceError. By default, observations are stored as they are.
    """

    def __init__(self, path: Path, *, frame_stack: int = 1) -> None:
        self._files = sorted(files_of(path), key=_order)
        self._schema = FileSchema(self._files[0])
        arrays = self._schema.arrays
        missing = [name for name in _NAMED if name not in arrays]
        if missing:
            raise SourceError(f"{self._files[0]} has no {', '.join(map(repr, missing))}; it has {', '.join(arrays)}")
        self._names = {name: path for (name,), path in column_paths([(name,) for name in arrays], _NAMED).items()}
        self._stack = _stack(frame_stack, arrays["observation"])
        columns = {self._names[name]: column_of(self._shown(name, rows), self._files[0], name) for name, rows in arrays.items()}
        lengths = [_NAME.fullmatch(file.name) for file in self._files]
        steps = sum(int(match[3]) for match in lengths if match) if all(lengths) else None
        self.contents = Contents(columns, len(self._files), steps, frame_stack=self._stack)
        self.losses: Mapping[str, str] = {}

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes."""
        for file in self._files:
            arrays = self._schema.open(file)
            rows = self._schema.rows(file, arrays)
            if rows < 2:
                raise SourceError(f"{file} has {rows} of the two rows or more that an episode has")
            columns: dict[str, Rows] = {}
            for name, path in self._names.items():
                shown = self._shown(name, arrays[name])
                columns[path] = shown if path == "obs" else RowRange(shown, 1, rows)
            terminated = not np.any(arrays["discount"][rows - 1 : rows])
            for flag, value in (("terminated", terminated), ("truncated", not terminated)):
                flags = np.zeros(rows - 1, bool)
                flags[-1] = value
                columns[flag] = flags
            yield EpisodeData(columns, rows - 1)

    def _shown(self, name: str, rows: Rows) -> Rows:
        """Return rows as they are stored: single frames, and rewards without an axis of their own."""
        if name == "observation" and self._stack > 1:
            return _Frames(rows, self._stack, self._files[0].parent)
        return Shaped(rows, ()) if name in ("reward", "discount") and rows.shape[1:] == (1,) else rows

    def close(self) -> None:
        """Close nothing: files are open while they are read."""


class _Frames:
    """The newest frame of each stack; all others are what was before it."""

    def __init__(self, stacks: Rows, n: int, where: Path) -> None:
        self._stacks, self._n, self._where = stacks, n, where
        self.shape = (stacks.shape[0], stacks.shape[1] // n, *stacks.shape[2:])
        self.dtype = stacks.dtype
        self._before: tuple[int, npt.NDArray[Any]] = (0, np.zeros(0))  # the number of a row, and the stack of the one before

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        stacks = np.asarray(self._stacks[first:last])
        frames = stacks.reshape(len(stacks), self._n, *self.shape[1:])
        if len(frames):
            known, before = self._before
            if first == 0:
                self._refuse(0, frames[0, :-1] != frames[0, -1])
            elif known == first:
                self._refuse(first, before[1:] != frames[0, :-1])
            self._refuse(first + 1, frames[:-1, 1:] != frames[1:, :-1])
            self._before = (last, frames[-1].copy())
        return frames[:, -1]

    def _refuse(self, row: int, different: npt.NDArray[np.bool_]) -> None:
        if different.any():
            raise SourceError(f"{self._where}: observations at row {row} or after are no rolling stack of {self._n} frames")


def _stack(frames: int, rows: Rows) -> int:
    frames = integer("frame_stack", frames)
    if frames > 1 and (len(rows.shape) < 2 or rows.shape[1] % frames):
        raise InputError(
            f"frame_stack must be how many frames are stacked along the first of {list(rows.shape[1:])}, found {frames!r}"
        )
    return frames


def _order(file: Path) -> tuple[int, str, int]:
    match = _NAME.fullmatch(file.name)
    return (0, match[1], int(match[2])) if match else (1, file.name, 0)


DRQV2 = Format("drqv2", "episodes of DrQ-v2, .npz", DrQv2Source)
