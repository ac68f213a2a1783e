"""``diskbuffer merge``: several stores as one."""

from __future__ import annotations

from diskbuffer.commands.arguments import Columns, Quiet, Restart, Whole
from diskbuffer.commands.output import WELL
from diskbuffer.errors import InputError


def merge(
    *paths: str,
    columns: Columns = None,
    capacity: Whole | None = None,
    allow_loss: list[str] | None = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> int:
    """Write the episodes of several stores to a new one. Killed, or failed, it goes on where it was when it is called again.

    Parameters
    ----------
    paths
        The directories of the stores, which are only read, and last where the new one is to be.
    capacity
        Keep the newest so many steps. All by default.
    allow_loss
        What to go on without where stores differ in it: derived, environment or metadata; may be given several times.
    """
    from diskbuffer.editing import merge as run

    if len(paths) < 3:
        raise InputError("give two or more stores to merge, and last the path of the new one")
    *stores, new = paths
    print(run(stores, new, columns=columns, capacity=capacity, allow_loss=allow_loss or (), restart=restart, progress=not quiet))
    return WELL
