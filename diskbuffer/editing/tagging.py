"""Tags of episodes that a condition holds for, in the store itself."""

from __future__ import annotations

import os

from diskbuffer.buffer import ReplayBuffer
from diskbuffer.endings import RUNNING
from diskbuffer.errors import InputError, LockedError
from diskbuffer.gathering.description import is_gathering
from diskbuffer.inspect.episodes import build
from diskbuffer.inspect.gathered import writer_at
from diskbuffer.inspect.where import parse
from diskbuffer.paths import local_path
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import describe


def tag(store: str | os.PathLike[str], tag: str | None, where: str | None = None) -> int:
    """Tag episodes in place, in place of the tag that they have; None takes it away.

    Parameters
    ----------
    store : path-like
        A store, which nobody else may have open for writing: in the process that does, use `ReplayBuffer.tag`. Or the stores of
        several writers, who may go on; no learner may write columns there.
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
        Another process writes to the store, or a learner to the columns of several writers.
    """
    condition = None if where is None else parse(where)
    files = Files(local_path(store))
    try:
        opened = ReplayBuffer(store, mode="r" if is_gathering(files) else "r+")
    except LockedError as error:
        writer = writer_at(files.root)
        if writer is None:
            raise
        raise LockedError(
            f"{files.root} is being written to by {describe(writer)}, which alone can tag its episodes: call buffer.tag "
            "there, or tag them once it has closed the store"
        ) from error
    with opened as buffer:
        with buffer._store.lock:
            table = build(buffer._store, buffer._reader.index)
        table = table if condition is None else table.select(condition.select(table))
        starts = table.start[table.ending != RUNNING]
        if not len(starts):
            raise InputError(f"{store} has no episode that is over{'' if where is None else ' and for which that holds'}")
        return buffer.tag(tag, starts)
