"""Memory-mapped TensorDicts as episodes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.continuity import runs
from diskbuffer.formats.described import described, read_description
from diskbuffer.formats.json_files import read_json
from diskbuffer.formats.naming import column_paths
from diskbuffer.formats.options import names_in
from diskbuffer.formats.rows import Joined, RowRange, Shaped, column_of
from diskbuffer.formats.tensordicts.arrays import META, Mapped, StoredArrays, find_arrays
from diskbuffer.formats.untrusted import is_file_beside
from diskbuffer.plugin import Contents, EpisodeData, Rows, escape_key, format_option, is_observation

FLAGS = ("done", "terminated", "truncated")
_BOOKKEEPING = re.compile(r"(next/)?(index|_weight|priority_weight|is_init|_data/.*)|(done|terminated|truncated)")
STREAM = "env"
_MOST_ENVS = 65535


class TensorDictSource:
    """Read the storage of a replay buffer of TorchRL, or a TensorDict of steps.

    A step has its observations, its action and more, and under "next" the observations after it, the reward and how it ended. An
    episode goes on as long as nothing is done, and as the observation is what the step before it led to.

    Parameters
    ----------
    path : pathlib.Path
        What `ReplayBuffer.dumps`, `LazyMemmapStorage.dumps` or `TensorDict.memmap` wrote.
    time : int, optional
        Which axis of the batch is time; all others are environments. By default the first of a storage, where it goes on at the
        writer's cursor, and the last of any other TensorDict.
    obs : str or collection of str
        Keys of observations, where they are not those that "next" has, too.
    """

    def __init__(self, path: Path, *, time: int | None = None, obs: str | Collection[str] = ()) -> None:
        self._path, place = path, path / "storage" if (path / "storage" / META).exists() else path
        if not (place / META).is_file():
            raise SourceError(f"{path} is no directory of a TensorDict: there is no {META} in it, nor in storage/")
        self._stored = find_arrays(place)
        filled, cursor, is_storage = _ring(place, self._stored)
        description = read_description(path)
        axes = len(self._stored.shape)
        if not axes or (time is not None and (type(time) is not int or not -axes <= time < axes)):
            raise InputError(f"time must be an axis of the batch, whose shape is {list(self._stored.shape)}, found {time!r}")
        time = (0 if is_storage else axes - 1) if time is None else time % axes
        if math.prod(n for axis, n in enumerate(self._stored.shape) if axis != time) > _MOST_ENVS:
            raise SourceError(f"{path} is of {list(self._stored.shape)} steps, more than {_MOST_ENVS:,} environments")
        self._lines = [
            _Line(self._stored, time, place_of, filled, cursor)
            for place_of in np.ndindex(*(n for axis, n in enumerate(self._stored.shape) if axis != time))
        ]
        if not self._lines or not self._lines[0].steps:
            raise SourceError(f"{path} has no steps")
        names, losses = (
            (described_names(description, path), {}) if description else _names(self._stored, names_in("obs", obs), path)
        )
        missing = [key for key in names.values() if key not in self._stored.arrays]
        if missing:
            raise SourceError(f"{path} has no {missing[0]!r}; it has {', '.join(self._stored.arrays)}")
        self._names, self._description = names, description
        self._has_next = all(f"next/{key}" in self._stored.arrays for column, key in names.items() if is_observation(column))
        self._scalar = (
            description is None or (reward := described(description, path).columns.get("reward")) is None or reward.shape == ()
        )
        first = self._lines[0].columns(names, self._scalar)
        columns = {column: column_of(rows, path, names[column]) for column, rows in first.items()}
        contents = Contents(columns, n_envs=len(self._lines)) if description is None else self._restored(columns)
        self._n_envs = contents.n_envs
        steps = sum(line.steps for line in self._lines)
        self.contents = replace(contents, steps=steps, final=self._has_next)
        self.losses: Mapping[str, str] = {**{name: f"{name} is {what}" for name, what in self._stored.others.items()}, **losses}

    def _restored(self, columns: Mapping[str, Any]) -> Contents:
        contents = described(self._description, self._path)
        for name, column in contents.columns.items():
            if name not in columns or (column.shape, column.np_dtype) != (columns[name].shape, columns[name].np_dtype):
                raise SourceError(
                    f"{self._path}: {name!r} should be {column}, as diskbuffer.json tells, and is {columns.get(name)}"
                )
        return contents

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes, environment by environment."""
        for stream, line in enumerate(self._lines):
            for begin, end in line.episodes(
                [key for column, key in self._names.items() if is_observation(column)] if self._has_next else []
            ):
                yield self._episode(line, begin, end, stream)

    def _episode(self, line: _Line, begin: int, end: int, stream: int) -> EpisodeData:
        columns: dict[str, Rows] = {}
        for column, rows in line.columns(self._names, self._scalar).items():
            columns[column] = RowRange(rows, begin, end)
            if is_observation(column) and self._has_next:
                key = f"next/{self._names[column]}"
                last = RowRange(line.rows(key), end - 1, end)
                columns[column] = Joined([columns[column], Shaped(last, tuple(rows.shape[1:]))])
        for flag in FLAGS[1:]:
            columns[flag] = np.zeros(end - begin, bool)
            columns[flag][-1:] = line.ended(end - 1, flag)  # type: ignore[index]
        if self._description is not None and self._n_envs > 1:
            stream = self._stream(line, begin)
        return EpisodeData(columns, end - begin, stream=stream)

    def _stream(self, line: _Line, row: int) -> int:
        if STREAM not in self._stored.arrays:
            raise SourceError(f"{self._path} should have {STREAM!r}, the environment of each step, as diskbuffer.json tells")
        stream = int(np.asarray(line.rows(STREAM)[row : row + 1]).reshape(-1)[0])
        if not 0 <= stream < self._n_envs:
            raise SourceError(f"{self._path}: {STREAM!r} should be below {self._n_envs}, and is {stream}")
        return stream

    def close(self) -> None:
        """Close nothing: maps go with what reads them."""


class _Line:
    """The steps of one environment in the order of time, which in a ring begins at the writer's cursor."""

    def __init__(self, stored: StoredArrays, time: int, place: tuple[int, ...], filled: int, cursor: int) -> None:
        self._stored = stored
        self._index: Any = (*place[:time], slice(None), *place[time:])
        size = stored.shape[time]
        self.steps = min(filled, size)
        self._cursor = cursor if filled >= size else 0

    def rows(self, key: str) -> Rows:
        """Return the rows of a key."""
        array = Mapped(self._stored.arrays[key][self._index], self._stored.maps.get(key))
        rows: Rows = RowRange(array, 0, self.steps)
        if self._cursor:
            rows = Joined([RowRange(array, self._cursor, self.steps), RowRange(array, 0, self._cursor)])
        return _BFloat16Rows(rows) if key in self._stored.bfloat16 else rows

    def columns(self, names: Mapping[str, str], scalar: bool) -> dict[str, Rows]:
        """Return the rows of each column; where it should be `scalar`, a reward in an axis of its own becomes a number."""
        columns = {column: self.rows(key) for column, key in names.items()}
        rewards = columns.get("reward")
        return (
            columns | {"reward": Shaped(rewards, ())} if scalar and rewards is not None and rewards.shape[1:] == (1,) else columns
        )

    def ended(self, row: int, flag: str) -> bool:
        """Return whether a step has a flag. Where only "done" is told, that is a termination."""
        arrays = self._stored.arrays
        if f"next/{flag}" in arrays:
            return self._flag(f"next/{flag}", row)
        others = [name for name in FLAGS[1:] if f"next/{name}" in arrays]
        if flag == "terminated" and "next/done" in arrays:
            return self._flag("next/done", row) and not any(self._flag(f"next/{name}", row) for name in others)
        return False

    def _flag(self, key: str, row: int) -> bool:
        return bool(np.asarray(self.rows(key)[row : row + 1]).any())

    def episodes(self, obs: list[str]) -> Iterator[tuple[int, int]]:
        """Return where each episode begins and ends: where something is done, and where observations do not go on."""
        ends = np.zeros(self.steps, bool)
        for flag in FLAGS:
            if f"next/{flag}" in self._stored.arrays:
                ends |= np.asarray(self.rows(f"next/{flag}")[: self.steps]).reshape(self.steps, -1).any(axis=1)
        return runs(ends, [(self.rows(key), self.rows(f"next/{key}")) for key in obs])


class _BFloat16Rows:
    """Numbers of bfloat16 as float32, which holds each of them exactly."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self.shape, self.dtype = rows, rows.shape, np.dtype(np.float32)

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        return (np.asarray(self._rows[rows]).astype(np.uint32) << 16).view(np.float32)


def _ring(place: Path, stored: StoredArrays) -> tuple[int, int, bool]:
    """Return how many rows of the time axis are filled, where the oldest is, and whether this is a storage."""
    size = stored.shape[0] if stored.shape else 0
    if not (place / "storage_metadata.json").exists():
        return max(stored.shape, default=0), 0, False
    metadata = read_json(place / "storage_metadata.json")
    length, inner = metadata.get("len"), int(np.prod(stored.shape[1:]))
    if metadata.get("is_pytree"):
        raise SourceError(f"{place} is a storage of something else than TensorDicts")
    if type(length) is not int or not 0 <= length <= size * inner:
        raise SourceError(
            f"{place}: it should have at most {size * inner} steps, and storage_metadata.json tells of {str(length)[:50]}"
        )
    cursor = 0
    if is_file_beside(place.parent, "writer", "metadata.json"):
        metadata = read_json(place.parent / "writer" / "metadata.json")
        cursor = metadata.get("cursor", metadata.get("_cursor", 0))
        if type(cursor) is not int or not 0 <= cursor <= size:
            raise SourceError(
                f"{place.parent}/writer/metadata.json: the cursor should be below {size}, and is {str(cursor)[:50]}"
            )
    return -(-length // max(inner, 1)), cursor % max(size, 1), True


def _names(stored: StoredArrays, obs: list[str], path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the key of each column, and what is lost."""
    keys = [key for key in stored.arrays if not key.startswith("next/") and not _BOOKKEEPING.fullmatch(key)]
    for key in obs:
        if key not in keys:
            raise InputError(f"there is no key {key!r} in {path}; there are {', '.join(keys)}")
    seen = obs or [key for key in keys if f"next/{key}" in stored.arrays and key != "reward"]
    if not seen:
        raise SourceError(f"{path}: no key is under 'next', too, so say which are observations: {format_option('obs', 'KEY')}")
    names = {"obs" if len(seen) == 1 else f"obs/{_path(key)}": key for key in seen}
    following = [
        key.removeprefix("next/") for key in stored.arrays if key.startswith("next/") and not _BOOKKEEPING.fullmatch(key)
    ]
    following = [key for key in following if key not in (*seen, *FLAGS)]
    of = {key: f"next/{key}" for key in following if key == "reward" or key not in keys}
    left = [f"next/{key}" for key in following if key not in of]
    for key in keys:
        if key not in seen and key in of:
            left.append(key)
        elif key not in seen:
            of[key] = key
    paths = column_paths([tuple(key.split("/")) for key in of], {"reward": "reward"}, taken=("obs",))
    losses = {"next": f"{', '.join(left)}: a store has one of a step's values, and the next observation"} if left else {}
    return names | {at: of["/".join(parts)] for parts, at in paths.items()}, losses


def described_names(description: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return the key of each column, as an export of ours tells."""
    names = description.get("keys")
    if not isinstance(names, dict) or not all(isinstance(key, str) for key in names.values()):
        raise SourceError(f"{path}: diskbuffer.json should tell the key of each column")
    return names


def _path(key: str) -> str:
    return "/".join(escape_key(part) for part in key.split("/"))
