"""One episode in a notebook: its frames, a film strip, a movie, and a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.inspect import pictures
from diskbuffer.inspect.notebook.html import brief, image, page, table, title, unless_it_fails
from diskbuffer.plugin import RUNNING, EpisodeFields, EpisodeReader, Picture, Video, is_observation

_MOST_FRAMES = 1000  # of a movie, where nothing else is asked for
_MOVIE_HEIGHT = 300  # pixels, about, of small frames


def frames(source: EpisodeReader, episode: EpisodeFields, column: str | None, n: int | None) -> npt.NDArray[Any]:
    """Return rows of an episode; see `Episode.frames`."""
    path = column or _seen(source)
    return source.episode(path, episode, None if n is None else _rows(path, episode, n))


def film_strip(source: EpisodeReader, episode: EpisodeFields, n: int, column: str | None) -> Picture:
    """Return a film strip; see `Episode.film_strip`."""
    path = column or _picture(source)
    rows = _rows(path, episode, n)
    return Picture(pictures.film_strip(source.episode(path, episode, rows), _labels(episode, rows)))


def video(
    source: EpisodeReader,
    episode: EpisodeFields,
    fps: float,
    column: str | None,
    every: int | None,
    scale: int | None,
    kind: str | None,
) -> Video:
    """Return a movie; see `Episode.video`."""
    if kind not in (None, *Video.KINDS):
        raise InputError(f"kind must be {' or '.join(map(repr, Video.KINDS))}, found {kind!r}")
    if every is not None and every < 1:
        raise InputError(f"every must be at least 1, found {every}")
    path = column or _picture(source)
    total = episode.length + is_observation(path)
    every = every or math.ceil(total / _MOST_FRAMES)
    rows = source.episode(path, episode, None if every == 1 else np.arange(0, total, every))
    pixels = pictures.as_pictures(rows)
    scale = scale or max(1, round(_MOVIE_HEIGHT / pixels.shape[1]))
    kind = kind or ("mp4" if pictures.has_video() else "gif")
    return Video(pictures.movie(pixels, kind, fps, scale=scale), kind, len(pixels), fps, every)


def html(source: EpisodeReader | None, episode: EpisodeFields) -> str:
    """Show an episode as a table, and a film strip where it has pictures."""
    rows: list[tuple[str, object]] = [
        ("stream", episode.stream),
        ("steps", f"{episode.length:,}, from {episode.start} on"),
        ("ending", episode.ending),
        ("tag", episode.tag),
    ]
    if source is None:
        return page(title(f"Episode {episode.id}"), table(rows))
    return page(
        title(f"Episode {episode.id}"),
        unless_it_fails(
            lambda: table([*rows, _returns(source, episode), *_values(source, episode)]) + _drawn(source, episode), table(rows)
        ),
    )


def _values(source: EpisodeReader, episode: EpisodeFields) -> list[tuple[str, str]]:
    return [(name, str(value.one(0))) for name, value in source.values(np.array([episode.id])).items()]


def _returns(source: EpisodeReader, episode: EpisodeFields) -> tuple[str, str]:
    returns = source.returns(episode)
    if np.isnan(returns).all():
        raise InputError("the episode was evicted since, or cleared; buffer.episodes has those that are there")
    return "return", brief(returns)


def _drawn(source: EpisodeReader, episode: EpisodeFields) -> str:
    if not pictures.picture_columns(source.columns):
        return ""
    return image(film_strip(source, episode, 8, None), "film strip")


def _rows(path: str, episode: EpisodeFields, n: int) -> npt.NDArray[np.int64]:
    return pictures.spread(episode.length + is_observation(path), n)


def _labels(episode: EpisodeFields, rows: npt.NDArray[np.int64]) -> list[str]:
    return [f"{row:,}" + (" (final)" if row == episode.length and episode.ending != RUNNING else "") for row in rows.tolist()]


def _picture(source: EpisodeReader) -> str:
    """Return the column of pictures that is shown where none is asked for."""
    column = next(iter(pictures.picture_columns(source.columns)), None)
    if column is None:
        raise InputError("no column of this buffer has pictures; see its values with .frames(column)")
    return column


def _seen(source: EpisodeReader) -> str:
    """Return the column of frames where none is asked for: pictures, or the only observation."""
    obs = [path for path in source.columns if is_observation(path)]
    column = next(iter(pictures.picture_columns(source.columns)), obs[0] if len(obs) == 1 else None)
    if column is None:
        raise InputError(f"no column of this buffer has pictures; choose one of {', '.join(source.columns)}")
    return column
