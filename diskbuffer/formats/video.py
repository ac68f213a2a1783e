"""Movies: an MP4 of each episode, and a JSON beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.errors import InputError
from diskbuffer.formats.described import describe_episode
from diskbuffer.formats.json_files import write_json
from diskbuffer.formats.rows import rows_at_a_time
from diskbuffer.inspect.pictures.frames import UInt8, as_pictures, picture_columns
from diskbuffer.inspect.pictures.movies import write_mp4
from diskbuffer.plugin import BUILT_IN, Contents, EpisodeData, Format, Rows, Writer, require


class MovieWriter:
    """Write ``000000.mp4`` and ``000000.json`` of each episode; both are there, or none of them."""

    def __init__(self, path: Path, column: str, fps: float) -> None:
        require("av", "av", "video", "to make an MP4")
        self._path, self._column, self._fps = path, column, fps
        path.mkdir(exist_ok=True)
        (path / ".part.mp4").unlink(missing_ok=True)
        self.held = len(list(path.glob("*.json")))

    def write(self, episode: EpisodeData) -> None:
        """Write one episode."""
        film = self._path / ".part.mp4"
        with film.open("wb") as file:
            write_mp4(file, _pictures(episode.columns[self._column]), self._fps)
        description = describe_episode(episode)
        if "reward" in episode.columns:
            rewards = np.asarray(episode.columns["reward"][: episode.steps])
            description |= {"return": np.sum(rewards, axis=0, dtype=np.float64).tolist(), "rewards": rewards.tolist()}
        os.replace(film, self._path / f"{self.held:06}.mp4")
        write_json(self._path / f"{self.held:06}.json", {**description, "column": self._column, "fps": self._fps})
        self.held += 1

    def finish(self) -> None:
        """Do nothing: all is written."""

    def close(self) -> None:
        """Close nothing."""


def _pictures(rows: Rows) -> Iterator[UInt8]:
    step = rows_at_a_time(rows)
    for first in range(0, rows.shape[0], step):
        yield as_pictures(np.asarray(rows[first : first + step]))


def _column(contents: Contents, column: str | None) -> str:
    """Return the column of pictures."""
    known = [path for path in picture_columns(contents.columns) if contents.columns[path].np_dtype == np.uint8]
    if column is None and known:
        return known[0]
    if column not in known:
        raise InputError(
            f"a movie is made of a column of pictures, uint8; there are {', '.join(known) or 'none'}, found {column!r}"
        )
    return column


def _write(path: Path, contents: Contents, *, column: str | None = None, fps: float = 30) -> Writer:
    if not isinstance(fps, int | float) or not 1 <= fps <= 240:
        raise InputError(f"fps must be from 1 to 240, found {fps!r}")
    return MovieWriter(path, _column(contents, column), fps)


def _losses(contents: Contents, *, column: str | None = None, **_: Any) -> Mapping[str, str]:
    shown = _column(contents, column)
    lost = {"pictures": f"{shown}: H.264 is not exact"}
    others = [path for path in contents.columns if path not in (shown, "reward", *BUILT_IN)]
    return {**lost, "columns": f"{', '.join(others)}: no part of a movie"} if others else lost


VIDEO = Format("video", "an MP4 and a JSON of each episode", write=_write, losses=_losses, values=True)
