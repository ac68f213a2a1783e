"""A buffer in a notebook: what is in it, and a film strip of its newest episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from diskbuffer.inspect import pictures
from diskbuffer.inspect.notebook.episode import film_strip
from diskbuffer.inspect.notebook.html import image, page, table, title, unless_it_fails
from diskbuffer.plugin import RUNNING, EpisodeColumns, EpisodeReader, human_size


def html(source: EpisodeReader, stats: Mapping[str, Any], derived: frozenset[str], episodes: EpisodeColumns) -> str:
    """Show a buffer, with what `ReplayBuffer.stats` says, which columns were written later, and all of its episodes."""
    capacity = "of no limit" if stats["capacity"] is None else f"of {stats['capacity']:,}"
    disk, raw = stats["disk_bytes"], stats["raw_bytes"]
    figures = {
        "steps": f"{stats['steps']:,} {capacity}" + (f", {stats['added']:,} ever" if stats["added"] != stats["steps"] else ""),
        "episodes": f"{stats['episodes']:,}",
        "environments": f"{stats['n_envs']:,}",
        "disk": human_size(disk) + (f", {disk / raw:.1%} of {human_size(raw)} uncompressed" if raw else ""),
    }
    rows = [
        (name, c.np_dtype.name, " x ".join(map(str, c.shape)), human_size(c.row_bytes), "derived" if name in derived else "")
        for name, c in source.columns.items()
    ]
    return page(
        title("ReplayBuffer", source.origin["path"]),
        table(figures.items()),
        table(rows, ("column", "dtype", "shape", "a row", "")),
        unless_it_fails(lambda: _newest(source, episodes)),
    )


def _newest(source: EpisodeReader, episodes: EpisodeColumns) -> str:
    """Show a film strip of the newest episode that is over; of the newest of all where none is."""
    if not len(episodes) or not pictures.picture_columns(source.columns):
        return ""
    over = np.flatnonzero(episodes.ending != RUNNING)
    some = over if len(over) else np.arange(len(episodes))
    episode = episodes.one(int(some[np.argmax(source.when_they_ended(episodes)[some])]))
    return title(f"Episode {episode.id}") + image(film_strip(source, episode, 8, None), "film strip")
