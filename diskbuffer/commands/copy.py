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
    rename: list[str] | None = None,
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
    quiet
        Show no progress.
    """
    from diskbuffer.editing import copy as run

    codecs = _pairs("codec", codec, "COLUMN=CODEC", "obs=zstd:1")
    print(
        run(
            store,
            new,
            where=where,
            columns=columns,
            rename=_pairs("rename", rename, "OLD=NEW", "obs/camera=obs/wrist"),
            capacity=None if capacity is None else "all" if capacity == "all" else _number(capacity),
            codec={name: None if its == "auto" else its for name, its in codecs.items()},
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


def _pairs(option: str, texts: list[str] | None, form: str, example: str) -> dict[str, str]:
    """Read what was given as LEFT=RIGHT."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        left, _, right = text.partition("=")
        if not (left and right):
            raise InputError(f"--{option} is {form}, such as --{option} {example}, found {text!r}")
        if pairs.setdefault(left, right) != right:
            raise InputError(f"--{option} is given twice for {left}: {pairs[left]} and {right}")
    return pairs
