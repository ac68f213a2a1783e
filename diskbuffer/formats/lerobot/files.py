"""The files of a data set, whose columns are read one episode after the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.formats.lerobot import decoding, images
from diskbuffer.formats.lerobot.arrays import from_arrow
from diskbuffer.formats.lerobot.episodes import Episodes
from diskbuffer.formats.lerobot.features import Feature
from diskbuffer.formats.lerobot.info import Info
from diskbuffer.formats.lerobot.table import Table
from diskbuffer.formats.lerobot.tape import Tape

_BLOCK = 1024**2  # bytes of rows that are decoded at a time, of a column
_MOST_ROWS = 8192


class Files:
    """The files that the episode which is read is in: they stay open as long as the next one is in them, too.

    Parameters
    ----------
    info : Info
    features : list of Feature
        Those that are columns.
    episodes : Episodes
    """

    def __init__(self, info: Info, features: list[Feature], episodes: Episodes) -> None:
        self._info, self._features, self._episodes = info, {feature.name: feature for feature in features}, episodes
        self._table: Table | None = None
        self._place = (-1, -1)
        self._tapes: dict[str, Tape] = {}
        self._videos: dict[str, tuple[tuple[int, int], Tape]] = {}

    def go_to(self, number: int) -> None:
        """Open the file of data that an episode is in."""
        place = int(self._episodes.chunk[number]), int(self._episodes.file[number])
        if place != self._place:
            self._close_data()
            self._table = Table(self._info.data_file(*place), int(self._episodes.file_rows[number]))
            self._place = place

    def steps(self, number: int) -> int:
        """Return how many steps an episode has."""
        return int(self._episodes.length[number])

    @property
    def path(self) -> Path:
        """The path of the file of data."""
        return self._opened.path

    @property
    def _opened(self) -> Table:
        assert self._table is not None
        return self._table

    def column(self, name: str, dtype: str, number: int, first: int, last: int) -> npt.NDArray[Any]:
        """Return a column of numbers that is no feature of ours, of some of an episode's rows."""
        if (tape := self._tapes.get(name)) is None:
            what = f"{self.path}: {name!r}"
            opened = partial(self._numbers, self._opened, name, dtype, (1,), what, None)
            tape = self._tapes[name] = Tape(opened, (1,), np.dtype(dtype), what)
        row = int(self._episodes.row[number])
        return tape.read(row + first, row + last).reshape(-1)

    def rows(self, feature: Feature, number: int, first: int, last: int) -> npt.NDArray[Any]:
        """Return some rows of an episode's column."""
        self.go_to(number)
        if feature.dtype == "video":
            tape, row = self._video(feature, number)
        else:
            tape, row = self._tape(feature), int(self._episodes.row[number])
        return tape.read(row + first, row + last)

    def _tape(self, feature: Feature) -> Tape:
        if (tape := self._tapes.get(feature.name)) is None:
            what = f"{self.path}: {feature.name!r}"
            if feature.pixels is not None:
                opened = partial(self._images, self._opened, feature, what)
            else:
                opened = partial(self._numbers, self._opened, feature.name, feature.dtype, feature.shape, what, feature)
            tape = self._tapes[feature.name] = Tape(opened, feature.column.shape, feature.column.np_dtype, what)
        return tape

    def _video(self, feature: Feature, number: int) -> tuple[Tape, int]:
        """Return what reads an episode's video, and the number of its first frame there."""
        chunk, file, seconds = self._episodes.videos[feature.name]
        place = int(chunk[number]), int(file[number])
        current = self._videos.get(feature.name)
        if current is None or current[0] != place:
            if current is not None:
                current[1].close()
            path = self._info.video_file(feature.name, *place)
            opened = partial(self._frames, path, feature)
            current = self._videos[feature.name] = place, Tape(opened, feature.column.shape, feature.column.np_dtype, str(path))
        return current[1], round(float(seconds[number]) * self._info.fps)

    def _frames(self, path: Path, feature: Feature, first: int) -> Iterator[npt.NDArray[Any]]:
        assert feature.pixels is not None
        for pixels in decoding.frames(path, feature.pixels, self._info.fps, first):
            yield feature.pixels.to_rows(pixels)

    @staticmethod
    def _images(table: Table, feature: Feature, what: str, first: int) -> Iterator[npt.NDArray[Any]]:
        assert feature.pixels is not None
        kind = table.type_of(feature.name)
        if not (str(kind).startswith("struct<") and kind.get_field_index("bytes") >= 0):
            raise SourceError(f"{what}: expected pictures, as structs with bytes, found {kind}")
        rows = max(1, min(32, _BLOCK // feature.column.row_bytes))
        for block in table.blocks(feature.name, first, rows):
            yield feature.pixels.to_rows(images.from_arrow(block, feature.pixels, what))

    @staticmethod
    def _numbers(
        table: Table, name: str, dtype: str, shape: tuple[int, ...], what: str, feature: Feature | None, first: int
    ) -> Iterator[npt.NDArray[Any]]:
        rows = max(1, min(_MOST_ROWS, _BLOCK // (np.dtype(dtype).itemsize * int(np.prod(shape)))))
        for block in table.blocks(name, first, rows):
            numbers = from_arrow(block, dtype, shape, what)
            yield numbers if feature is None else feature.rows(numbers)

    def _close_data(self) -> None:
        for tape in self._tapes.values():
            tape.close()
        self._tapes = {}
        if self._table is not None:
            self._table.close()
        self._table = None

    def close(self) -> None:
        """Close all files."""
        self._close_data()
        self._place = (-1, -1)
        for _, tape in self._videos.values():
            tape.close()
        self._videos = {}


class Rows:
    """A column of an episode, read when it is sliced."""

    def __init__(self, files: Files, feature: Feature, number: int) -> None:
        self._files, self._feature, self._number = files, feature, number
        self.shape = (int(files.steps(number)), *feature.column.shape)
        self.dtype = feature.column.np_dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, step = rows.indices(self.shape[0])
        return self._files.rows(self._feature, self._number, first, max(first, last))[::step]
