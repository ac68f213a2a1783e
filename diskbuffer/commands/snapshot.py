"""``diskbuffer snapshot``: a copy of a store."""

from __future__ import annotations

from diskbuffer.commands.arguments import AnyStore
from diskbuffer.commands.output import WELL


def snapshot(path: AnyStore, to: str, /) -> int:
    """Copy a store as it is now, while a training writes to it, too. Sealed files are shared by hard links where they can be.

    Parameters
    ----------
    to
        Where the copy goes: nothing, or an empty directory.
    """
    from diskbuffer import ReplayBuffer

    with ReplayBuffer(path, mode="r") as buffer:
        print(buffer.copies.snapshot(to))
    return WELL
