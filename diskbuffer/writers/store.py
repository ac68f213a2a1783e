"""The stores of several writers, to be read as if they were one."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import ClosedError, CorruptionError, NotAStoreError, ReadOnlyError
from diskbuffer.index.multi_writer import IndexPart, MultiWriterIndex
from diskbuffer.index.named_values import Named, joined
from diskbuffer.reading.gather.store_tail import StoreTail
from diskbuffer.runtime import forks
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.schema.schema import TAG, Column, Schema
from diskbuffer.store.changes import Changeable
from diskbuffer.store.format.layout import GROUP, Layout
from diskbuffer.store.segments.mapped import Epoch, InMemory, Zeros
from diskbuffer.store.system.files import Files, Map
from diskbuffer.store.system.map_limit import refuse_too_many_stores
from diskbuffer.writers.columns import Columns, Key
from diskbuffer.writers.description import Description, read_description
from diskbuffer.writers.members import BLOCK, Member
from diskbuffer.writers.watching import changed

Int64 = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class MultiWriterLayout(Layout):
    """What all stores have, with as many streams as there is room for."""

    envs: int = 0  # streams that writers have

    @property
    def n_envs(self) -> int:
        """Streams that environments of writers write."""
        return self.envs


class MultiWriterStore(Changeable):
    """Show the stores of several writers as one `Store` that is read.

    Slots are numbered through, a block of them at a time, so that they keep their numbers when stores grow, and others come.

    Parameters
    ----------
    files : Files
        The directory with all stores.
    of_mark : bool
        Whether they are a mark, to which nothing is written.

    Attributes
    ----------
    all_files : Files
        The directory with all stores.
    members : list of Member
        In the order of their numbers, which they keep.
    layout : Layout
    lock : threading.RLock
    maps : MultiWriterMaps
    tails : list of StoreTail
        What is each store's own.
    """

    writable = False

    @property
    def metadata(self) -> list[Mapping[str, Any] | None]:
        """The user's metadata, of each writer's store that is there."""
        return [member.store.layout.metadata for member in self.members if member.is_there]

    def __init__(self, files: Files, *, of_mark: bool = False) -> None:
        self.all_files, self.root, self._of_mark = files, files.root, of_mark
        super().__init__()
        self.closed = False
        self.members: list[Member] = []
        self._blocks: list[Member] = []  # whose each block of slots is
        self._description = read_description(self.all_files)
        streams = sum(entry.streams for entry in self._description.writers)
        common = dataclasses.replace(self._description.common, streams=max(1, streams))
        refuse_too_many_stores(self.root, common, len(self._description.writers))
        self.columns = Columns(self.all_files, self._description.common)
        self._described: tuple[int, int] | None = None
        self._index: MultiWriterIndex | None = None  # as it was read last
        self.layout = _layout(self._description, self.columns)
        self._describe()
        self.maps = MultiWriterMaps(self)
        self.verification = _Verification(self)
        forks.pause(self)

    def _describe(self) -> None:
        """Read the description, if it is another than it was."""
        self.all_files.require_place()
        stat = self.all_files.stat(GROUP)
        if (stat.st_ino, stat.st_mtime_ns) == self._described:
            return
        self._description = description = read_description(self.all_files)
        self._described = stat.st_ino, stat.st_mtime_ns
        for entry in description.writers[len(self.members) :]:
            self.members.append(Member(self.all_files, entry, len(self.members)))
        for member, entry in zip(self.members, description.writers, strict=False):
            member.entry = dataclasses.replace(member.entry, removed=entry.removed)
        if [member.entry for member in self.members] != list(description.writers):
            raise NotAStoreError(f"{self.root} is not the directory any more that was opened; open it again")
        self._lay_out()

    def _lay_out(self) -> None:
        """Combine the layout of the writers' description and of the learner's columns."""
        layout = _layout(self._description, self.columns)
        if layout.schema == self.layout.schema:  # the same object, by which readers know that columns are the same
            layout = dataclasses.replace(layout, schema=self.layout.schema)
        else:
            self.maps.take_columns(layout.schema)
        self.layout = layout

    def read(self, context: int) -> MultiWriterIndex:
        """See which writers there are by now, and what they have added and evicted; the lock must be held."""
        self.check_open()
        self._describe()
        before = self.columns.what
        stale = self.columns.look()
        if self.columns.what is not before:
            self._lay_out()
        self.maps.forget_columns(stale)
        look = self.members if self._index is None or self._index.context != context else self._to_look_at()
        for member in look:
            member.look(self._description, context)
        for member in look:
            if member.is_there:
                self._number(member)
        self.maps.look(look)
        if self._index is None or look:
            self._index = self._combined(context, look)
        return self._index

    def values_of_episodes(self, ids: Int64) -> dict[str, Named]:
        """Return the values of writers' episodes by name; where a name's are of different kinds, see `joined`."""
        with self.lock:
            streams, positions = ids % self.layout.streams, ids // self.layout.streams
            parts = []
            for member in self.members:
                own = streams - member.entry.first_stream
                places = np.flatnonzero((own >= 0) & (own < member.entry.streams) if member.is_there else [])
                if len(places):
                    its = positions[places] * member.entry.streams + own[places]
                    parts.append((places, member.store.values_of_episodes(its)))
            return joined(parts, len(ids))

    def check_open(self) -> None:
        """Raise a ClosedError where it was closed."""
        if self.closed:
            raise ClosedError(f"{self.root} was closed; open it again")

    def refuse_to_write_elsewhere(self) -> None:
        """Raise a NotAStoreError where the directory is not at its path any more."""
        self.all_files.require_place()

    def forget_rows(self) -> None:
        """Treat what was seen, and what is mapped, as unknown until the next `read`."""
        self._index = None
        for member in self.members:
            member.forget_rows()
        self.maps.forget()

    def _to_look_at(self) -> list[Member]:
        """Return those members of which something may have become."""
        look, watched = list[Member](), list[Member]()
        for member in self.members:
            if member.may_have_changed():
                look.append(member)
            elif member.watched is not None:
                watched.append(member)
        which = changed([member.watched for member in watched if member.watched is not None])
        return look + [watched[n] for n in np.flatnonzero(which).tolist()]

    def _combined(self, context: int, look: Sequence[Member]) -> MultiWriterIndex:
        parts = [IndexPart(member.index, member.entry.first_stream, member.number, member.numbers) for member in look]
        nothing = StoreTail(dict.fromkeys(self.layout.packed, 0), 8, 0)
        self.tails = [member.tail or nothing for member in self.members] or [nothing]
        return MultiWriterIndex(self.layout.streams, self.layout.segment_rows, context, parts, self._index)

    def _number(self, member: Member) -> None:
        """Give a store's new slots numbers."""
        slots = member.store.maps.sources.shape[1]
        while len(member.numbers) < slots:
            first = len(self._blocks) * BLOCK
            self._blocks.append(member)
            member.numbers = np.concatenate([member.numbers, np.arange(first, first + BLOCK)])

    def find(self, slot: int) -> tuple[Member, int]:
        """Return whose a slot is, and its own number there."""
        member = self._blocks[slot // BLOCK]
        return member, int(np.searchsorted(member.numbers, slot))

    @property
    def capacity(self) -> int | None:
        """Steps that all stores keep at least; None where one of them keeps all, or there is none yet."""
        each = [member.store.layout.capacity for member in self.members if member.is_there]
        return sum(n for n in each if n is not None) if each and None not in each else None

    @property
    def slots(self) -> int:
        """How many slots have numbers."""
        return len(self._blocks) * BLOCK

    def values(self, name: str, slot: int) -> npt.NDArray[Any]:
        """View one segment of a flat column, (segment_rows, ...), to read from it."""
        member, own = self.find(slot)
        if name in self.layout.derived:
            return self.columns.array(name, self.columns.get(name, member, own))
        return member.store.values(name, own)

    # The learner's columns

    @property
    def files(self) -> Files:
        """Where the learner's columns are."""
        return self.columns.files

    def begin_writing(self) -> bool:
        """Be the one process that writes columns; return whether it was not before: then the index must be read anew.

        A LockedError where another one is, a ReadOnlyError of a mark.
        """
        if self.columns.is_writing:
            return False
        if self._of_mark:
            raise ReadOnlyError(f"{self.root} is a mark, which stays as it is; open the directory without mark= to write columns")
        before = self.columns.what
        self.columns.begin_writing()
        if self.columns.what is not before:
            self._lay_out()
        self.maps.forget_every_column()
        return True

    def refuse_evicted(self, slots: Sequence[int] | Int64) -> None:
        """Raise an EvictedError where a slot does not hold the rows any more that the index has there."""
        some = np.array(slots, np.int64)
        blocks = some // BLOCK
        for block in np.unique(blocks).tolist():
            member = self._blocks[block]
            member.store.refuse_evicted(member.numbers.searchsorted(some[blocks == block]))

    def derived(self, name: str, slot: int) -> npt.NDArray[Any]:
        """View one segment of a derived column, (segment_rows, ...), to write to it."""
        self.refuse_closed()
        member, own = self.find(slot)
        mapped = self.columns.writable(name, member, own)
        self.maps.hold(name, slot, mapped)
        return self.columns.array(name, mapped)

    def noted_checksum(self, name: str, slot: int) -> None:
        """Return None: these files have no checksums."""

    def note_checksum(self, name: str, slot: int, crc: int | None = None) -> None:
        """Do nothing: these files have no checksums."""

    def add_column(self, name: str, column: Column) -> None:
        """Add a derived column, of zeros until something is written."""
        with self.writing():
            self.columns.add(name, column)
            self._lay_out()

    def remove_column(self, name: str) -> None:
        """Remove a derived column."""
        with self.writing():
            self.columns.remove(name)
            if name == TAG:
                self.columns.change(self.columns.what._replace(tags=()))
            self._lay_out()

    def add_tag(self, tag: str) -> int:
        """Return the number of a tag, from 1 on; of a new one the next."""
        with self.writing():
            if tag not in self.layout.tags:
                every = (*self.layout.tags, tag)
                self.columns.change(self.columns.what._replace(tags=every))
                self._lay_out()
            return self.layout.tags.index(tag) + 1

    def sync(self) -> None:
        """Sync the columns to the disk. The lock must not be held: it is taken for microseconds, to see what was written."""
        with self.lock:
            names = self.columns.to_sync()
        self.columns.files.sync_all(names)
        with self.lock:
            self.columns.note_synced(names)

    def disk_bytes(self) -> int:
        """Return the bytes that all stores, columns and marks take on the disk: holes not counted, and what they share once."""
        sizes = {(status.st_dev, status.st_ino): status.st_blocks * 512 for _, status in self.all_files.walk()}
        return sum(sizes.values())

    def close(self) -> None:
        """Release the lock for writing columns, and unmap all files, as `Store.close` does."""
        with self.lock:
            self.closed = True
            self.begin_closing()
            self.columns.end_writing()
            for member in self.members:
                member.close()
            self.columns.close()
            self.maps.forget()

    def before_fork(self) -> None:
        """Do nothing: each store does itself what is due."""

    def after_fork(self) -> None:
        """Make a new lock in the child."""
        self.lock = threading.RLock()
        self.columns.forget_lock()


def _layout(description: Description, columns: Columns) -> MultiWriterLayout:
    fields = {field.name: getattr(description.common, field.name) for field in dataclasses.fields(Layout)}
    what = columns.what
    fields |= {"schema": columns.schema(what), "tags": what.tags, "removals": what.removals}
    return MultiWriterLayout(**fields, envs=sum(entry.streams for entry in description.writers))


class _Verification:
    """Names rows in errors."""

    def __init__(self, store: MultiWriterStore) -> None:
        self._store = store

    def describe_rows(self, path: str, slot: int, stream: int, first: int, last: int) -> str:
        """Name rows of a store's own stream in a column, and the file in which they are."""
        member, own = self._store.find(slot)
        return member.store.verification.describe_rows(path, own, stream, first, last)


class MultiWriterMaps:
    """What is mapped of all stores, as `Maps` has it of one.

    Attributes
    ----------
    sources : (columns, slots, 2) int64
        A copy of what the stores' own maps have: taken where something was mapped, and where anything was retired.
    """

    def __init__(self, store: MultiWriterStore) -> None:
        self._store = store
        self._paths = tuple(store.layout.schema)
        self.sources: Int64 = np.zeros((len(self._paths), 0, 2), np.int64)

    def take_columns(self, schema: Schema) -> None:
        """Hold the columns of a schema, and no others."""
        held = dict(zip(self._paths, self.sources, strict=True))
        nothing = np.zeros(self.sources.shape[1:], np.int64)
        sources = np.stack([held.get(path, nothing) for path in schema])
        with Uninterrupted():
            self._paths, self.sources = tuple(schema), sources

    def hold(self, path: str, slot: int, mapped: Map | Zeros | InMemory) -> None:
        """Serve reads of a slot in a learner's column from a map."""
        self.sources[self._paths.index(path), slot] = mapped.address, mapped.size

    @property
    def epoch(self) -> tuple[Epoch, ...]:
        """Keep what is mapped now as long as this is held."""
        epochs = [member.store.maps.epoch for member in self._store.members if member.is_there]
        return (self._store.columns.epoch, *epochs)

    def look(self, members: Sequence[Member]) -> None:
        """Follow what the stores' own maps have; of stores that are gone, nothing."""
        more = self._store.slots - self.sources.shape[1]
        if more:
            self.sources = np.concatenate([self.sources, np.zeros((len(self.sources), more, 2), np.int64)], axis=1)
        for member in members:
            if not member.is_there:
                self.sources[:, member.numbers] = 0
        changed = [member for member in members if not member.is_there or member.has_changed_maps()]
        for member in changed:
            if member.is_there:
                self._copy(member)
        for member in members:
            self.forget_columns(self._store.columns.of_others(member))

    def forget_columns(self, keys: Iterable[Key]) -> None:
        """Look up slots of a learner's columns anew at the next read."""
        for path, member, slot in keys:
            if path in self._paths:
                self.sources[self._paths.index(path), member.numbers[slot]] = 0

    def forget_every_column(self) -> None:
        """Look up the learner's columns anew at the next read."""
        for path in self._store.layout.derived:
            self.sources[self._paths.index(path)] = 0

    def _copy(self, member: Member) -> None:
        maps, order = member.store.maps, list(member.store.layout.schema)
        recorded = np.array([n for n, path in enumerate(self._paths) if path in self._store.layout.schema.recorded.columns])
        theirs = [order.index(self._paths[n]) for n in recorded.tolist()]
        self.sources[np.ix_(recorded, member.numbers[: maps.sources.shape[1]])] = maps.sources[theirs]

    def forget(self) -> None:
        """Look up everything anew in the stores' own maps."""
        self.sources[:] = 0

    def ensure(self, slots: Iterable[int], paths: Iterable[str] | None = None) -> None:
        """Map slots in some columns, or in all, where they are not."""
        self._store.check_open()
        try:
            self._ensure(slots, self._paths if paths is None else tuple(paths))
        except BaseException:  # what has taken the place of other maps by then is not in ours
            with Uninterrupted():
                self.forget()
            raise

    def _ensure(self, slots: Iterable[int], paths: tuple[str, ...]) -> None:
        by_member: dict[Member, list[int]] = {}
        for slot in slots:
            member, own = self._store.find(slot)
            by_member.setdefault(member, []).append(own)
        derived = self._store.layout.derived
        recorded = [path for path in paths if path not in derived]
        for member, own_slots in by_member.items():
            store = member.store
            try:
                store.maps.ensure(own_slots, recorded)
            except (NotAStoreError, CorruptionError) as error:
                if store.files.is_in_place():
                    raise
                raise member.removed() from error
            self._copy(member)
            for path in derived.intersection(paths):
                for own in own_slots:
                    self.hold(path, int(member.numbers[own]), self._store.columns.get(path, member, own))
