"""``diskbuffer delete``: a store without some of its episodes."""

from __future__ import annotations

from diskbuffer.commands.output import WELL


def delete(store: str, new: str, /, *, where: str, quiet: bool = False) -> int:
    """Write a new store without some episodes. Killed, it goes on where it was when it is called again.

    Parameters
    ----------
    store
        The directory of the store. It is only read: remove it yourself once the new one is what you want.
    new
        Where the new store is to be: nothing, or an empty directory.
    where
        Which episodes to leave out, as `diskbuffer episodes` takes it: "length < 10".
    quiet
        Show no progress.
    """
    from diskbuffer.editing import delete as run

    print(run(store, new, where, progress=not quiet))
    return WELL
