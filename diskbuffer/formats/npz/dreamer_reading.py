"""Dreamer's replays as episodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.formats.described import described, read_description
from diskbuffer.formats.npz.directory import FileSchema, files_of
from diskbuffer.formats.npz.dreamer_keys import FLAGS, described_keys, found_keys
from diskbuffer.formats.npz.dreamer_names import Chunk, chains, number_of, version_of
from diskbuffer.formats.npz.reading import ZippedRows
from diskbuffer.formats.rows import Joined, RowRange
from diskbuffer.plugin import Contents, EpisodeData, Rows, is_observation


class DreamerSource:
    """Read a directory of chunks (DreamerV3) or of episodes (DreamerV2, DreamerV1).

    In both, a row has an observation and the reward that came with it. DreamerV3's rows have the action that was taken then;
    those of the others have the action before.

    Parameters
    ----------
    path : pathlib.Path
        The directory.
    version : int, optional
        3 or 2; by default, as the names of the files tell.
    actions : str or collection of str
        Names of arrays that are actions, beside "action", "action/..." and "act_...".
    """

    def __init__(self, path: Path, *, version: int | None = None, actions: str | Collection[str] = ()) -> None:
        self._path, self._files = path, files_of(path)
        description = read_description(path)
        self._version = version_of(self._files, description.get("dreamer", version) if description else version)
        self._chains = chains(self._files) if self._version == 3 else []
        first = self._chains[0][0].path if self._chains else self._files[0]
        self._schema = FileSchema(first)
        contents = None if description is None else described(description, path)
        arrays = self._schema.arrays
        if contents is None or description is None:
            self._keys = found_keys(arrays, actions, path)
            contents = Contents(self._keys.columns)
        else:
            self._keys = described_keys(description, contents.columns, arrays, path)
        self._base = _base(description, path) if description else None
        self._streams = contents.n_envs
        steps = sum(chunk.length for chain in self._chains for chunk in chain) if self._chains else None
        self.contents = replace(contents, episodes=None if self._chains else len(self._files), steps=steps)
        self.losses: Mapping[str, str] = {}

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes."""
        return self._of_chains() if self._version == 3 else self._of_files()

    def _of_files(self) -> Iterator[EpisodeData]:
        for file in self._files:
            arrays = self._schema.open(file)
            rows = self._schema.rows(file, arrays)
            slices = [_FileSlice(file, arrays, 0, rows)]
            flags = _flags(arrays, rows, "is_last" not in arrays)
            if flags["is_first"][1:].any() or flags["is_last"][:-1].any():
                raise SourceError(f"{file} has several episodes, and should have one")
            if rows < 2:
                raise SourceError(f"{file} has {rows} of the two rows or more that an episode has")
            yield self._episode(slices, flags["is_last"][-1], flags["is_terminal"][-1], 0)

    def _of_chains(self) -> Iterator[EpisodeData]:
        for chain in self._chains:
            stream = self._stream(chain[0])
            slices: list[_FileSlice] = []
            for chunk in chain:
                arrays = self._schema.open(chunk.path)
                rows = self._schema.rows(chunk.path, arrays)
                if rows < chunk.length:  # early versions wrote all rows there was room for
                    raise SourceError(f"{chunk.path} has {rows} rows, and should have {chunk.length}, by its name")
                flags = _flags(arrays, chunk.length, False)
                begin = 0
                for at in np.flatnonzero(flags["is_first"] | flags["is_last"]).tolist():
                    if flags["is_first"][at] and (slices or at > begin):  # the episode before was abandoned
                        yield from self._ended([*slices, _FileSlice(chunk.path, arrays, begin, at)], False, False, stream)
                        slices, begin = [], at
                    if flags["is_last"][at]:
                        ended = [*slices, _FileSlice(chunk.path, arrays, begin, at + 1)]
                        yield from self._ended(ended, True, bool(flags["is_terminal"][at]), stream)
                        slices, begin = [], at + 1
                if begin < chunk.length:
                    slices.append(_FileSlice(chunk.path, arrays, begin, chunk.length))
            yield from self._ended(slices, False, False, stream)

    def _ended(self, slices: list[_FileSlice], last: bool, terminal: bool, stream: int) -> Iterator[EpisodeData]:
        """Yield an episode of slices, where it has a step."""
        slices = [part for part in slices if part.last > part.first]
        if sum(part.last - part.first for part in slices) > 1:
            yield self._episode(slices, last, terminal, stream)

    def _episode(self, slices: list[_FileSlice], last: bool, terminal: bool, stream: int) -> EpisodeData:
        steps = sum(part.last - part.first for part in slices) - 1
        columns: dict[str, Rows] = {}
        for path, name in self._keys.of.items():
            rows = Joined([RowRange(part.arrays[name], part.first, part.last) for part in slices])
            if is_observation(path):
                columns[path] = rows
            else:
                late = path == "reward" or self._version == 2  # a step's is in the row after its observation
                columns[path] = RowRange(rows, int(late), steps + late)
        for name, value in (("terminated", last and terminal), ("truncated", last and not terminal)):
            columns[name] = np.zeros(steps, bool)
            columns[name][-1:] = value  # type: ignore[index]
        return EpisodeData(columns, steps, stream=stream)

    def _stream(self, chunk: Chunk) -> int:
        """Return the stream of an export's chain: what its identifier has above the chunk's number."""
        if self._base is None:
            return 0
        stream = (number_of(chunk.uuid) ^ self._base) >> 32
        if stream >= self._streams:
            raise SourceError(
                f"{chunk.path} is no file of the export that {self._path / 'diskbuffer.json'} tells of; move it away"
            )
        return stream

    def close(self) -> None:
        """Close nothing: files are open while they are read."""


def _base(description: Mapping[str, Any], where: Path) -> int:
    """Return the number that is in all identifiers of an export."""
    try:
        return number_of(description["base"])
    except (KeyError, ValueError, TypeError) as error:
        raise SourceError(f"{where}: what diskbuffer.json tells of its files is damaged: {error!r}") from error


@dataclass(frozen=True)
class _FileSlice:
    """Rows of an episode that lie in one file."""

    path: Path
    arrays: Mapping[str, ZippedRows]
    first: int
    last: int


def _flags(arrays: Mapping[str, ZippedRows], rows: int, ends: bool) -> dict[str, npt.NDArray[np.bool_]]:
    flags = {}
    for name in FLAGS:
        if name in arrays:
            flags[name] = _flag(arrays[name], rows)
        else:
            flags[name] = np.zeros(rows, bool)
            if name == "is_last" and rows:
                flags[name][-1] = ends
            elif name == "is_terminal" and "discount" in arrays:
                flags[name] = _flag(arrays["discount"], rows, invert=True)
    return flags


def _flag(array: ZippedRows, rows: int, invert: bool = False) -> npt.NDArray[np.bool_]:
    values = array.flags(rows)
    return values == 0 if invert else values.astype(bool)
