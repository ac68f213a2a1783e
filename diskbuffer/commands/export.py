"""``diskbuffer export``: stores to other formats."""

from __future__ import annotations

from diskbuffer.commands.format_options import parse
from diskbuffer.commands.output import WELL


def export(
    format: str,
    store: str,
    target: str,
    /,
    *,
    where: str | None = None,
    columns: list[str] | None = None,
    allow_loss: list[str] | None = None,
    option: list[str] | None = None,
    quiet: bool = False,
) -> int:
    """Write a store's episodes in another program's format. Killed, it goes on where it was when it is called again.

    Parameters
    ----------
    format
        What to write: see docs/formats.md.
    store
        The directory of the store. A training may be writing to it.
    target
        Where the files are to be: nothing, or an empty directory.
    where
        Which episodes, as `diskbuffer episodes` takes it: "return > 10 and ending == 'terminated'".
    columns
        One of the columns that are wanted; may be given several times. All by default.
    allow_loss
        Go on without what the format cannot hold, by its name; may be given several times.
    option
        An option of the format, as NAME=VALUE; may be given several times.
    quiet
        Show no progress.
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
            progress=not quiet,
            **parse(option or ()),
        )
    )
    return WELL
