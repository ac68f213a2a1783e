"""Opening one store of format 2, or making it, as `ReplayBuffer` says; what that takes is in `storage.opening`."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from diskbuffer.errors import NotAStoreError
from diskbuffer.options import Wanted, refuse_another
from diskbuffer.runtime import forks
from diskbuffer.storage import opening
from diskbuffer.storage.copies import marks
from diskbuffer.storage.store import Store
from diskbuffer.store.building import is_there
from diskbuffer.store.system.bucket_files import BucketFiles
from diskbuffer.store.system.files import Files
from diskbuffer.wording import either

# The format of stores that are made; those that are there are opened by what they are.
FORMAT = int(os.environ.get("DISKBUFFER_FORMAT", "1"))


def is_chosen(path: Path) -> bool:
    """Return whether a store is of format 2, or is to be."""
    return opening.is_format_2(path) or (FORMAT == 2 and not is_there(path))


def open_store(path: Path, wanted: Wanted, mode: str, mark: str | None) -> tuple[Store, opening.Opened | None]:
    """Open a store to read, or to write, or make it, or have it go back to a mark; return it, and what writes to it."""
    lock, there = None, is_there(path)
    if there and mode == "w-":
        raise NotAStoreError(f"there is a store at {path} already, and mode 'w-' makes new ones only")
    if not there:
        if mode in ("r", "r+") or mark is not None:
            raise NotAStoreError(
                f"there is no store at {path}"
                + (either("; mode 'a' would create one", "") if mark is None else ", and no mark of it")
            )
        lock = opening.create(path, wanted.layout_of_format_2())
        if lock is None and mode == "w-":
            raise NotAStoreError(f"another process has made a store at {path} by now, and mode 'w-' makes new ones only")
    files = Files(path)
    if mark is not None:
        found = marks.find(files, mark)
        if mode == "r":
            return _paused(Store(found, writable=False)), None
        with marks.opened(files, mark) as marked:
            refuse_another(path, marked.layout, wanted)
    if mode == "r":
        return _paused(opening.open_to_read(path)), None
    with _saying_how_to_make_room(files):
        opened = opening.open_to_write(path, lock, mark)
    forks.renew(opened.lock)
    return _paused(opened.store), opened


def open_bucket(files: BucketFiles, mark: str | None) -> Store:
    """Open a store in a bucket, or a mark of it, to read."""
    return _paused(opening.open_bucket(files, mark))


def _paused(store: Store) -> Store:
    forks.pause(store)
    return store


@contextlib.contextmanager
def _saying_how_to_make_room(files: Files) -> Iterator[None]:
    """Add to the error of a disk that is too full to open a store that its marks can be removed without that."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and (there := marks.names(files)):
                error.add_note(
                    f"{files.root} has the marks {', '.join(map(repr, there))}; diskbuffer.remove_mark(path, name), or "
                    "`diskbuffer marks PATH --remove NAME`, gives the space of one back, and takes none itself"
                )
        raise
