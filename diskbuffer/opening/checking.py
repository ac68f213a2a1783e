"""Verifying what is at a path: a store, or the stores of several writers."""

from __future__ import annotations

import os

from diskbuffer.arguments.paths import local_path
from diskbuffer.store.checking.check import check as check_one
from diskbuffer.store.checking.report import Report
from diskbuffer.store.system.files import Files
from diskbuffer.writers.checking import check_all
from diskbuffer.writers.description import has_writers


def check(path: str | os.PathLike[str], repair: bool = False, progress: bool = True) -> Report:
    """Verify every structure and every checksum of a store, or of several writers' stores, and decode every chunk.

    Without `repair` nothing is changed, and a writer may be at work at the same time: what it has not sealed yet is then left
    out, as only the writer knows it.

    With `repair` the store must not be open for writing. What cannot be saved is dropped, and nothing else: steps that lie in a
    damaged chunk, or whose row is damaged in some column; the rest of their episode stays, as one that was cut off. Of a file
    that is missing or another, these are the steps of its segment. A column that was written later (`Columns.write`) loses
    the values of a damaged segment. Files are written anew, never changed.

    Parameters
    ----------
    path : path-like
    repair : bool
    progress : bool
        Whether to show a bar, where tqdm is installed.

    Returns
    -------
    Report

    Raises
    ------
    NotAStoreError
        There is no store.
    LockedError
        A repair was asked for, and the store is open for writing elsewhere.

    Notes
    -----
    Reads the whole store: some 15 s for a million 84x84 frames.
    """
    root = local_path(path)
    return (check_all if has_writers(Files(root)) else check_one)(root, repair=repair, progress=progress)
