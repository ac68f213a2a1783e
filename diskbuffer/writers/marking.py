"""Making a mark of several writers' stores, while they go on: see `diskbuffer.writers.marks`."""

from __future__ import annotations

import os
import stat

from diskbuffer.errors import CorruptionError, EvictedError, NotAStoreError
from diskbuffer.index.index import Index
from diskbuffer.reading.restore_index import read_index
from diskbuffer.recording.stream_log import StreamLog
from diskbuffer.store.building import is_there
from diskbuffer.store.copies import arrays, marks
from diskbuffer.store.copies.backup import back_up
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.opening import open_store
from diskbuffer.store.origin import FILE as ORIGIN
from diskbuffer.store.origin import Origin
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import SHARED, describe, read_description
from diskbuffer.writers.learner_lock import COLUMNS
from diskbuffer.writers.marks import PATHS
from diskbuffer.writers.store import MultiWriterStore


def make_mark(store: MultiWriterStore, name: str, kept: arrays.Arrays) -> None:
    """Make a mark with arrays, in place of one of that name; this process must be the one that writes columns."""
    files = store.all_files
    marks.clear_up(files, PATHS)
    with marks.building(files, name, PATHS) as building:
        _copy(store, files, building, marks.next_number(files, PATHS), kept)


def make_snapshot(store: MultiWriterStore, building: Files, kept: arrays.Arrays) -> None:
    """Copy all stores and the learner's columns to another directory; this process must be the one that writes columns."""
    _copy(store, store.all_files, building, 0, kept)
    if building.exists(SEGMENTS):  # by which it was known to be ours; no directory of several writers has it
        building.remove_directory(SEGMENTS)


def _copy(store: MultiWriterStore, files: Files, building: Files, number: int, kept: arrays.Arrays) -> None:
    description = read_description(files)
    for entry in description.present:
        if is_there(files.root / entry.name):  # else it was removed, or is only being made
            _copy_store(Files(files.root / entry.name), building, entry.name)
    with store.lock:  # nothing is written to columns meanwhile
        _copy_columns(files, building)
    describe(building, description)
    note = building.below(SHARED)
    note.make_directory(os.path.dirname(ORIGIN))
    Origin.new(number).note(note)
    arrays.write(note, kept)
    building.sync_all([SHARED, "."])


def _copy_store(source: Files, building: Files, name: str) -> None:
    """Copy a store as a kill would leave it now, and close it."""
    copy = building.below(name)
    copy.make_directory(".")
    try:
        back_up(source, copy)
    except (NotAStoreError, CorruptionError, EvictedError, FileNotFoundError):
        if source.is_in_place():
            raise
        building.remove_directory(name)  # the writer was removed meanwhile
        return
    store = open_store(Files(copy.root), writable=True)
    try:
        StreamLog(store, read_index(store, store.layout.frame_stack - 1, Index)).close(store.lock)
    finally:
        store.close()


def _copy_columns(files: Files, building: Files) -> None:
    source, copy = files.below(COLUMNS), building.below(COLUMNS)
    if not files.exists(COLUMNS):
        return
    copied = []
    for name, status in source.walk():
        if os.path.basename(name) == "lock" or name.endswith(".tmp") or stat.S_ISDIR(status.st_mode):
            continue
        copy.make_directory(os.path.dirname(name) or ".")
        copy.copy(source, name, name, reserve=True)
        copied += [name, os.path.dirname(name) or "."]
    copy.sync_all(sorted(set(copied)))
