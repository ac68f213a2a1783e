"""``diskbuffer export``: stores to other formats."""

from __future__ import annotations

from diskbuffer.commands.arguments import Columns, Options, Quiet, Restart, Where, format_options
from diskbuffer.commands.output import WELL


def export(
    format: str,
    store: str,
    target: str,
    /,
    *,
    where: Where = None,
    columns: Columns = None,
    allow_loss: list[str] | None = None,
    option: Options = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> int:
    """Write a store's episodes in another program's format. Killed, or failed, it goes on where it was when it is called again.

    Parameters
    ----------
    format
        What to write: see docs/formats.md.
    store
        The directory of the store. A training may be writing to it.
    target
        Where the files are to be: nothing, or an empty directory.
    allow_loss
        Go on without what the format cannot hold, by its name; may be given several times.
    """
    from diskbuffer.formats.exporting import export as run

    print(
        run(
            format,
            store,
            target,
            where=where,
            columns=columns,
            allow_loss=allow_loss or (),
            restart=restart,
            progress=not quiet,
            **format_options(option, run),
        )
    )
    return WELL
