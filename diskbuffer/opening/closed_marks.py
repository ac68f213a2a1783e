"""Marks of what is not open, a store or several writers' stores.

To see which there are, and to make room on a disk that is too full to open it.
"""

from __future__ import annotations

import os

from diskbuffer.arguments.paths import local_path
from diskbuffer.errors import NotAStoreError
from diskbuffer.store import directory
from diskbuffer.store.building import is_there
from diskbuffer.store.copies import marks as stored
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import WriterLock
from diskbuffer.writers import learner_lock
from diskbuffer.writers import marks as multi_writer
from diskbuffer.writers.description import has_writers


def marks(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the names of the marks of a store, or of several writers' stores, the oldest first, as `Copies.marks` does.

    Raises
    ------
    NotAStoreError
        There is no store.
    """
    files = Files(local_path(path))
    return multi_writer.names(files) if has_writers(files) else stored.names(_files_of(path))


def remove_mark(path: str | os.PathLike[str], name: str) -> None:
    """Remove a mark of a store that nobody has open for writing, and give back the space that it alone takes.

    Of several writers' stores, no learner may write columns or marks; writers may go on.

    `Copies.remove` is for a store that is open. Opening takes some space, and this takes none, so that a disk which
    marks have filled can be emptied.

    Parameters
    ----------
    path : path-like
    name : str

    Raises
    ------
    InputError
        There is no mark of that name, or a crash left the store on its way back to it.
    LockedError
        Another process writes to the store, or this one; or a learner to its columns.
    NotAStoreError
        There is no store.
    """
    files = Files(local_path(path))
    if has_writers(files):
        fd = learner_lock.take(files)
        try:
            multi_writer.remove(files, name)
        finally:
            learner_lock.release(files, fd)
        return
    files = _files_of(path)
    lock = WriterLock(files)
    try:
        stored.clear_up(files)
        stored.remove(files, name)
    finally:
        lock.release()


def _files_of(path: str | os.PathLike[str]) -> Files:
    root = local_path(path)
    if not is_there(root):
        raise NotAStoreError(f"there is no store at {root}")
    files = Files(root)
    layout, slots = directory.read_metadata(files)
    directory.refuse_links(files, layout, slots, SEGMENTS)
    return files
