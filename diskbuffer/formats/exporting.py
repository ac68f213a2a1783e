"""Stores to other formats."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

from diskbuffer.errors import InputError
from diskbuffer.formats.lossy_conversion import refuse
from diskbuffer.formats.options import as_texts, check
from diskbuffer.formats.registry import find
from diskbuffer.formats.stored import StoreSource
from diskbuffer.formats.unfinished import Unfinished
from diskbuffer.plugin import progress_bar


def export(
    format: str,
    store: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    where: str | None = None,
    columns: Collection[str] | None = None,
    allow_loss: Collection[str] = (),
    restart: bool = False,
    progress: bool = True,
    **options: Any,
) -> Path:
    """Write the episodes of a store in another program's format.

    It is made beside its place, in a hidden directory, and moved there when it is whole. A run that was killed, or failed, is
    finished by the same call, as long as the same episodes are there, with the same values; after a power loss it begins anew.

    Parameters
    ----------
    format : str
        Such as "lerobot"; `formats` lists them.
    store : path-like
        A store; a training may be writing to it.
    target : path-like
        There must be nothing, or an empty directory.
    where : str, optional
        Which episodes: "return > 10 and ending == 'terminated'", as ``diskbuffer episodes --where`` has it.
    columns : collection of str, optional
        Which columns, by path; all by default. Flags are always part of it.
    allow_loss : collection of str
        Losses to put up with: what the store has and the format cannot hold is an error that names it, otherwise.
    restart : bool
        Whether to begin anew, where a run with other options, or of other episodes, was not finished.
    progress : bool
        Whether to show progress.
    **options
        The format's own; see the docs.

    Returns
    -------
    pathlib.Path
        The target's path.

    Raises
    ------
    InputError
        There is no such format, option, column or episode, or something is at `target` already.
    LossError
        Something would be lost.
    CorruptionError
        The store is damaged.
    EvictedError
        A training that writes to it has evicted an episode before its turn.
    MissingPackageError
        What writes the format is not installed; the message says how to install it.
    LockedError
        Another process is exporting to the same place.
    """
    target_format = find(format)
    if target_format.write is None:
        raise InputError(f"diskbuffer reads {format}, and does not write it")
    check(format, target_format.write, 2, options)
    with closing(StoreSource(store, where, columns)) as source:
        contents = source.contents
        if not contents.episodes:
            raise InputError(f"{store} has no episodes{' for which that holds' if where else ''}: there is nothing to export")
        losses = dict(target_format.losses(contents, **options))
        if contents.values and not target_format.values:
            losses["values"] = f"it has no place for what episodes were given by name: {', '.join(contents.values)}"
        refuse(losses, allow_loss, f"{format} cannot hold all of {store}")
        task = {
            "export": format,
            "options": as_texts(options),
            "source": source.fingerprint(),
        }
        with Unfinished(target, task, restart=restart) as unfinished:
            with (
                closing(target_format.write(unfinished.place, contents, **options)) as writer,
                progress_bar(contents.steps, 0, progress, "steps") as shown,
            ):
                shown.update(int(source.table.length[: writer.held].sum()))
                for episode in source.episodes(writer.held):
                    writer.write(episode)
                    shown.update(episode.steps)
                writer.finish()
            source.warn_of_changes()
            unfinished.finish()
            return unfinished.target
