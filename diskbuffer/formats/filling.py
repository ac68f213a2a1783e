"""Blocks of episodes into a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.blocks import Block
from diskbuffer.plugin import Appender, either, is_observation

Array = npt.NDArray[Any]


def fill(appender: Appender, blocks: Iterable[Block], report: Callable[[int], None]) -> None:
    """Append blocks of episodes to a store; commit nothing.

    Parameters
    ----------
    appender : Appender
        Of which `ever` is what the blocks leave out.
    blocks : iterable of Block
    report : callable
        Is given how many steps were added, or found to be there, each time.

    Raises
    ------
    InputError
        As `ReplayBuffer.extend` raises it, of values: a NaN, say.
    """
    columns = {**appender.columns, **appender.derived}
    for kind, facts, values in blocks:
        env, before = facts["stream"], appender.count(facts["stream"])
        _refuse_infinite(values, columns)
        if kind == "episode":
            appender.begin(env, facts["tag"], facts["values"])
            appender.skip(facts["present"], env)
        elif kind == "stack":
            appender.append(_stacked(values), env)
        elif kind == "steps":
            appender.append(values, env)
        elif kind == "derived":
            if not 0 <= facts["first"] <= before - max(map(len, values.values())):
                raise SourceError(f"derived values of the step {facts['first']} of {before}")
            appender.write_columns(values, facts["first"], env)
        else:
            appender.end(env)
        report(appender.count(env) - before)


def _stacked(rows: Mapping[str, Array]) -> dict[str, Array]:
    """Return a first step, its observations as two stacks of the frames that are there."""
    observed = {path: frames for path, frames in rows.items() if is_observation(path)}
    following = {f"next_{path}": frames[None, 1:] for path, frames in observed.items()}
    return {**rows, **{path: frames[None, :-1] for path, frames in observed.items()}, **following}


def _refuse_infinite(rows: Mapping[str, Array], columns: Mapping[str, Column]) -> None:
    """Raise an InputError where a row is not finite, and must be: `extend` has no option for it."""
    for path, values in rows.items():
        if values.dtype.kind in "fc" and not columns[path].allow_nan and not np.isfinite(values).all():
            accept = either("allow_nan=True", "--allow-nan")
            raise InputError(f"{path}: found NaN or infinity; find where it comes from, or accept it: {accept}")
