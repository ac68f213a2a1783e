"""What a store's values are like: distributions of every column, and what looks wrong with them, in plain sentences."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, EvictedError
from diskbuffer.inspect.distributions import distribution
from diskbuffer.inspect.findings import Finding, of_episodes, of_values
from diskbuffer.plugin import KEPT, Reader, counted, integer, is_observation

Array = npt.NDArray[Any]

MOST_ROWS = 200_000
_MOST_BYTES = 64 * 1024**2  # of rows, decompressed: all that are looked at are held at once
_BLOCK_ROWS = 64  # consecutive rows that are looked at together, so that equal ones next to each other are seen


def statistics(reader: Reader, *, most_rows: int = MOST_ROWS, seed: int = 0) -> dict[str, Any]:
    """Return distributions of a store's columns, lengths and returns, and what looks wrong.

    Of a large store some rows are looked at, of 64 MiB at most: stretches of 64 consecutive ones, drawn with a seed. The same
    store, number and seed give the same rows.

    Parameters
    ----------
    reader : Reader
        The store.
    most_rows : int
        How many rows are looked at, at most.
    seed : int

    Returns
    -------
    dict
        ``looked_at`` (rows, steps, of how many rows, seed), ``columns``, ``lengths``, ``returns`` (each a `distribution`),
        ``endings`` (how many episodes ended in which way), ``findings``.
    """
    firsts, newest = reader.rows()
    size, blocks = _blocks(reader, newest + 1 - firsts, most_rows, integer("seed", seed, 0, most=None))
    values, adjacent, rows, steps, damaged = _read(reader, firsts, newest, blocks, size)
    table = reader.episodes()
    finished = table.finished()
    returns = table.returns[finished]
    findings = [*of_episodes(table.ending, steps), *of_values(values, adjacent)]
    if damaged:
        text = f"{counted(damaged, 'row')} beside damage could not be read: run diskbuffer check"
        findings.insert(0, Finding("damaged", "", damaged, damaged, text))
    return {
        "looked_at": {"rows": rows, "steps": steps, "of_rows": int((newest + 1 - firsts).sum()), "seed": seed},
        "columns": {path: distribution(each) for path, each in values.items()},
        "lengths": distribution(table.length[finished]),
        "returns": distribution(returns[~np.isnan(returns)]),
        "endings": {str(name): int(n) for name, n in zip(*np.unique(table.ending, return_counts=True), strict=True)},
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def _blocks(reader: Reader, counts: npt.NDArray[np.int64], most_rows: int, seed: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the rows of a block, and blocks as (stream, first row of those that are there): all of a small store, else some."""
    row_bytes = sum(column.row_bytes for path, column in reader.info.columns.items() if path not in KEPT)
    most = max(2, min(most_rows, _MOST_BYTES // row_bytes))
    size = min(_BLOCK_ROWS, most)
    before = np.concatenate([[0], np.cumsum(-(-counts // size))])
    numbers = np.arange(before[-1])
    if len(numbers) > most // size:
        numbers = np.sort(np.random.default_rng(seed).choice(len(numbers), most // size, replace=False, shuffle=False))
    streams = np.searchsorted(before, numbers, side="right") - 1
    return size, list(zip(streams.tolist(), ((numbers - before[streams]) * size).tolist(), strict=True))


def _read(
    reader: Reader, firsts: npt.NDArray[np.int64], newest: npt.NDArray[np.int64], blocks: list[tuple[int, int]], size: int
) -> tuple[dict[str, Array], npt.NDArray[np.bool_], int, int, int]:
    """Read blocks, where they are there still.

    Returns the values of columns, and which rows the next one follows in the same episode, as `of_values` has them; how many
    rows, how many of them steps, and how many rows are damaged.
    """
    info = reader.info
    columns = {path: column for path, column in info.columns.items() if path not in KEPT}
    parts: dict[str, list[Array]] = {path: [np.empty((0, *c.shape), c.np_dtype)] for path, c in columns.items()}
    adjacent, steps, damaged, end = list[npt.NDArray[np.bool_]](), 0, 0, (-1, -1)
    for stream, offset in blocks:
        first = int(firsts[stream]) + offset
        n = min(size, int(newest[stream]) + 1 - first)
        ids = np.arange(first, first + n) * info.streams + stream
        try:
            is_last = reader.read("is_last", ids).astype(bool)
            rows = {path: reader.read(path, ids) for path in columns}
        except EvictedError:
            continue
        except CorruptionError:
            damaged += n
            continue
        is_step = ~is_last
        if first + n > newest[stream]:
            is_step[-1] = False  # nothing was done at the newest row yet
        for path, values in rows.items():
            parts[path].append(values if is_observation(path) else values[is_step])
        if adjacent and end != (stream, first):
            adjacent[-1][-1] = False
        adjacent.append(~is_last)
        end, steps = (stream, first + n), steps + int(is_step.sum())
    following = np.concatenate([*adjacent, np.empty(0, np.bool_)])
    return {path: np.concatenate(each) for path, each in parts.items()}, following[:-1], len(following), steps, damaged
