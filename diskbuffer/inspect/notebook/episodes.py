"""Many episodes in a notebook: a table of the first and the last."""

from __future__ import annotations

import numpy as np

from diskbuffer.inspect.notebook.html import brief, note, page, table, title, unless_it_fails
from diskbuffer.plugin import EpisodeColumns, EpisodeReader

_EACH_END = 5
_HEAD = ("episode", "stream", "start", "length", "return", "ending", "tag")


def html(source: EpisodeReader, episodes: EpisodeColumns) -> str:
    """Show episodes; reads the rewards of ten, however many there are."""
    details = f"{len(episodes):,}, of {int(episodes.length.sum()):,} steps"
    return page(title("Episodes", details), unless_it_fails(lambda: _ends(source, episodes)) if len(episodes) else "")


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
    gone = bool(np.isnan(returns.reshape(len(some), -1)).all(1).any())
    return table(rows, _HEAD) + (note("Where the return is nan, the episode was evicted since.") if gone else "")
