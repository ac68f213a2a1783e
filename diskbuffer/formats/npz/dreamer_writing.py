"""Episodes as Dreamer's replays."""

from __future__ import annotations

import math
import secrets
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.described import describe, read_description, write_description
from diskbuffer.formats.npz.dreamer_keys import given_keys
from diskbuffer.formats.npz.dreamer_names import base62, moment, number_of
from diskbuffer.formats.npz.writing import write_npz
from diskbuffer.formats.rows import Joined, with_final, zeros
from diskbuffer.plugin import Contents, EpisodeData, Rows, Writer, is_observation

_ROWS = 1024  # of a chunk, as DreamerV3 has it
_MEMORY = 128 * 1024**2  # bytes of chunks that are being filled


def write(path: Path, contents: Contents, *, version: int = 3) -> Writer:
    """Write chunks of streams (3), or a file an episode (2)."""
    if version not in (2, 3):
        raise InputError(f"version must be 2 (a file an episode) or 3 (chunks), found {version!r}")
    keys = given_keys(contents)
    description = _description(path)
    if description is None or description.get("dreamer") != version:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        base = secrets.randbits(128) >> 48 << 48
        more = {"dreamer": version, "keys": dict(keys.of), "base": base62(base), "made": datetime.now().isoformat()}
        description = describe(contents, **more)
        write_description(path, description)
    for left in path.glob("*.part"):
        left.unlink()
    return _Chunks(path, contents, dict(keys.of), description) if version == 3 else _Episodes(path, dict(keys.of), description)


def _description(path: Path) -> dict[str, Any] | None:
    try:
        return read_description(path)
    except SourceError:  # of an export that was killed: begun anew
        return None


def _rows_of(episode: EpisodeData, keys: dict[str, str], actions_late: bool) -> dict[str, Rows]:
    """Return the T + 1 rows of an episode of T steps, by Dreamer's names."""
    steps = episode.steps
    arrays: dict[str, Rows] = {}
    for path, name in keys.items():
        rows = episode.columns[path]
        if is_observation(path):
            arrays[name] = with_final(rows, steps)
        else:
            late = path == "reward" or actions_late
            arrays[name] = Joined([zeros(rows), rows] if late else [rows, zeros(rows)])
    terminated, truncated = episode.flag("terminated"), episode.flag("truncated")
    for name, row, value in (
        ("is_first", 0, True),
        ("is_last", steps, terminated or truncated),
        ("is_terminal", steps, terminated),
    ):
        flags = np.zeros(steps + 1, bool)
        flags[row] = value
        arrays[name] = flags
    return arrays


class _Episodes:
    """A file an episode, as DreamerV2 writes them, named so that they are read in this order."""

    def __init__(self, path: Path, keys: dict[str, str], description: dict[str, Any]) -> None:
        self._path, self._keys = path, keys
        self._time = datetime.fromisoformat(description["made"]).strftime("%Y%m%dT%H%M%S")
        self._end = f"{number_of(description['base']):032x}"[:24]
        self.held = len(list(path.glob("*.npz")))

    def write(self, episode: EpisodeData) -> None:
        """Write one episode."""
        name = f"{self._time}-{self.held:08x}{self._end}-{episode.steps}.npz"
        write_npz(self._path / name, _rows_of(episode, self._keys, True))
        self.held += 1

    def finish(self) -> None:
        """Do nothing: all is written."""

    def close(self) -> None:
        """Close nothing."""


class _Chunks:
    """Chunks of each stream, whose names tell which one goes on where it ends, as DreamerV3 writes them.

    Of an export that was killed, the chunks that are there stay; rows that are in them are passed over, and not read.
    """

    held = 0

    def __init__(self, path: Path, contents: Contents, keys: dict[str, str], description: dict[str, Any]) -> None:
        self._path, self._keys, self._made = path, keys, description["made"]
        self._base, self._n_envs = number_of(description["base"]), contents.n_envs
        row = sum(math.prod(column.shape) * column.np_dtype.itemsize for column in contents.columns.values())
        self._length = max(2, min(_ROWS, _MEMORY // (contents.n_envs * max(1, row))))
        self._open: dict[int, _Open] = {}

    def write(self, episode: EpisodeData) -> None:
        """Add the rows of one episode to its stream's chunks."""
        rows, stream, first = _rows_of(episode, self._keys, False), episode.stream, 0
        while first <= episode.steps:
            chunk = self._open.setdefault(stream, _Open(0))
            n = min(self._length - chunk.filled, episode.steps + 1 - first)
            if chunk.filled == 0:
                chunk.saved = self._name(stream, chunk.number, self._length).exists()
            if not chunk.saved:
                for name, values in rows.items():
                    into = chunk.arrays.setdefault(name, np.zeros((self._length, *values.shape[1:]), values.dtype))
                    into[chunk.filled : chunk.filled + n] = values[first : first + n]
            chunk.filled, first = chunk.filled + n, first + n
            if chunk.filled == self._length:
                self._save(stream, chunk)
                self._open[stream] = _Open(chunk.number + 1)

    def finish(self) -> None:
        """Write the chunks that are not full."""
        for stream, chunk in self._open.items():
            if chunk.filled:
                self._save(stream, chunk)

    def close(self) -> None:
        """Close nothing."""
        self._open.clear()

    def _save(self, stream: int, chunk: _Open) -> None:
        path = self._name(stream, chunk.number, chunk.filled)
        if not chunk.saved and not path.exists():
            identifier = self._uuid(stream, chunk.number).to_bytes(16, "big")
            places = np.frombuffer(b"".join(identifier + n.to_bytes(4, "big") for n in range(chunk.filled)), np.uint8)
            arrays: dict[str, Rows] = {name: values[: chunk.filled] for name, values in chunk.arrays.items()}
            write_npz(path, {**arrays, "stepid": places.reshape(chunk.filled, 20)})

    def _uuid(self, stream: int, number: int) -> int:
        return self._base ^ (stream << 32 | number)

    def _name(self, stream: int, number: int, length: int) -> Path:
        time = moment(self._made, number * self._n_envs + stream)
        uuid, successor = (base62(self._uuid(stream, n)) for n in (number, number + 1))
        return self._path / f"{time}-{uuid}-{successor}-{length}.npz"


class _Open:
    """A chunk that is being filled."""

    def __init__(self, number: int) -> None:
        self.number, self.filled, self.saved = number, 0, False
        self.arrays: dict[str, npt.NDArray[Any]] = {}
