"""Episodes as a memory-mapped TensorDict, which is a storage of TorchRL's, too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from diskbuffer import Column
from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.described import describe, read_description, write_description
from diskbuffer.formats.json_files import write_json
from diskbuffer.formats.rows import RowRange, rows_at_a_time, with_final
from diskbuffer.formats.tensordicts.arrays import META, TYPE, encoded
from diskbuffer.formats.tensordicts.reading import FLAGS, STREAM
from diskbuffer.plugin import BUILT_IN, Contents, EpisodeData, Rows, Writer, either, is_observation, unescape_key

_PROGRESS = "progress.json"


class TensorDictWriter:
    """Append the steps of each episode to the file of each key."""

    def __init__(self, path: Path, contents: Contents) -> None:
        self._path, self._names = path, keys(contents)
        self._several = contents.n_envs > 1
        flags = {f"next/{flag}": Column((1,), "bool") for flag in FLAGS}
        columns = {self._names[column]: contents.columns[column] for column in self._names}
        if "next/reward" in columns and columns["next/reward"].shape == ():
            columns["next/reward"] = Column((1,), columns["next/reward"].dtype)
        following = {f"next/{key}": columns[key] for column, key in self._names.items() if is_observation(column)}
        stream = {STREAM: Column((), "int64")} if self._several else {}
        self._columns: dict[str, Column] = {**columns, **following, **flags, **stream}
        self.held, self._rows = self._resumed(contents)
        self._files: dict[str, IO[bytes]] = {}
        for key, column in self._columns.items():
            *parents, name = (encoded(part) for part in key.split("/"))
            file = path.joinpath(*parents, f"{name}.memmap")
            file.parent.mkdir(parents=True, exist_ok=True)
            opened = file.open("r+b" if file.exists() else "w+b")
            opened.truncate(self._rows * column.row_bytes)
            opened.seek(0, 2)
            self._files[key] = opened

    def _resumed(self, contents: Contents) -> tuple[int, int]:
        """Return how many episodes are there, and their steps."""
        try:
            description = read_description(self._path)
            progress = json.loads((self._path / _PROGRESS).read_text())
            if description is not None:
                return int(progress["episodes"]), int(progress["rows"])
        except (OSError, ValueError, KeyError, TypeError, SourceError):  # begun anew
            pass
        shutil.rmtree(self._path, ignore_errors=True)
        self._path.mkdir(parents=True)
        write_description(self._path, describe(contents, keys=self._names))
        return 0, 0

    def write(self, episode: EpisodeData) -> None:
        """Write one episode."""
        for key, rows in self._rows_of(episode).items():
            step = rows_at_a_time(rows)
            for first in range(0, episode.steps, step):
                block = np.ascontiguousarray(rows[first : min(first + step, episode.steps)], self._columns[key].np_dtype)
                self._files[key].write(block.tobytes())
        for file in self._files.values():
            file.flush()
        self.held, self._rows = self.held + 1, self._rows + episode.steps
        write_json(self._path / _PROGRESS, {"episodes": self.held, "rows": self._rows})

    def _rows_of(self, episode: EpisodeData) -> dict[str, Rows]:
        steps = episode.steps
        arrays: dict[str, Rows] = {}
        for column, key in self._names.items():
            rows = episode.columns[column]
            if is_observation(column):
                whole = with_final(rows, steps)
                arrays[key], arrays[f"next/{key}"] = RowRange(whole, 0, steps), RowRange(whole, 1, steps + 1)
            else:
                arrays[key] = rows
        terminated, truncated = episode.flag("terminated"), episode.flag("truncated")
        for flag, value in zip(FLAGS, (True, terminated, truncated), strict=True):
            flags = np.zeros(steps, bool)
            flags[-1] = value  # an episode that was cut off is done, for its next step is another one's
            arrays[f"next/{flag}"] = flags
        if self._several:
            arrays[STREAM] = np.full(steps, episode.stream, np.int64)
        return arrays

    def finish(self) -> None:
        """Write what tells of the files."""
        directories: dict[str, dict[str, Any]] = {"": {}}
        for key, column in self._columns.items():
            *parents, name = key.split("/")
            for depth in range(len(parents)):
                directories.setdefault("/".join(parents[: depth + 1]), {})
                directories["/".join(parents[:depth])][parents[depth]] = {"type": "TensorDict"}
            shape = [self._rows, *column.shape]
            metadata = {"device": "cpu", "shape": shape, "dtype": f"torch.{column.np_dtype.name}", "is_nested": False}
            directories["/".join(parents)][name] = metadata
        for directory, entries in directories.items():
            place = self._path.joinpath(*(encoded(part) for part in directory.split("/") if part))
            write_json(place / META, {**entries, "shape": [self._rows], "device": "cpu", "_type": TYPE})
        storage = {"metadata": {}, "is_pytree": False, "len": self._rows}
        write_json(self._path / "storage_metadata.json", storage)
        self.close()
        (self._path / _PROGRESS).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def keys(contents: Contents) -> dict[str, str]:
    """Return the key of each column: "observation" for "obs", "pixels" for "obs/pixels", those of a step as they are."""
    names: dict[str, str] = {}
    for path in contents.columns:
        if path in BUILT_IN:
            continue
        parts = [unescape_key(part) for part in path.split("/")]
        key = "/".join(parts[1:] if is_observation(path) and len(parts) > 1 else parts)
        names[path] = {"obs": "observation", "reward": "next/reward"}.get(path, key)
        if path.startswith("reward/"):
            names[path] = f"next/{key}"
    for path, key in names.items():
        taken = key in (*FLAGS, STREAM, "next") or (key.startswith("next/") and not path.startswith("reward"))
        nested = any(other.startswith(f"{key}/") for other in names.values())
        if taken or nested or list(names.values()).count(key) > 1 or any("/" in unescape_key(part) for part in path.split("/")):
            raise InputError(
                f"the column {path!r} would be the key {key!r}, which is another one: "
                f"leave it out by {either('columns=', '--columns')}"
            )
    return names


def write(path: Path, contents: Contents) -> Writer:
    """Return a writer."""
    return TensorDictWriter(path, contents)


def losses(contents: Contents, **_: Any) -> Mapping[str, str]:
    """Return what a TensorDict of steps cannot hold."""
    lost = {}
    if contents.tags:
        lost["tags"] = "TensorDicts of steps have no texts"
    if contents.derived:
        lost["derived"] = f"{', '.join(sorted(contents.derived))}: computed columns become columns like all others"
    return lost
