"""Tags of episodes that a condition holds for, in the store itself."""

from __future__ import annotations

import os

from diskbuffer import ReplayBuffer
from diskbuffer.errors import InputError, LockedError
from diskbuffer.plugin import RUNNING, Reader, local_path, writers_of


def tag(store: str | os.PathLike[str], tag: str | None, where: str | None = None) -> int:
    """Tag episodes in place, in place of the tag that they have; None takes it away.

    Parameters
    ----------
    store : path-like
        A store, which nobody else may have open for writing: in the process that does, use `Episodes.set_tag`. Or the stores of
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
    try:
        opened = ReplayBuffer(store, mode="r+" if writers_of(store) is None else "r")
    except LockedError as error:
        writer = Reader(store).writer
        if writer is None:
            raise
        raise LockedError(
            f"{local_path(store)} is being written to by process {writer['pid']} on {writer['host']}, which alone can tag its "
            "episodes: call set_tag of buffer.episodes there, or tag them once it has closed the store"
        ) from error
    with opened as buffer:
        table = Reader(store).episodes(where)
        starts = table.start[table.ending != RUNNING]
        if not len(starts):
            raise InputError(f"{store} has no episode that is over{'' if where is None else ' and for which that holds'}")
        return buffer.episodes.of(starts).set_tag(tag)
