"""``diskbuffer rename-column``: a store in which a column has another name."""

from __future__ import annotations

from diskbuffer.commands.output import WELL


def rename_column(store: str, new: str, old: str, name: str, /, *, quiet: bool = False) -> int:
    """Write a new store in which a column has another name. Killed, it goes on where it was when it is called again.

    Parameters
    ----------
    store
        The directory of the store. It is only read.
    new
        Where the new store is to be: nothing, or an empty directory.
    old
        The column's path: obs/camera.
    name
        What it is called in the new store.
    quiet
        Show no progress.
    """
    from diskbuffer.editing import rename_column as run

    print(run(store, new, old, name, progress=not quiet))
    return WELL
