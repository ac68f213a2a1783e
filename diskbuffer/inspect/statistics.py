"""What a store's values are like: distributions of every column, and what looks wrong with them, in plain sentences."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskbuffer.inspect.distributions import Distribution
from diskbuffer.inspect.findings import Columns, Finding, Findings
from diskbuffer.schema import KEPT, Column, Schema, is_obs

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]

_BLOCK_ROWS = 64  # rows that are looked at together, so that equal ones next to each other are seen
_BLOCK_BYTES = 16 * 1024**2
_MOST_ROWS, _MOST_BYTES = 200_000, 256 * 1024**2  # looked at by default; more would only make it slower
_SECONDS = 10.0


class Table(Protocol):
    """Episodes as columns of equal length; see `diskbuffer.inspect.episodes`."""

    @property
    def length(self) -> Int64:
        """Steps."""
        ...

    @property
    def ending(self) -> Array:
        """"terminated", "truncated", "cut off" or "running"."""
        ...


class View(Protocol):
    """What is read of a store; `diskbuffer.inspect.view.StoreView` has it."""

    @property
    def schema(self) -> Schema:
        """The columns."""
        ...

    @property
    def heads(self) -> Int64:
        """(streams,) the newest row of each stream, -1 where there is none."""
        ...

    @property
    def lows(self) -> Int64:
        """(streams,) the oldest row of each stream."""
        ...

    def read(self, column: str, steps: Int64) -> Array:
        """Return rows by name, (n, *shape)."""
        ...

    def frames(self, column: str, stream: int, first: int, n: int) -> Array:
        """Return consecutive rows, (n, *shape)."""
        ...

    def episodes(self) -> Any:
        """Return the episodes as columns."""
        ...


@dataclass
class _Looked:
    """What was looked at so far."""

    distributions: dict[str, Distribution]
    findings: Findings
    rows: int = 0
    steps: int = 0
    of: int = 0
    seconds: float = field(default_factory=time.monotonic)


def statistics(
    view: View, *, most_rows: int = _MOST_ROWS, most_bytes: int = _MOST_BYTES, seconds: float = _SECONDS, seed: int = 0
) -> dict[str, Any]:
    """Return distributions of a store's columns, lengths and returns, and what looks wrong.

    Of a large store some rows are looked at: stretches of 64 consecutive ones, drawn with a seed. The same store, seed and bounds
    give the same rows, unless time ends it first.

    Parameters
    ----------
    view : View
        The store.
    most_rows, most_bytes : int
        How many rows, and bytes of them, decompressed, are looked at.
    seconds : float
        After which no more are looked at.
    seed : int

    Returns
    -------
    dict
        ``looked_at`` (rows, steps, of how many rows, seed, and whether time ended it), ``columns``, ``lengths``, ``returns``
        (each as `Distribution.to_json` has it), ``endings`` (how many episodes ended in which way), ``findings``.
    """
    columns = {path: column for path, column in view.schema.columns.items() if path not in KEPT}
    looked = _Looked({path: Distribution(column.np_dtype, seed) for path, column in columns.items()}, Findings(columns))
    blocks = _blocks(view, columns, most_rows, most_bytes, seed)
    looked.of = int((np.asarray(view.heads) - np.asarray(view.lows) + 1).clip(min=0)[np.asarray(view.heads) >= 0].sum())
    ended = False
    for stream, first, n in blocks:
        if time.monotonic() - looked.seconds > seconds and looked.rows:
            ended = True
            break
        _look(view, columns, stream, first, n, looked)
    table = view.episodes()
    length, ending = np.asarray(table.length), np.asarray(table.ending)
    looked.findings.end(table=(length, ending), steps=looked.steps)
    whole = ending != "running"
    found = {
        "looked_at": {"rows": looked.rows, "steps": looked.steps, "of_rows": looked.of, "seed": seed, "stopped": ended},
        "columns": {path: d.to_json() for path, d in looked.distributions.items()},
        "lengths": Distribution.of(length[whole]).to_json(),
        "endings": {str(name): int(n) for name, n in zip(*np.unique(ending, return_counts=True), strict=True)},
        "findings": [finding.to_json() for finding in looked.findings.all()],
    }
    returns = getattr(table, "returns", getattr(table, "return_", None))
    if returns is not None and np.asarray(returns).ndim == 1:
        of_whole = np.asarray(returns, np.float64)[whole]
        found["returns"] = Distribution.of(of_whole[~np.isnan(of_whole)]).to_json()
    return found


def _blocks(
    view: View, columns: Mapping[str, Column], most_rows: int, most_bytes: int, seed: int
) -> Iterator[tuple[int, int, int]]:
    """Yield stretches of rows, (stream, first, n): all of a small store in order, else some of it, none twice."""
    row_bytes = sum(column.row_bytes for column in columns.values())
    size = int(np.clip(_BLOCK_BYTES // row_bytes, 2, _BLOCK_ROWS))
    lows, heads = np.asarray(view.lows), np.asarray(view.heads)
    counts = np.where(heads >= 0, -(-(heads - lows + 1) // size), 0).clip(min=0)
    total, most = int(counts.sum()), max(1, min(most_rows, most_bytes // row_bytes) // size)
    which: Any = range(total)
    if total > most:
        which = np.random.default_rng(seed).choice(total, most, replace=False, shuffle=True)
    before = np.concatenate([[0], np.cumsum(counts)])
    for number in which:
        stream = int(np.searchsorted(before, number, side="right")) - 1
        first = int(lows[stream]) + (int(number) - int(before[stream])) * size
        yield stream, first, min(size, int(heads[stream]) + 1 - first)


def _look(view: View, columns: Mapping[str, Column], stream: int, first: int, n: int, looked: _Looked) -> None:
    """Look at consecutive rows, as far as they are there still."""
    from diskbuffer.errors import EvictedError

    streams = len(view.heads)
    steps = np.arange(first, first + n, dtype=np.int64) * streams + stream
    try:
        last = view.read("is_last", steps).astype(bool)
        is_step = ~last
        if first + n - 1 == int(view.heads[stream]):
            is_step[-1] = False  # the newest row: nothing was done there yet
        rows: Columns = {}
        for path, column in columns.items():
            values = view.frames(path, stream, first, n) if column.row_bytes >= 1024 else view.read(path, steps)
            rows[path] = values if is_obs(path) else values[is_step]
    except EvictedError:
        return
    for path, values in rows.items():
        looked.distributions[path].add(values)
    looked.findings.add(rows, last, is_step)
    looked.rows, looked.steps = looked.rows + n, looked.steps + int(is_step.sum())
