"""The column in which a step tells where another library's buffer has it: what places a store is opened again with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.buffer import ReplayBuffer
from diskbuffer.schema import BUILT_IN

Int64 = npt.NDArray[np.int64]
SLOT = "slot"
OURS = (*BUILT_IN, "tag", SLOT)  # columns that are not what the other library gave
_PLACES, _TIMES = 2**32, 2**24  # more places than any buffer has, and more often than any is emptied
_AT_ONCE = 65_536  # steps that are looked at together


class Told(NamedTuple):
    """What steps tell, (n,) int64 each.

    Attributes
    ----------
    places
        Where they were put.
    emptied
        How often the buffer had been emptied before.
    extra
        A small number that an adapter may need.
    """

    places: Int64
    emptied: Int64
    extra: Int64


def pack(places: Int64, emptied: int, extra: int = 0) -> Int64:
    """Return what is stored with steps."""
    return np.asarray(places + (emptied + extra * _TIMES) * _PLACES)


def unpack(slots: Int64) -> Told:
    """Return what it tells."""
    above = slots // _PLACES
    return Told(slots % _PLACES, above % _TIMES, above // _TIMES)


def told_by(buffer: ReplayBuffer, steps: Int64) -> Told:
    """Return what steps, (n,), tell, read from the store."""
    parts: list[Any] = [
        buffer.at(steps[n : n + _AT_ONCE], columns=[SLOT])[SLOT].numpy().copy() for n in range(0, len(steps), _AT_ONCE)
    ]
    return unpack(np.concatenate([np.zeros(0, np.int64), *parts]))


def told_by_newest(buffer: ReplayBuffer, envs: Int64, there: Int64) -> tuple[Told, Int64]:
    """Return what the newest step of each of some environments tells, and how many were added since the buffer was emptied last.

    ``there``, (n,), are how many steps of each to look among, at least 1. A few of them are looked at: how often the buffer had
    been emptied never becomes less.
    """

    def told(ages: Int64) -> Told:
        return told_by(buffer, buffer.recent_steps(ages, envs))

    newest = told(np.zeros_like(there))
    since = told(there - 1).emptied == newest.emptied  # all of them, as a rule
    few, many = np.where(since, there, 1), there.copy()
    while (few + 1 < many).any():
        middle = (few + many) // 2
        since = told(middle - 1).emptied == newest.emptied
        few, many = np.where(since, middle, few), np.where(since, many, middle)
    return newest, few
