"""Many episodes as a table of the first and the last: in a notebook, and as text."""

from __future__ import annotations

import numpy as np

from diskbuffer.inspect.notebook.html import brief, note, page, table, title, unless_it_fails
from diskbuffer.plugin import EpisodeColumns, EpisodeReader, printable

_EACH_END = 5
_LONGEST = 40  # characters of a value
_HEAD = ("episode", "stream", "start", "length", "return", "ending", "tag")
_GONE = "Where the return is nan, the episode was evicted since."


def html(source: EpisodeReader, episodes: EpisodeColumns) -> str:
    """Show episodes; reads the rewards of ten, however many there are."""
    return page(title("Episodes", _counts(episodes)), unless_it_fails(lambda: _table(source, episodes)) if len(episodes) else "")


def text(source: EpisodeReader, episodes: EpisodeColumns) -> str:
    """Write what `html` shows in lines."""
    head, rows, gone = _ends(source, episodes) if len(episodes) else (_HEAD, [], False)
    cells = [[printable(str(value)) for value in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join([*map(str.rjust, row[:5], widths[:5]), *map(str.ljust, row[5:], widths[5:])]).rstrip() for row in cells]
    return "\n".join([f"Episodes: {_counts(episodes)}", *(lines if rows else []), *[_GONE] * gone])


def _counts(episodes: EpisodeColumns) -> str:
    return f"{len(episodes):,}, of {int(episodes.length.sum()):,} steps"


def _table(source: EpisodeReader, episodes: EpisodeColumns) -> str:
    head, rows, gone = _ends(source, episodes)
    return table(rows, head) + (note(_GONE) if gone else "")


def _ends(source: EpisodeReader, episodes: EpisodeColumns) -> tuple[tuple[str, ...], list[tuple[object, ...]], bool]:
    """Return the first and the last as a head and rows of a table, and whether one of them was evicted."""
    n = len(episodes)
    numbers = np.arange(n) if n <= 2 * _EACH_END + 1 else np.r_[:_EACH_END, n - _EACH_END : n]
    some = episodes.some(numbers)
    returns, values = source.sum_rewards(some), source.values(some.id)
    rows: list[tuple[object, ...]] = []
    for at, number in enumerate(numbers.tolist()):
        if at and number > numbers[at - 1] + 1:
            rows.append(("...",) * (len(_HEAD) + len(values)))
        stream, start, length, ending, tag, id_ = some.one(at)
        sums = returns[at] if np.ndim(returns[at]) else float(returns[at])
        given = [str(each.one(at))[:_LONGEST] if each.given[at] else "" for each in values.values()]
        rows.append((id_, stream, start, f"{length:,}", brief(sums), ending, tag, *given))
    return (*_HEAD, *values), rows, bool(np.isnan(returns).all(axis=tuple(range(1, returns.ndim))).any())
