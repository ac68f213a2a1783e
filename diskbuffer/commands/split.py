"""``diskbuffer split``: one store's episodes in several."""

from __future__ import annotations

from diskbuffer.commands.arguments import Whole
from diskbuffer.commands.output import WELL


def split(
    store: str,
    /,
    *new: str,
    fraction: list[float] | None = None,
    seed: Whole = 0,
    tag: list[str] | None = None,
    where: list[str] | None = None,
    quiet: bool = False,
) -> int:
    """Write a store's episodes to several new ones. Killed, it goes on where it was when it is called again.

    Parameters
    ----------
    store
        The directory of the store. It is only read.
    new
        Where the new stores are to be: at each nothing, or an empty directory.
    fraction
        How many of the episodes each gets, drawn at random: --fraction 0.9 --fraction 0.1.
    seed
        Of that draw.
    tag
        The tag of the episodes that each gets. One store more than there are tags gets the rest.
    where
        A condition, as `diskbuffer episodes` takes it, for each: an episode goes to the first that holds. One store more than
        there are conditions gets the rest.
    quiet
        Show no progress.
    """
    from diskbuffer.editing import split as run

    paths = run(store, new, fractions=fraction, seed=seed, tags=tag, where=where, progress=not quiet)
    print(*paths, sep="\n")
    return WELL
