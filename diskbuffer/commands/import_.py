"""``diskbuffer import``: other formats to stores."""

from __future__ import annotations

from diskbuffer.commands.arguments import Whole
from diskbuffer.commands.format_options import parse, parse_transforms
from diskbuffer.commands.output import WELL


def import_(
    format: str,
    source: str,
    store: str,
    /,
    *,
    columns: list[str] | None = None,
    capacity: Whole | None = None,
    transform: list[str] | None = None,
    allow_nan: bool = False,
    allow_loss: list[str] | None = None,
    trust: bool = False,
    option: list[str] | None = None,
    quiet: bool = False,
) -> int:
    """Make a store of what another program has written. Killed, it goes on where it was when it is called again.

    Parameters
    ----------
    format
        What the files are: see docs/formats.md.
    source
        A file or a directory. It is only read.
    store
        Where the store is to be: nothing, or an empty directory.
    columns
        One of the columns that are wanted; may be given several times. All by default.
    capacity
        Keep the newest so many steps. All by default.
    transform
        What pictures of a column become before they are stored: obs=greyscale,resize:HEIGHTxWIDTH, or one of both. May be given
        several times.
    allow_nan
        Accept floats that are NaN.
    allow_loss
        Go on without what a store cannot hold, by its name; may be given several times.
    trust
        Read pickles, which can run any code.
    option
        An option of the format, as NAME=VALUE; may be given several times.
    quiet
        Show no progress.
    """
    from diskbuffer.formats.importing import import_ as run

    print(
        run(
            format,
            source,
            store,
            columns=columns,
            capacity=capacity,
            transforms=parse_transforms(transform or ()),
            allow_nan=allow_nan,
            allow_loss=allow_loss or (),
            trust=trust,
            progress=not quiet,
            **parse(option or ()),
        )
    )
    return WELL
