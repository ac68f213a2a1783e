"""Episodes into a store, block by block, from where an interrupted run stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import InputError
from diskbuffer.formats.blocks import MOST_ROWS, check, rows_of
from diskbuffer.formats.rows import rows_at_a_time
from diskbuffer.plugin import Appender, EpisodeData, either, is_observation

Array = npt.NDArray[Any]


def fill(appender: Appender, episodes: Iterable[EpisodeData], report: Callable[[int], None]) -> None:
    """Append episodes to a store, but for those steps that an earlier run with the same episodes has written; commit nothing.

    Parameters
    ----------
    appender : Appender
        Its derived columns are written, too.
    episodes : iterable of EpisodeData
    report : callable
        Is given how many steps were added, or found to be there, each time.

    Raises
    ------
    SourceError
        The rows of an episode's columns are not as many as its steps, or not of the store's dtypes and shapes.
    InputError
        As `ReplayBuffer.extend` raises it, of values: a NaN, say.
    """
    for number, episode in enumerate(episodes):
        check(number, episode, {**appender.columns, **appender.derived})
        _append(appender, episode, report)


def _append(appender: Appender, episode: EpisodeData, report: Callable[[int], None]) -> None:
    """Append what is not there yet of an episode."""
    env, columns, number = episode.stream, appender.columns, appender.count(episode.stream)
    appender.begin(env, episode.tag, episode.values)
    begin = appender.present(episode.steps, env)
    appender.skip(begin, env)
    report(begin)
    if begin == 0 and episode.lead and appender.frame_stack > 1:
        appender.append(_first_step(appender, episode), env)
        report(1)
        begin = 1
    block = rows_at_a_time(*(rows for path, rows in episode.columns.items() if path in columns), most=MOST_ROWS)
    for first in range(begin, episode.steps, block):
        last = min(first + block, episode.steps)
        appender.append(
            {
                path: _finite(path, columns[path], rows_of(episode, path, first, last))
                for path in episode.columns
                if path in columns
            },
            env,
        )
        report(last - first)
    for first in range(0, episode.steps if appender.derived else 0, MOST_ROWS):
        last = min(first + MOST_ROWS, episode.steps)
        values = {
            name: _finite(name, column, np.asarray(episode.columns[name][first:last]))
            for name, column in appender.derived.items()
        }
        appender.write_columns(values, number + first, env)
    if not episode.running:
        appender.end(env)


def _first_step(appender: Appender, episode: EpisodeData) -> dict[str, Array]:
    """Return an episode's first step, its observations as stacks, whose earlier frames come from before the episode."""
    frames = appender.frame_stack - 1
    values: dict[str, Array] = {}
    for path in episode.columns:
        if path not in appender.columns:
            continue
        block = _finite(path, appender.columns[path], rows_of(episode, path, 0, 1))
        if is_observation(path):
            rows = np.concatenate([episode.lead[path][-frames:], block])
            values[path], values[f"next_{path}"] = rows[None, :-1], rows[None, 1:]
        else:
            values[path] = block
    return values


def _finite(path: str, column: Column, rows: Array) -> Array:
    """Return rows as they are; an InputError where one is not finite, and must be: `extend` has no option for it."""
    if rows.dtype.kind in "fc" and not column.allow_nan and not np.isfinite(rows).all():
        accept = either("allow_nan=True", "--allow-nan")
        raise InputError(f"{path}: found NaN or infinity; find where it comes from, or accept it: {accept}")
    return rows
