"""The episodes for the page: filtered, sorted, a page at a time; and all of them as points of a time line."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.inspect.page.plain_values import running_mean, thinned, to_list
from diskbuffer.plugin import EpisodeTable, Reader

_COLUMNS = ("episode", "return", "length", "ending", "tag", "stream", "age", "ended")
_PLAIN = ("episode", "stream", "ending", "tag")  # shown as they are: names, not amounts
_POINTS = 4000
_MOST_ROWS = 1000

Int64 = npt.NDArray[np.int64]


def matching(table: EpisodeTable, where: str) -> Int64:
    """Return the rows of the episodes for which a condition holds; all of them where it is empty.

    Raises
    ------
    InputError
        The condition cannot be understood.
    """
    if not where.strip():
        return np.arange(len(table))
    return np.flatnonzero(table.where(where))


def page_of_rows(table: EpisodeTable, where: str, sort: str, descending: bool, offset: int, limit: int) -> dict[str, Any]:
    """Return a page of the table, as rows."""
    if sort not in table.names():
        raise InputError(f"episodes are sorted by {', '.join(table.names())}; found {sort!r}")
    rows = matching(table, where)
    rows = rows[table.select(rows).argsort(sort, reverse=descending)]
    limit = min(max(1, limit), _MOST_ROWS)
    offset = max(0, min(offset, (len(rows) - 1) // limit * limit)) if len(rows) else 0
    several = len(np.unique(table.stream)) > 1
    shown = [name for name in _COLUMNS if (name != "stream" or several) and (name != "tag" or (table.tag != "").any())]
    columns = {name: to_list(table.column(name)[rows[offset : offset + limit]]) for name in shown}
    return {
        "rows": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
        "columns": shown,
        "numbers": [name for name in shown if table.column(name).dtype.kind in "iuf"],
        "plain": [name for name in shown if name in _PLAIN],
        "known": list(table.names()),
        "offset": offset,
        "matching": len(rows),
        "total": len(table),
    }


def points(reader: Reader, where: str) -> dict[str, Any]:
    """Return the matching episodes as columns, in the order of their ends; of very many those that stand out.

    ``means`` are of returns and lengths, over the ``window`` episodes that ended last by then, drawn or not.
    """
    table = reader.episodes()
    found = table.select(matching(table, where)).sort()
    n = len(found)
    kept = thinned(np.stack([found.returns, found.length], axis=1), _POINTS) if n else None
    at = np.arange(n) if kept is None else kept
    shown, window = found.select(at), max(10, round(n / 30))
    return {
        "when": to_list(shown.ended),
        "episode": to_list(shown.episode),
        "return": to_list(shown.returns),
        "length": to_list(shown.length),
        "ending": shown.ending.tolist(),
        "means": {name: to_list(running_mean(found.column(name), at, window)) for name in ("return", "length")},
        "window": window,
        "matching": n,
        "total": len(table),
        "thinned": kept is not None,
    }


def between(reader: Reader, where: str, first: float, last: float, limit: int) -> dict[str, Any]:
    """Return the matching episodes that ended between two times, as `when` has them."""
    table = reader.episodes()
    rows = matching(table, where)
    rows = rows[(table.ended[rows] >= first) & (table.ended[rows] <= last)][: max(0, limit)]
    return {"episode": to_list(table.episode[rows]), "ending": table.ending[rows].tolist()}
