"""``diskbuffer copy``: a store from another, whole or in part."""

from __future__ import annotations

from diskbuffer.commands.arguments import Whole
from diskbuffer.commands.output import WELL
from diskbuffer.errors import InputError


def copy(
    store: str,
    new: str,
    /,
    *,
    where: str | None = None,
    columns: list[str] | None = None,
    capacity: str | None = None,
    codec: list[str] | None = None,
    chunk_rows: Whole | None = None,
    frame_stack: Whole | None = None,
    quiet: bool = False,
) -> int:
    """Copy a store, whole or in part, beside a training, too. Killed, it goes on where it was when it is called again.

    Parameters
    ----------
    store
        The directory of the store. It is only read. Or s3://BUCKET/PATH, without other options, to copy a store from a bucket.
    new
        Where the copy is to be: nothing, or an empty directory. Or s3://BUCKET/PATH, to copy a closed store to a bucket.
    where
        Which episodes, as `diskbuffer episodes` takes it: "return > 10 and ending == 'terminated'".
    columns
        One of the columns that are wanted; may be given several times. All by default. "obs" is all that begin with "obs/".
    capacity
        Keep the newest so many steps; "all" keeps all. As the store's by default.
    codec
        How a column is compressed, as COLUMN=CODEC: none, lz4, lz4hc:1 to lz4hc:9, zstd:1 to zstd:9, or auto; may be given
        several times.
    chunk_rows
        Rows that are compressed together: 1, 2, 4 or 8.
    frame_stack
        Frames in an observation.
    quiet
        Show no progress.
    """
    from diskbuffer.editing import copy as run

    print(
        run(
            store,
            new,
            where=where,
            columns=columns,
            capacity=None if capacity is None else "all" if capacity == "all" else _number(capacity),
            codec=dict(map(_codec, codec or ())),
            chunk_rows=chunk_rows,
            frame_stack=frame_stack,
            progress=not quiet,
        )
    )
    return WELL


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--capacity is a number of steps, or all, found {text!r}") from None


def _codec(text: str) -> tuple[str, str | None]:
    column, equals, codec = text.partition("=")
    if not (column and equals and codec):
        raise InputError(f"a codec is COLUMN=CODEC, such as --codec obs=zstd:1, found {text!r}")
    return column, None if codec == "auto" else codec
