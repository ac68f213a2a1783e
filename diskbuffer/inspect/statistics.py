"""What a store's values are like: distributions of every column, and what looks wrong with them, in plain sentences."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import CorruptionError, EvictedError
from diskbuffer.inspect.distributions import Distribution
from diskbuffer.inspect.findings import Columns, Findings
from diskbuffer.plugin import KEPT, RUNNING, Reader, integer, is_observation

Int64 = npt.NDArray[np.int64]

_BLOCK_ROWS = 64  # rows that are looked at together, so that equal ones next to each other are seen
_BLOCK_BYTES = 16 * 1024**2
MOST_ROWS, MOST_BYTES = 200_000, 256 * 1024**2  # looked at by default; more would only make it slower
SECONDS = 10.0


@dataclass
class _Looked:
    """What was looked at so far."""

    distributions: dict[str, Distribution]
    findings: Findings
    rows: int = 0
    steps: int = 0
    damaged: int = 0
    until: tuple[int, int] = (-1, -1)  # the stream, and the position after the last row
    began: float = field(default_factory=time.monotonic)


def statistics(
    reader: Reader, *, most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES, seconds: float = SECONDS, seed: int = 0
) -> dict[str, Any]:
    """Return distributions of a store's columns, lengths and returns, and what looks wrong.

    Of a large store some rows are looked at: stretches of 64 consecutive ones, drawn with a seed. The same store, seed and bounds
    give the same rows, unless time ends it first.

    Parameters
    ----------
    reader : Reader
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
    columns = {path: column for path, column in reader.info.columns.items() if path not in KEPT}
    seed = integer("seed", seed, 0, most=None)
    looked = _Looked({path: Distribution(column.np_dtype, seed) for path, column in columns.items()}, Findings(columns))
    firsts, newest = reader.rows()
    counts = newest + 1 - firsts
    stopped = False
    for stream, first, n in _blocks(firsts, counts, columns, most_rows, most_bytes, seed):
        if looked.rows and time.monotonic() - looked.began > seconds:
            stopped = True
            break
        _look(reader, columns, stream, range(first, first + n), looked, has_newest=first + n > int(newest[stream]))
    table = reader.episodes()
    looked.findings.end(table.ending, looked.steps, looked.damaged)
    over = table.whole & (table.ending != RUNNING)
    returns = table.returns[over]
    looked_at = {"rows": looked.rows, "steps": looked.steps, "of_rows": int(counts.sum()), "seed": seed, "stopped": stopped}
    return {
        "looked_at": looked_at,
        "columns": {path: distribution.to_json() for path, distribution in looked.distributions.items()},
        "lengths": Distribution.of(table.length[over]).to_json(),
        "returns": Distribution.of(returns[~np.isnan(returns)]).to_json(),
        "endings": {str(name): int(n) for name, n in zip(*np.unique(table.ending, return_counts=True), strict=True)},
        "findings": [finding.to_json() for finding in looked.findings.all()],
    }


def _blocks(
    firsts: Int64, counts: Int64, columns: Mapping[str, Column], most_rows: int, most_bytes: int, seed: int
) -> Iterator[tuple[int, int, int]]:
    """Yield stretches of rows, (stream, first, n): all of a small store in order, else some of it, none twice."""
    row_bytes = sum(column.row_bytes for column in columns.values())
    size = int(np.clip(_BLOCK_BYTES // row_bytes, 2, _BLOCK_ROWS))
    before = np.concatenate([[0], np.cumsum(-(-counts // size))])
    total, most = int(before[-1]), max(1, min(most_rows, most_bytes // row_bytes) // size)
    which: Any = range(total)
    if total > most:
        which = np.random.default_rng(seed).choice(total, most, replace=False, shuffle=True)
    for number in which:
        stream = int(np.searchsorted(before, number, side="right")) - 1
        at = (int(number) - int(before[stream])) * size
        yield stream, int(firsts[stream]) + at, min(size, int(counts[stream]) - at)


def _look(
    reader: Reader, columns: Mapping[str, Column], stream: int, positions: range, looked: _Looked, *, has_newest: bool
) -> None:
    """Look at consecutive rows of a stream, where they are there still."""
    first, n, ids = positions.start, len(positions), np.array(positions) * reader.info.streams + stream
    try:
        last = reader.read("is_last", ids).astype(bool)
        is_step = ~last
        if has_newest:
            is_step[-1] = False  # the newest row: nothing was done there yet
        rows: Columns = {path: reader.read(path, ids) for path in columns}
    except EvictedError:
        return
    except CorruptionError:
        looked.damaged += n
        return
    rows = {path: values if is_observation(path) else values[is_step] for path, values in rows.items()}
    for path, values in rows.items():
        looked.distributions[path].add(values)
    looked.findings.add(rows, last, follows=looked.until == (stream, first))
    looked.until = stream, first + n
    looked.rows, looked.steps = looked.rows + n, looked.steps + int(is_step.sum())
