"""Many episodes in a notebook: a table of the first and the last, and a picture of some."""

from __future__ import annotations

import numpy as np

from diskbuffer.inspect import pictures
from diskbuffer.inspect.notebook.html import brief, image, note, page, table, title, unless_it_fails
from diskbuffer.plugin import EpisodeColumns, EpisodeReader, is_observation

_EACH_END, _PICTURES = 5, 8
_HEAD = ("episode", "stream", "start", "length", "return", "ending", "tag")


def html(source: EpisodeReader, episodes: EpisodeColumns) -> str:
    """Show episodes; reads the rewards of ten and the pictures of eight, however many there are."""
    n, steps = len(episodes), int(episodes.length.sum())
    parts = [title("Episodes", details=f"{n:,}, of {steps:,} steps")]
    if n:
        parts.append(unless_it_fails(lambda: _ends(source, episodes)))
        parts.append(unless_it_fails(lambda: strip(source, episodes)))
    return page(*parts)


def strip(source: EpisodeReader, episodes: EpisodeColumns) -> str:
    """Show a picture from the middle of some episodes, spread evenly; nothing where there are no pictures."""
    column = next(iter(pictures.picture_columns(source.columns)), None)
    if column is None:
        return ""
    numbers = pictures.spread(len(episodes), _PICTURES)
    middles = episodes.start[numbers] + episodes.length[numbers] // 2 * source.streams
    there = source.elapsed(middles) >= 0  # and not evicted since
    if not there.any():
        return note("No pictures: the episodes were evicted since, or cleared.")
    frames = source.steps(column, middles[there])
    frames = frames[:, -1] if source.frame_stack > 1 and is_observation(column) else frames
    labels = [f"episode {n}" for n in episodes.id[numbers[there]].tolist()]
    return image(pictures.film_strip(frames, None, labels, height=120), "frames from the middle of some episodes")


def _ends(source: EpisodeReader, episodes: EpisodeColumns) -> str:
    """Show the first and the last."""
    n = len(episodes)
    numbers = np.arange(n) if n <= 2 * _EACH_END + 1 else np.r_[:_EACH_END, n - _EACH_END : n]
    some = episodes.some(numbers)
    returns = source.sum_rewards(some)
    rows: list[tuple[object, ...]] = []
    for at, number in enumerate(numbers.tolist()):
        if at and number > numbers[at - 1] + 1:
            rows.append(("...",) * len(_HEAD))
        stream, start, length, ending, tag, id_ = some.one(at)
        sums = returns[at] if np.ndim(returns[at]) else float(returns[at])
        rows.append((id_, stream, start, f"{length:,}", brief(sums), ending, tag))
    gone = int(np.isnan(returns.reshape(len(some), -1)).all(1).sum())
    remark = note("Where the return is nan, the episode was evicted since.") if gone else ""
    return table(rows, _HEAD) + remark
