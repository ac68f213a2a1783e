"""Tags of episodes that a condition holds for, in the store itself."""

from __future__ import annotations

import os

from diskbuffer.buffer import ReplayBuffer
from diskbuffer.endings import RUNNING
from diskbuffer.errors import InputError
from diskbuffer.inspect.episodes import build
from diskbuffer.inspect.where import parse


def tag(store: str | os.PathLike[str], tag: str | None, where: str | None = None) -> int:
    """Tag episodes in place, in place of the tag that they have; None takes it away.

    Parameters
    ----------
    store : path-like
        Nobody else may have it open for writing; in the process that does, use `ReplayBuffer.tag`.
    tag : str or None
    where : str, optional
        Which episodes, as ``diskbuffer episodes --where`` takes it; all that are over by default.

    Returns
    -------
    int
        How many episodes were tagged: those that are not over cannot be, and are left out.

    Raises
    ------
    InputError
        That is no tag, or no condition, or it holds for no episode that is over.
    LockedError
        Another process writes to the store.
    """
    condition = None if where is None else parse(where)
    with ReplayBuffer(store, mode="r+") as buffer:
        with buffer._store.lock:
            table = build(buffer._store, buffer._reader.index)
        table = table if condition is None else table.select(condition.select(table))
        starts = table.start[table.ending != RUNNING]
        if not len(starts):
            raise InputError(f"{store} has no episode that is over{'' if where is None else ' and for which that holds'}")
        return buffer.tag(tag, starts)
