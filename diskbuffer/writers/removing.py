"""Removing the store of a writer that nobody comes back to."""

from __future__ import annotations

import os

from diskbuffer.arguments.paths import local_path
from diskbuffer.errors import InputError, LockedError, NotAStoreError
from diskbuffer.store.building import is_there
from diskbuffer.store.format.layout import GROUP
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import WriterLock
from diskbuffer.writers import learner_lock
from diskbuffer.writers.description import LOCK, discard, has_writers, read_description
from diskbuffer.writers.learner_lock import COLUMNS
from diskbuffer.writers.places import refuse_inside


def remove_writer(path: str | os.PathLike[str], name: str) -> None:
    """Remove the store of one of several writers, which nobody may have open for writing, with all its steps.

    Readers see at their next `refresh` that it is gone. Ids of its steps are not given again, also not where a writer of the same
    name comes later. What a learner wrote to its steps goes, too; while a learner writes columns, that takes its space until the
    next writer is removed.

    Parameters
    ----------
    path : path-like
        The directory of all writers.
    name : str

    Raises
    ------
    InputError
        There is no writer of that name.
    LockedError
        It is being written to.
    NotAStoreError
        There are no stores of several writers at the path.
    """
    files = Files(local_path(path))
    if not has_writers(files):
        raise NotAStoreError(f"there are no stores of several writers at {files.root}")
    refuse_inside(files.root)
    with files.alone(LOCK):
        description = read_description(files)
        if description.find(name) is None:
            names = ", ".join(entry.name for entry in description.present) or "none"
            raise InputError(f"{files.root} has no writer {name!r}; it has {names}")
        lock = WriterLock(files.below(name)) if is_there(files.root / name) else None
        try:
            description = description.without(name)
            files.replace_contents(GROUP, description.to_json())  # first: what is left of the store after a kill is no writer's
            discard(files, name)
        finally:
            if lock is not None:
                lock.release()
    _remove_columns(files, {entry.name for entry in description.present})


def _remove_columns(files: Files, present: set[str]) -> None:
    """Remove what learners wrote to steps of writers that are not there, unless one writes now."""
    try:
        fd = learner_lock.take(files)
    except LockedError:
        return
    try:
        columns = files.below(COLUMNS)
        for column in columns.names():
            for writer in columns.below(column).names() if columns.is_directory(column) else ():
                if writer not in present:
                    columns.remove_directory(f"{column}/{writer}")
    finally:
        learner_lock.release(files, fd)
