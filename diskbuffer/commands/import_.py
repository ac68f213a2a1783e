"""``diskbuffer import``: other formats to stores."""

from __future__ import annotations

from diskbuffer.commands.arguments import Columns, Options, Quiet, Restart, Whole, format_options, pairs
from diskbuffer.commands.output import WELL


def import_(
    format: str,
    source: str,
    store: str,
    /,
    *,
    columns: Columns = None,
    capacity: Whole | None = None,
    transform: list[str] | None = None,
    allow_nan: bool = False,
    allow_loss: list[str] | None = None,
    trust: bool = False,
    max_memory: Whole = 4 * 1024**3,
    max_ratio: Whole = 1000,
    option: Options = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> int:
    """Make a store of what another program has written. Killed, or failed, it goes on where it was when it is called again.

    Parameters
    ----------
    format
        What the files are: see docs/formats.md.
    source
        A file or a directory. It is only read.
    store
        Where the store is to be: nothing, or an empty directory.
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
    max_memory
        Bytes of its own that the process may have which reads the source. macOS keeps no such limit.
    max_ratio
        How many times the size of its files a source may give, beyond 256 MiB.
    """
    from diskbuffer.formats import forks

    forks.start()  # it takes as long as importing PyTorch does, which comes next
    from diskbuffer.formats.importing import import_ as run

    chosen = pairs("transform", transform, "COLUMN=greyscale,resize:HEIGHTxWIDTH, or one of both", "obs=resize:84x84")
    print(
        run(
            format,
            source,
            store,
            columns=columns,
            capacity=capacity,
            transforms={path: text.split(",") for path, text in chosen.items()},
            allow_nan=allow_nan,
            allow_loss=allow_loss or (),
            trust=trust,
            max_memory=max_memory,
            max_ratio=max_ratio,
            restart=restart,
            progress=not quiet,
            **format_options(option, run),
        )
    )
    return WELL
