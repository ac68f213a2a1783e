"""``diskbuffer copy``: a store from another, whole or in part."""

from __future__ import annotations

from diskbuffer.commands.arguments import Columns, Quiet, Restart, Where, Whole, pairs
from diskbuffer.commands.output import WELL
from diskbuffer.errors import InputError


def copy(
    store: str,
    new: str,
    /,
    *,
    where: Where = None,
    columns: Columns = None,
    rename: list[str] | None = None,
    capacity: str | None = None,
    codec: list[str] | None = None,
    chunk_rows: Whole | None = None,
    frame_stack: Whole | None = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> int:
    """Copy a store, whole or in part, beside a training, too. Killed, or failed, it goes on where it was when it is called again.

    Parameters
    ----------
    store
        The directory of the store. It is only read. Or s3://BUCKET/PATH, without other options, to copy a store from a bucket.
    new
        Where the copy is to be: nothing, or an empty directory. Or s3://BUCKET/PATH, to copy a closed store to a bucket.
    rename
        Another name for a column, as OLD=NEW: obs/camera=obs/wrist; may be given several times. All other options take the old
        names.
    capacity
        Keep the newest so many steps; "all" keeps all. As the store's by default.
    codec
        How a column is compressed, as COLUMN=CODEC: none, lz4, lz4hc:1 to lz4hc:9, zstd:1 to zstd:9, or auto; may be given
        several times.
    chunk_rows
        Rows that are compressed together: 1, 2, 4 or 8.
    frame_stack
        Frames in an observation.
    """
    from diskbuffer.editing import copy as run

    codecs = pairs("codec", codec, "COLUMN=CODEC", "obs=zstd:1")
    print(
        run(
            store,
            new,
            where=where,
            columns=columns,
            rename=pairs("rename", rename, "OLD=NEW", "obs/camera=obs/wrist"),
            capacity=None if capacity is None else "all" if capacity == "all" else _number(capacity),
            codec={name: None if its == "auto" else its for name, its in codecs.items()},
            chunk_rows=chunk_rows,
            frame_stack=frame_stack,
            restart=restart,
            progress=not quiet,
        )
    )
    return WELL


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--capacity is a number of steps, or all, found {text!r}") from None
