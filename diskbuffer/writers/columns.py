"""Columns that a learner writes: its own files, beside the stores of the writers, which nobody but these write to.

    _shared/columns/columns.json             which columns there are, and the names of tags
    _shared/columns/priority/actor-3/c.7     values of the rows of slot 7 of a writer's store; then whose rows those were

A writer uses a slot again for other rows, at any time. So every file ends with the store, the stream and the first row that its
values belong to, and a file with those of other rows counts as zeros. Which rows are meant is told by what the index was read
from, as the table may have others by now: what is written to steps that were evicted since goes nowhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, EvictedError, SchemaError
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.schema.schema import Column, Schema
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.segments.mapped import Epoch, InMemory, Zeros
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files, Map
from diskbuffer.store.system.json_files import read_json
from diskbuffer.writers import learner_lock
from diskbuffer.writers.description import SHARED
from diskbuffer.writers.learner_lock import COLUMNS
from diskbuffer.writers.members import Member

Int64 = npt.NDArray[np.int64]
_WHAT = "columns.json"
_WHOSE = 16  # bytes: the store and the stream, and the first row
_FILE = re.compile(r"c\.([0-9]{1,18})")  # of a slot's values


class What(NamedTuple):
    """Which columns there are, the names of tags, and how many columns were removed so far."""

    columns: Mapping[str, Column]
    tags: tuple[str, ...]
    removals: int


Key = tuple[str, Member, int]  # a column, and a slot of a store


class _Held(NamedTuple):
    mapped: Map | Zeros | InMemory
    whose: tuple[int, int]


class Columns:
    """The columns of a learner.

    Attributes
    ----------
    files : Files
        The directory that they are in.
    what : What
    """

    def __init__(self, root: Files, common: Layout) -> None:
        self._root, self._rows, self._recorded = root, common.segment_rows, common.schema
        self.files = root.below(COLUMNS)
        self.what = What({}, (), 0)
        self._seen: tuple[int, int] | None = None
        self._lock = -1
        self._held: dict[Key, _Held] = {}
        self._empty: set[Key] = set()  # those held where no file was
        self.epoch = Epoch()  # keeps maps that are given up as long as plans that read them
        self._zeros: dict[int, Zeros] = {}
        self._written = set[Key]()  # that may be written to at any time, as samplers keep them mapped
        self._left = set[str]()  # files that learners before this one may have written to
        self.look()

    def look(self) -> list[Key]:
        """Read which columns there are, if somebody else changed that; forget, and return, what may be another's by now."""
        removals, stale = self.what.removals, list[Key]()
        self._read_what()
        if self.what.removals != removals:
            stale = list(self._held)
        elif not self.is_writing:  # whoever writes may have made the files since
            stale = list(self._empty)
        self._retire(stale)
        return stale

    def _read_what(self) -> None:
        try:
            status = self.files.stat(_WHAT)
        except FileNotFoundError:
            return
        if (status.st_ino, status.st_mtime_ns) == self._seen:
            return
        try:
            what = read_json(self.files, _WHAT)
            schema = Schema.from_attributes({**self._recorded.to_attributes(), **what["columns"]})
            columns = {name: schema[name] for name in what["columns"] if name in schema.derived}
            self.what = What(columns, tuple(str(tag) for tag in what["tags"]), int(what["removals"]))
        except (SchemaError, ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{self.files.root / _WHAT} is damaged: {error}; remove it, and the columns with it") from error
        self._seen = status.st_ino, status.st_mtime_ns

    # Changing which there are

    @property
    def is_writing(self) -> bool:
        """Whether this is the one learner that writes columns."""
        return self._lock >= 0

    def begin_writing(self) -> None:
        """Be the one learner that writes columns; a LockedError where another process is.

        What another one has written before counts as written here, too: it may have ended before that was on the disk.
        """
        if self.is_writing:
            return
        fd = learner_lock.take(self._root)
        try:
            self._root.sync_all([SHARED, "."])  # by which names the columns are found
            self._read_what()
            self._left = set(self._every_file())
        except BaseException:
            learner_lock.release(self._root, fd)
            raise
        self._lock = fd
        self._retire(list(self._held))  # maps to read from, and zeros where there may be files by now

    def _every_file(self) -> Iterator[str]:
        for name in self.what.columns:
            if self.files.exists(name):
                for file, status in self.files.walk(name):
                    if stat.S_ISREG(status.st_mode):
                        yield file

    def end_writing(self) -> None:
        """Release the lock for writing columns; twice is fine."""
        fd, self._lock = self._lock, -1
        if fd >= 0:
            learner_lock.release(self._root, fd)

    def forget_lock(self) -> None:
        """In a fork: leave the lock to the parent."""
        fd, self._lock = self._lock, -1
        if fd >= 0:
            os.close(fd)

    def change(self, what: What) -> None:
        """Replace the columns, or tags, for good."""
        attributes = self.schema(what).to_attributes()
        described = {
            "columns": {name: attributes[name] for name in what.columns},
            "tags": list(what.tags),
            "removals": what.removals,
        }
        self.files.replace_contents(_WHAT, json.dumps(described).encode())
        self.what = what

    def schema(self, what: What) -> Schema:
        """Return all columns: those that were recorded, and these."""
        schema = self._recorded
        for name, column in what.columns.items():
            schema = schema.with_derived(name, column)
        return schema

    def add(self, name: str, column: Column) -> None:
        """Add a column for good, of zeros; files of one that was removed, which a power loss has brought back, go first."""
        if self.files.exists(name):
            self.files.remove_directory(name)
            self.files.sync(os.path.dirname(name) or ".")
        self.change(self.what._replace(columns={**self.what.columns, name: column}))

    def remove(self, name: str) -> None:
        """Remove a column for good."""
        kept = {path: column for path, column in self.what.columns.items() if path != name}
        self.change(self.what._replace(columns=kept, removals=self.what.removals + 1))
        self._retire([key for key in self._held if key[0] == name])
        self._left = {file for file in self._left if not file.startswith(f"{name}/")}
        with contextlib.suppress(FileNotFoundError):
            self.files.remove_directory(name)

    # Values

    def file(self, name: str, member: Member, slot: int) -> str:
        """Name the file of a slot's values, from the directory with all stores on."""
        return f"{COLUMNS}/{self._file(name, member, slot)}"

    def _file(self, name: str, member: Member, slot: int) -> str:
        return f"{name}/{member.entry.name}/c.{slot}"

    def _bytes(self, name: str) -> int:
        return _bytes_of(self.what.columns[name], self._rows)

    def get(self, name: str, member: Member, slot: int) -> Map | Zeros | InMemory:
        """Return what has the values of a slot of a store, as the index has it: zeros where nothing was written.

        An EvictedError where they were, and other rows' values may have taken their place.
        """
        whose, key = _identity(member, slot), (name, member, slot)
        held = self._held.get(key)
        if held is None or held.whose != whose:
            self._retire([key])
            mapped, size = self._existing_map(name, member, slot), self._bytes(name) + _WHOSE
            if mapped is not None and tuple(_whose(mapped, size).tolist()) != whose:
                member.store.refuse_evicted([slot])
                mapped = None
            if mapped is None:
                self._empty.add(key)
            held = self._held[key] = _Held(mapped or self._zeros.setdefault(size, Zeros(size)), whose)
        return held.mapped

    def _existing_map(self, name: str, member: Member, slot: int) -> Map | None:
        with contextlib.suppress(FileNotFoundError, CorruptionError):
            return self.files.map(self._file(name, member, slot), self._bytes(name) + _WHOSE, writable=self.is_writing)
        return None

    def writable(self, name: str, member: Member, slot: int) -> Map | InMemory | Zeros:
        """Return the map of a slot, to be written to; its file is made if need be, and zeros where it was of other rows.

        Where the rows were evicted since the index was read, it is memory that nobody reads.
        """
        key, whose = (name, member, slot), _identity(member, slot)
        try:
            mapped = self.get(name, member, slot)
        except EvictedError:
            mapped = InMemory(np.zeros(self._bytes(name) + _WHOSE, np.uint8))
            self._held[key] = _Held(mapped, whose)
        if isinstance(mapped, Zeros):
            file, size = self._file(name, member, slot), mapped.size
            self.files.make_directory(os.path.dirname(file))
            mapped = self.files.create_mapped(file, size)
            _whose(mapped, size)[:] = whose
            self._empty.discard(key)
            self._held[key] = _Held(mapped, whose)
        if not isinstance(mapped, InMemory):
            self._written.add(key)
        return mapped

    def array(self, name: str, mapped: Map | Zeros | InMemory) -> npt.NDArray[Any]:
        """View the values of a slot, (segment_rows, ...)."""
        column = self.what.columns[name]
        shape = (self._rows, *column.shape)
        values: npt.NDArray[np.uint8] = mapped.array(np.uint8, (self._bytes(name) + _WHOSE,))
        return values[: self._rows * column.row_bytes].view(column.np_dtype).reshape(shape)

    def of_others(self, member: Member) -> list[Key]:
        """Forget, and return, what was of rows of a store that are gone."""
        moved = member.take_moved()
        if moved is None:
            stale = [key for key in self._held if key[1] is member]
        else:
            keys = [(name, member, slot) for slot in moved for name in self.what.columns]
            stale = [key for key in keys if key in self._held and self._held[key].whose != _identity(member, key[2])]
        self._retire(stale)
        return stale

    def _retire(self, keys: Iterable[Key]) -> None:
        """Serve these from their maps no more; plans that have their addresses can go on."""
        known = [key for key in keys if key in self._held]
        if not known:
            return
        with Uninterrupted():
            self.epoch.retired, self.epoch.following = tuple(self._held.pop(key).mapped for key in known), Epoch()
            self.epoch = self.epoch.following
            self._empty.difference_update(known)
            self._written.difference_update(known)

    def close(self) -> None:
        """Unmap all files, those that plans read once these are done."""
        self._retire(list(self._held))

    def to_sync(self) -> list[str]:
        """Return what to sync for all that was written to be on the disk: files, then directories.

        What is written here stays among it: that may be written to again at any time, and a sync that failed must fail again.
        """
        files = self._left | {self._file(*key) for key in self._written}
        above = {str(path) for file in files for path in PurePath(file).parents}
        return [*sorted(files), *sorted(above)]

    def note_synced(self, names: Iterable[str]) -> None:
        """Note that files are on the disk, to which nobody writes any more where it was a learner before this one that did."""
        self._left.difference_update(names)


def _bytes_of(column: Column, rows: int) -> int:
    """Return the bytes of a segment's values, filled up to 8."""
    return -(-rows * column.row_bytes // 8) * 8


def drop_lost_values(root: Files, store: Store) -> None:
    """Drop what was written to rows of a writer's store that it lost, before others get their ids; on the disk, too.

    The store's rows are those that are left.
    """
    if not root.exists(f"{COLUMNS}/{_WHAT}"):
        return
    files, writer, length = root.below(COLUMNS), store.root.name, store.table.column("length")
    newest = {int(slots[-1]) for slots, _ in store.segments() if len(slots)}
    for name, column in Columns(root, store.layout).what.columns.items():
        directory, size = f"{name}/{writer}", _bytes_of(column, store.layout.segment_rows) + _WHOSE
        for file in files.names(directory) if files.exists(directory) else []:
            path, number = f"{directory}/{file}", _FILE.fullmatch(file)
            slot = int(number[1]) if number else -1
            rows = int(length[slot]) if 0 <= slot < len(length) else 0
            mapped = None
            with contextlib.suppress(CorruptionError):  # it is cut short
                mapped = files.map(path, size, writable=True) if rows else None
            if mapped is None or tuple(_whose(mapped, size).tolist()) != _whose_rows(store, *store.table.identity(slot)):
                files.remove(path)
            elif slot in newest:
                mapped.array(np.uint8, (size,))[(rows - 1) * column.row_bytes : size - _WHOSE] = 0
                files.sync(path)
        if files.exists(directory):
            files.sync(directory)


def _identity(member: Member, slot: int) -> tuple[int, int]:
    """Return of which rows a file's values are, as the index has them."""
    return _whose_rows(member.store, *member.store.following.identity(slot))


def _whose_rows(store: Store, stream: int, first_row: int) -> tuple[int, int]:
    """Return which rows of a store a file's values are of: of which stream, and the first of them. Never zeros."""
    return (store.layout.salt & 0x7FFFFFFF) << 32 | stream + 1, first_row + 1


def _whose(mapped: Map, size: int) -> Int64:
    return mapped.array(np.uint8, (size,))[size - _WHOSE :].view(np.int64)
