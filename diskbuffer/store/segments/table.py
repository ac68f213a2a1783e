"""The segment table: which rows lie in which slot. Memory-mapped Zarr arrays, by slot; each entry has a hash of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import ClosedError, CorruptionError
from diskbuffer.store.format.checksums import UInt64, are_length_words, fold, length_word
from diskbuffer.store.format.layout import CHECKSUMS, SEGMENTS, TABLE_SLOTS, Layout
from diskbuffer.store.system.files import Files, Map
from diskbuffer.store.system.overlay import Layers

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Any_ = npt.NDArray[Any]

_LENGTH, _BEFORE, _SEALED = 1, 2, 3  # what is hashed
COPIED = ". If it was copied while a buffer wrote to it, take a snapshot instead: `diskbuffer snapshot PATH TO`"
NEVER, UNCHECKED = 0, 1  # in place of the checksum of a derived column's file: there is none; it may have changed since


class SegmentTable:
    """Read and write the table.

    A row counts only where it is below its segment's length. Each group of numbers that are set together has one more, a hash of
    them and of the store, the slot and its rows, which is set after them: where it does not match, they count as not set.
    """

    def __init__(self, files: Files, layout: Layout, *, writable: bool) -> None:
        self._files, self._layers = files, Layers(files)
        self._writable = writable
        self._layout = layout
        self._entries = layout.table()
        self._parts: dict[str, list[tuple[Map, Any_]]] = {name: [] for name in self._entries}
        self.slots = 0

    def close(self) -> None:
        """Unmap all files, but for what somebody has a view of; nothing can be read any more."""
        self._parts = _Closed()

    # Files

    def grow(self, slots: int, *, create: bool = False) -> None:
        """Ensure room for `slots` slots. Chunk files of the table that are not there are made only with `create`."""
        for name, entry in self._entries.items():
            self._grow(self._parts[name], name, entry, slots, create)
        before, self.slots = self.slots, slots
        if create:
            self._free(before, slots)  # whatever was there

    def _free(self, first: int, until: int) -> None:
        for part, (_, lengths) in enumerate(self._parts[f"{SEGMENTS}/length"]):
            lengths[max(0, first - part * TABLE_SLOTS) : max(0, until - part * TABLE_SLOTS)] = 0

    def take_column(self, layout: Layout, path: str, *, create: bool = False) -> None:
        """Add a place for the checksums of one more column."""
        name, parts = f"{CHECKSUMS}/{path}", list[tuple[Map, Any_]]()
        self._grow(parts, name, layout.table()[name], self.slots, create)
        if create:  # whatever was there
            for _, checksums in parts:
                checksums[:] = NEVER
        self._layout, self._entries = layout, layout.table()
        known = self._parts | {name: parts}
        self._parts = {entry: known[entry] for entry in self._entries}  # without one that was begun, and failed

    def take_columns(self, layout: Layout) -> None:
        """Add places for the columns of a layout, and map the files anew of those that were written later."""
        anew = {f"{CHECKSUMS}/{path}" for path in layout.derived}
        entries, parts = layout.table(), dict[str, list[tuple[Map, Any_]]]()
        for name, entry in entries.items():
            parts[name] = [] if name in anew else self._parts[name]
            self._grow(parts[name], name, entry, self.slots, create=False)
        self._layout, self._entries, self._parts = layout, entries, parts

    def drop_column(self, layout: Layout) -> None:
        """Remove the places for checksums of columns that a layout lacks."""
        self._layout, self._entries = layout, layout.table()
        self._parts = {entry: self._parts[entry] for entry in self._entries}

    def _grow(
        self, parts: list[tuple[Map, Any_]], name: str, entry: tuple[str, tuple[int, ...]], slots: int, create: bool
    ) -> None:
        dtype, shape = entry
        while len(parts) * TABLE_SLOTS < slots:
            file, whole = table_file(name, len(parts), shape), (TABLE_SLOTS, *shape)
            size = int(np.prod(whole)) * np.dtype(dtype).itemsize
            if create and not self._files.exists(file):
                self._files.replace(file, size, b"")
            if create:  # or an attempt before this one has failed here
                self._files.sync(name)
            self._layers.copy_up(file)
            mapped = self._files.map(file, size, writable=self._writable)
            parts.append((mapped, mapped.array(dtype, whole)))

    def places(self, *names: str) -> list[tuple[int, Any_]]:
        """Return where some columns lie in memory, as far as there are slots: address, and a view, file by file."""
        views = []
        for name in names:
            for n, (mapped, part) in enumerate(self._parts[f"{SEGMENTS}/{name}"]):
                views.append((mapped.address, part[: self.slots - n * TABLE_SLOTS]))
        return views

    def names(self, only: str | None = None) -> Iterator[str]:
        """Yield the names of all files, or of one column's, for syncing."""
        for name, parts in self._parts.items() if only is None else [(only, self._parts[only])]:
            yield from (table_file(name, i, self._entries[name][1]) for i in range(len(parts)))

    def contents(self) -> dict[str, Any_]:
        """Return a copy of every file, by name."""
        return dict(zip(self.names(), (part.copy() for parts in self._parts.values() for _, part in parts), strict=True))

    # Entries

    def get(self, name: str, slot: int) -> int:
        """Return one number of the table, whether it matches its hash or not."""
        return int(self._at(f"{SEGMENTS}/{name}", slot)[slot % TABLE_SLOTS])

    def identity(self, slot: int) -> tuple[int, int]:
        """Return whose rows a slot holds: the stream, and the position of the first."""
        return self.get("stream", slot), self.get("first_row", slot)

    def length(self, slot: int) -> int:
        """Return how many rows a slot holds, as the table has it."""
        return int(self._at(f"{SEGMENTS}/length", slot)[slot % TABLE_SLOTS, 0])

    def no_reset(self, slot: int) -> bool:
        """Return whether no reset step can follow a slot's last row, which is its stream's newest."""
        return bool(self._at(f"{SEGMENTS}/length", slot)[slot % TABLE_SLOTS, 1] & 1)

    def set_length(self, slot: int, rows: int, *, no_reset: bool = False) -> None:
        """Set how many rows of a slot count, with one aligned store; 0 makes it free."""
        words = self._at(f"{SEGMENTS}/length", slot).view(np.int64)
        words[slot % TABLE_SLOTS, 0] = length_word(self.length_place(slot)[1], rows, no_reset)

    def length_place(self, slot: int) -> tuple[int, int]:
        """Return where a slot's length lies in memory, and what `length_word` needs to make another."""
        mapped, _ = self._parts[f"{SEGMENTS}/length"][slot // TABLE_SLOTS]
        return mapped.address + slot % TABLE_SLOTS * 8, int(self._fold(_LENGTH, slot, *self.identity(slot)).view(np.int64)[0])

    def identify(self, slot: int, stream: int, first_row: int) -> None:
        """Set whose rows a slot holds, and leave all else as it is."""
        self._set("stream", slot, stream)
        self._set("first_row", slot, first_row)

    def allot(self, slot: int, stream: int, first_row: int) -> None:
        """Give a free slot to rows of a stream."""
        self.identify(slot, stream, first_row)
        for name in ("first_step", "episode_start", "before", "sealed"):
            self._set(name, slot, 0)
        for path in self._layout.schema:
            self.set_checksum(path, slot, NEVER)

    def note_before(self, slot: int, first_step: int, episode_start: int) -> None:
        """Note how many steps the stream had before a slot's first row, and where the episode of that row starts."""
        self._set("first_step", slot, first_step)
        self._set("episode_start", slot, episode_start)
        self._set("before", slot, self._fold(_BEFORE, slot, *self.identity(slot), first_step, episode_start)[0])

    def before(self, slot: int) -> tuple[int, int] | None:
        """Return what `note_before` noted, if it matches its hash."""
        values = self.get("first_step", slot), self.get("episode_start", slot)
        matches = self._fold(_BEFORE, slot, *self.identity(slot), *values)[0] == self.get("before", slot)
        return values if matches else None

    def checksum(self, path: str, slot: int) -> int:
        """Return the checksum of a slot's file in a column."""
        return int(self._at(f"{CHECKSUMS}/{path}", slot)[slot % TABLE_SLOTS])

    def checksums(self, path: str) -> Any_:
        """Return a copy of the checksums of all slots' files in a column."""
        return self._whole(f"{CHECKSUMS}/{path}")

    def set_checksum(self, path: str, slot: int, value: int) -> None:
        """Set the checksum of a slot's file in a derived column, or what stands in its place."""
        self._at(f"{CHECKSUMS}/{path}", slot)[slot % TABLE_SLOTS] = value

    def note_sealed(self, slot: int, checksums: Mapping[str, int]) -> None:
        """Note that a slot is sealed, and the checksums of its files in all columns that were recorded."""
        for path, value in checksums.items():
            self.set_checksum(path, slot, value)
        self._set("sealed", slot, self._seals(np.array([slot]))[0])

    def unseal(self, slot: int) -> None:
        """Mark a slot as not sealed."""
        self._set("sealed", slot, 0)

    def is_sealed(self, slot: int) -> bool:
        """Return whether a slot is sealed: then its checksums count."""
        return bool(self.get("sealed", slot) == self._seals(np.array([slot]))[0])

    def sealed(self) -> Bools:
        """Return which slots are sealed, of all."""
        return np.asarray(self.column("sealed") == self._seals(np.arange(self.slots)))

    def _seals(self, slots: Int64) -> UInt64:
        fields = [self.column(name)[slots] for name in ("stream", "first_row")] if len(slots) > 1 else []
        fields = fields or [np.array([n]) for n in self.identity(int(slots[0]))] if len(slots) else fields
        for path in self._layout.schema.recorded:
            if len(slots) == 1:
                fields.append(np.array([self.checksum(path, int(slots[0]))]))
            else:
                fields.append(self._whole(f"{CHECKSUMS}/{path}")[slots])
        return self._fold(_SEALED, slots, *fields) | np.uint64(1)

    def _fold(self, what: int, slot: Any, *fields: Any) -> UInt64:
        return fold(self._layout.salt, what, slot, *fields)

    def _set(self, name: str, slot: int, value: Any) -> None:
        self._at(f"{SEGMENTS}/{name}", slot)[slot % TABLE_SLOTS] = value

    def _at(self, name: str, slot: int) -> Any_:
        return self._parts[name][slot // TABLE_SLOTS][1]

    def strange_notes(self, slot: int) -> dict[str, str]:
        """Return which hashes do not match what is there, and of what they are.

        A hash of 0 is of nothing, as nothing was noted yet.
        """
        words = {
            "before": ("the steps that came before", self.before(slot) is None),
            "sealed": ("the checksums of its files", not self.is_sealed(slot)),
        }
        return {name: what for name, (what, strange) in words.items() if strange and self.get(name, slot) != 0}

    def forget_note(self, name: str, slot: int) -> None:
        """Forget a hash, so that what it is of counts as not noted."""
        self._set(name, slot, 0)

    # All slots

    def column(self, name: str) -> Any_:
        """Return a copy of one column, for all slots; of lengths, the rows alone."""
        return _rows_alone(name, self._whole(f"{SEGMENTS}/{name}"))

    def entries(self, name: str, slots: Int64) -> Any_:
        """Return a copy of one column, for some slots; of lengths, the rows alone."""
        parts = self._parts[f"{SEGMENTS}/{name}"]
        return _rows_alone(name, parts[0][1][slots] if len(parts) == 1 else self._whole(f"{SEGMENTS}/{name}")[slots])

    def _whole(self, name: str) -> Any_:
        dtype, shape = self._entries[name]
        parts = [part for _, part in self._parts[name]]
        return np.concatenate([np.empty((0, *shape), dtype), *parts])[: self.slots]

    def used(self) -> tuple[Int64, Bools]:
        """Return the rows of each slot, and of which slots the entry is damaged."""
        words = self._whole(f"{SEGMENTS}/length").view(np.uint64)[:, 0]
        rows = (words & np.uint64(0xFFFFFFFF)).astype(np.int64)
        seeds = self._fold(_LENGTH, np.arange(self.slots), self.column("stream"), self.column("first_row"))
        damaged = ~are_length_words(seeds, words)
        return np.where(damaged, 0, rows), damaged

    def by_stream(self) -> list[Int64]:
        """Return the slots of each stream in the order of its rows; a CorruptionError where an entry is damaged, or rows miss."""
        stream, first = (self.column(name) for name in ("stream", "first_row"))
        length, damaged = self.used()
        rows, where = self._layout.segment_rows, f"{self._files.root}/{SEGMENTS}"
        if (self.column("length") < length).any():  # or what came in its place would be missing
            raise CorruptionError(f"{where}: a segment was evicted while the table was read")
        strange = (stream < 0) | (stream >= self._layout.streams) | (first < 0) | (first > 2**56) | (first % rows != 0)
        impossible = (length > rows) | ((length > 0) & strange)
        for slot in np.flatnonzero(damaged | impossible)[:1]:
            raise CorruptionError(
                f"{where}: the entry of slot {slot} is damaged: {self.length(int(slot))} rows from {first[slot]} of stream "
                f"{stream[slot]}; `diskbuffer check --repair` saves what can be saved{COPIED}"
            )
        used = np.flatnonzero(length > 0).astype(np.int64)
        used = used[np.lexsort((first[used], stream[used]))]
        same = np.diff(stream[used]) == 0
        for at in np.flatnonzero(same & ((np.diff(first[used]) != rows) | (length[used[:-1]] != rows)))[:1].tolist():
            begin = int(first[used[at]] + length[used[at]])
            raise CorruptionError(
                f"{where}: after slot {used[at]}, rows {begin} to {first[used[at + 1]] - 1} of stream {stream[used[at]]} are "
                f"missing, or there twice; `diskbuffer check --repair` goes on without them{COPIED}"
            )
        return np.split(used, np.searchsorted(stream[used], np.arange(1, self._layout.streams)))


def _rows_alone(name: str, values: Any_) -> Any_:
    return values[:, 0].astype(np.int64) if name == "length" else values


class _Closed(dict[str, list[tuple[Map, Any_]]]):
    """In place of what is mapped."""

    def __missing__(self, name: str) -> NoReturn:
        raise ClosedError(f"the store was closed, and {name} of its segment table can no longer be read; open it again")


def table_files(layout: Layout, slots: int) -> dict[str, int]:
    """Return the names of all files of the table, and their sizes."""
    files: dict[str, int] = {}
    for name, (dtype, shape) in layout.table().items():
        size = TABLE_SLOTS * int(np.prod(shape)) * np.dtype(dtype).itemsize
        files |= {table_file(name, part, shape): size for part in range(-(-slots // TABLE_SLOTS))}
    return files


def table_file(name: str, part: int, shape: tuple[int, ...]) -> str:
    """Name a file of the table."""
    return f"{name}/c.{part}" + ".0" * len(shape)
