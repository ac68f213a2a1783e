"""Columns that a learner writes: its own files, beside the stores of the writers, which nobody but these write to.

    _shared/columns/columns.json             which columns there are, and the names of tags
    _shared/columns/priority/actor-3/c.7     values of the rows of slot 7 of a writer's store; then whose rows those were

A writer uses a slot again for other rows. So every file ends with the stream and the first row that its values belong to: where
the slot holds others by now, they count as zeros.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, SchemaError
from diskbuffer.gathering import learner_lock
from diskbuffer.gathering.learner_lock import COLUMNS
from diskbuffer.gathering.members import Member
from diskbuffer.schema import Column, Schema
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.segments.mapped import Epoch, InMemory, Zeros
from diskbuffer.store.system.files import Files, Map
from diskbuffer.store.system.json_files import read_json

Int64 = npt.NDArray[np.int64]
_WHAT = "columns.json"
_WHOSE = 16  # bytes: the stream and the first row, plus one


class What(NamedTuple):
    """Which columns there are, the names of tags, and how many columns were removed so far."""

    columns: Mapping[str, Column]
    tags: tuple[str, ...]
    removals: int


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
        self._held: dict[tuple[str, Member, int], _Held] = {}
        self.epoch = Epoch()  # keeps maps that are given up as long as plans that read them
        self._zeros: dict[int, Zeros] = {}
        self._written: set[str] = set()
        self.look()

    def look(self) -> None:
        """Read which columns there are, if somebody else changed that."""
        try:
            stat = self.files.stat(_WHAT)
        except FileNotFoundError:
            return
        if (stat.st_ino, stat.st_mtime_ns) == self._seen:
            return
        try:
            found = read_json(self.files, _WHAT)
            schema = Schema.from_attributes({**self._recorded.to_attributes(), **found["columns"]})
            columns = {name: schema[name] for name in found["columns"] if name in schema.derived}
            self.what = What(columns, tuple(str(tag) for tag in found["tags"]), int(found["removals"]))
        except (SchemaError, ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{self.files.root / _WHAT} is damaged: {error}; remove it, and the columns with it") from error
        self._seen = stat.st_ino, stat.st_mtime_ns

    # Changing which there are

    def begin_writing(self) -> None:
        """Be the one learner that writes columns; a LockedError where another process is."""
        if self._lock >= 0:
            return
        self._lock = learner_lock.take(self._root)
        self.look()

    def end_writing(self) -> None:
        """Let another process write columns; twice is fine."""
        fd, self._lock = self._lock, -1
        if fd >= 0:
            learner_lock.release(self._root, fd)

    def forget_lock(self) -> None:
        """In a fork: leave the lock to the parent."""
        fd, self._lock = self._lock, -1
        if fd >= 0:
            os.close(fd)

    def change(self, what: What) -> None:
        """Have other columns, or tags, for good."""
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
        found = self._recorded
        for name, column in what.columns.items():
            found = found.with_derived(name, column)
        return found

    def remove(self, name: str) -> None:
        """Remove a column for good."""
        kept = {path: column for path, column in self.what.columns.items() if path != name}
        self.change(self.what._replace(columns=kept, removals=self.what.removals + 1))
        self._retire([key for key in self._held if key[0] == name])
        self._written = {file for file in self._written if not file.startswith(f"{name}/")}
        with contextlib.suppress(FileNotFoundError):
            self.files.remove_directory(name)

    # Values

    def file(self, name: str, member: Member, slot: int) -> str:
        """Name the file of a slot's values, from the directory with all stores on."""
        return f"{COLUMNS}/{self._file(name, member, slot)}"

    def _file(self, name: str, member: Member, slot: int) -> str:
        return f"{name}/{member.entry.name}/c.{slot}"

    def _bytes(self, name: str) -> int:
        return -(-self._rows * self.what.columns[name].row_bytes // 8) * 8

    def get(self, name: str, member: Member, slot: int) -> Map | Zeros | InMemory:
        """Return what has the values of a slot of a store, zeros where nothing was written."""
        whose = member.store.table.identity(slot)
        held = self._held.get((name, member, slot))
        if held is None or held.whose != whose:
            if held is not None:
                self._retire([(name, member, slot)])
            held = self._held[name, member, slot] = _Held(self._found(name, member, slot, whose), whose)
        return held.mapped

    def _found(self, name: str, member: Member, slot: int, whose: tuple[int, int]) -> Map | Zeros:
        size = self._bytes(name) + _WHOSE
        with contextlib.suppress(FileNotFoundError, CorruptionError):
            mapped = self.files.map(self._file(name, member, slot), size, writable=self._lock >= 0)
            if _whose(mapped, size).tolist() == [n + 1 for n in whose]:
                return mapped
        return self._zeros.setdefault(size, Zeros(size))

    def writable(self, name: str, member: Member, slot: int) -> Map | InMemory | Zeros:
        """Return the map of a slot, to be written to; its file is made if need be, and zeros where it was of other rows."""
        mapped = self.get(name, member, slot)
        if isinstance(mapped, Zeros):
            whose, file, size = member.store.table.identity(slot), self._file(name, member, slot), self._bytes(name) + _WHOSE
            self.files.make_directory(os.path.dirname(file))
            written = self.files.create_mapped(file, size)
            _whose(written, size)[:] = [n + 1 for n in whose]
            self._held[name, member, slot] = _Held(written, whose)
            mapped = written
        self._written.add(self._file(name, member, slot))
        return mapped

    def array(self, name: str, mapped: Map | Zeros | InMemory) -> npt.NDArray[Any]:
        """View the values of a slot, (segment_rows, ...)."""
        column = self.what.columns[name]
        shape = (self._rows, *column.shape)
        values: npt.NDArray[np.uint8] = mapped.array(np.uint8, (self._bytes(name) + _WHOSE,))
        return values[: self._rows * column.row_bytes].view(column.np_dtype).reshape(shape)

    def of_others(self, members: Iterable[Member]) -> list[tuple[str, Member, int]]:
        """Forget, and return, what was of rows that are gone."""
        some = set(members)
        stale = [
            (name, member, slot)
            for (name, member, slot), held in self._held.items()
            if member in some and (not member.is_there or held.whose != member.store.table.identity(slot))
        ]
        self._retire(stale)
        return stale

    def _retire(self, keys: Iterable[tuple[str, Member, int]]) -> None:
        """Serve these from their maps no more; plans that have their addresses can go on."""
        retired = tuple([self._held.pop(key).mapped for key in keys])
        if retired:
            self.epoch.retired, self.epoch.following = retired, Epoch()
            self.epoch = self.epoch.following

    def sync(self) -> None:
        """Bring what was written to the disk."""
        written, self._written = self._written, set()
        self.files.sync_all(sorted(written | {os.path.dirname(file) for file in written}))


def _whose(mapped: Map, size: int) -> Int64:
    return mapped.array(np.uint8, (size,))[size - _WHOSE :].view(np.int64)
