"""Other formats to stores."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from diskbuffer import Column
from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.blocks import Opened, Wanted
from diskbuffer.formats.confined import MEMORY, ConfinedSource
from diskbuffer.formats.filling import fill
from diskbuffer.formats.fingerprint import fingerprint
from diskbuffer.formats.lossy_conversion import refuse
from diskbuffer.formats.options import as_texts, check
from diskbuffer.formats.registry import find
from diskbuffer.formats.unfinished import Unfinished
from diskbuffer.formats.untrusted import refuse_links
from diskbuffer.plugin import BUILT_IN, Appender, Contents, either, integer, local_path, progress_bar


def import_(
    format: str,
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    columns: Collection[str] | None = None,
    capacity: int | None = None,
    transforms: Mapping[str, Any] | None = None,
    allow_nan: bool = False,
    allow_loss: Collection[str] = (),
    trust: bool = False,
    max_memory: int = MEMORY,
    max_ratio: int = 1000,
    restart: bool = False,
    progress: bool = True,
    **options: Any,
) -> Path:
    """Make a store of what another program has written.

    It is made beside its place, in a hidden directory, and moved there when it is whole. A run that was killed, or failed, is
    finished by the same call, as long as the source is the same: steps that it has added are not added again.

    Parameters
    ----------
    format : str
        Such as "lerobot"; `formats` lists them.
    source : path-like
        A file or a directory, as the format has it. It is only read.
    store : path-like
        Where the store is to be: there must be nothing, or an empty directory.
    columns : collection of str, optional
        Which columns, by their paths in the store; all by default.
    capacity : int, optional
        Keep the newest so many steps; all by default.
    transforms : mapping of str to Greyscale, Resize, or tuple of them, optional
        What pictures become before they are stored, by column: ``{"obs/camera": (db.Greyscale(), db.Resize(84, 84))}``. All by
        default as they are.
    allow_nan : bool
        Whether floats may be NaN or infinite. If not, one is an error that names its column.
    allow_loss : collection of str
        Losses to put up with: what the source has and a store cannot hold is an error that names it, otherwise.
    trust : bool
        Whether to read pickles, which can run any code: only from those whom you trust.
    max_memory : int
        Bytes of its own that the process may have which reads the source: 4 GiB by default. macOS keeps no such limit.
    max_ratio : int
        How many times the size of its files a source may give, beyond 256 MiB: 1,000 by default.
    restart : bool
        Whether to begin anew, where a run with other options, or of another source, was not finished.
    progress : bool
        Whether to show progress.
    **options
        The format's own; see the docs.

    Returns
    -------
    pathlib.Path
        The store's path.

    Raises
    ------
    InputError
        There is no such format, option or column; something is at `store` already; or a value is NaN or infinite.
    LossError
        Something would be lost.
    SourceError
        The source is damaged, is not what its format says, or was changed while it was read.
    MissingPackageError
        What reads the format is not installed; the message says how to install it.
    LockedError
        Another process is importing to the same place.
    """
    source_format, path = find(format), local_path(source)
    if source_format.read is None:
        raise InputError(f"diskbuffer writes {format}, and does not read it")
    if source_format.pickles and not trust:
        raise InputError(
            f"{format} files are pickles, which can run any code when they are read; if you trust whoever made {path}, say "
            f"{either('trust=True', '--trust')}"
        )
    check(format, source_format.read, 1, options)
    if path.is_dir():
        refuse_links(path)
    max_memory, max_ratio = integer("max_memory", max_memory), integer("max_ratio", max_ratio)
    begun_with, size = fingerprint(source_format.files(path))
    if source_format.pickles:  # which were trusted, and hold whole buffers
        opened: Opened | ConfinedSource = Opened(source_format.read(path, **options))
    else:
        opened = ConfinedSource(format, path, options, max_memory, size, max_ratio)
    with closing(opened) as reading:
        refuse(reading.losses, allow_loss, f"a store cannot hold all of {path}")
        contents = reading.contents
        chosen = _columns(contents, columns, allow_nan)
        derived = {name: column for name, column in chosen.items() if name in contents.derived and "/" not in name}
        settings: dict[str, Any] = {"columns": sorted(chosen), "capacity": capacity, "allow_nan": allow_nan}
        if transforms:
            settings["transforms"] = {path: _texts(transforms[path]) for path in sorted(transforms)}
        task = {"import": format, "source": begun_with, "options": as_texts(options), **settings}
        with Unfinished(store, task, restart=restart) as unfinished:
            with (
                Appender(
                    unfinished.place,
                    derived=derived,
                    columns={name: column for name, column in chosen.items() if name not in derived},
                    transforms=transforms,
                    capacity=capacity,
                    n_envs=contents.n_envs,
                    frame_stack=contents.frame_stack,
                    padding=contents.padding,
                    autoreset="disabled",
                    environment=contents.environment,
                    metadata=contents.metadata,
                    arrays=contents.arrays,
                ) as appender,
                progress_bar(contents.steps, 0, progress, "steps") as shown,
            ):
                columns = {path: contents.columns.get(path, column) for path, column in appender.columns.items()}
                wanted = Wanted.by(appender)._replace(columns=columns)  # as they are before they are transformed
                fill(appender, reading.blocks(wanted), shown.update)
            if fingerprint(source_format.files(path)) != (begun_with, size):
                raise SourceError(f"{path} was changed while it was read; import it again once nothing writes to it")
            unfinished.finish()
            return unfinished.target


def _texts(transform: Any) -> list[str]:
    return [str(each) for each in (transform if isinstance(transform, tuple | list) else (transform,))]


def _columns(contents: Contents, some: Collection[str] | None, allow_nan: bool) -> dict[str, Column]:
    known = {name: column for name, column in contents.columns.items() if name not in BUILT_IN}
    for name in some or ():
        if name not in known:
            raise InputError(f"there is no column {name!r}; there are {', '.join(known)}")
    chosen = {name: column for name, column in known.items() if some is None or name in some}
    return {name: replace(column, allow_nan=True) if allow_nan else column for name, column in chosen.items()}
