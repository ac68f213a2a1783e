"""What is left of a damaged store of format 2, to be looked at: as a repair would find it, with nothing changed on the disk.

The manifest is what can be salvaged of it. Heads, table and tails that are missing or cut short count as zeros, as far as they
are gone: then segments and rows are found by checksums, as `diskbuffer check` finds them. Rows that do not match theirs are no
steps, nor are those of sealed files whose flags or rewards are damaged. All else is verified when it is read, as ever.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.index.index import Index
from diskbuffer.reading.light_reader import LightReader
from diskbuffer.reading.stored_index import read_rows
from diskbuffer.schema import FLAGS, TAG
from diskbuffer.storage.checking.control import salvaged_state
from diskbuffer.storage.checking.notes import Notes
from diskbuffer.storage.checking.numbers import Numbers, NumbersCheck
from diskbuffer.storage.checking.report import Report
from diskbuffer.storage.format.layout import CHECKSUMS, HEADS, MANIFEST, SEGMENTS, TAIL
from diskbuffer.storage.format.words import Entries
from diskbuffer.storage.recovery.inspection import inspect
from diskbuffer.storage.segments import Segments
from diskbuffer.storage.store import Store
from diskbuffer.store.segments.mapped import InMemory
from diskbuffer.store.system.files import Files, Map

T = TypeVar("T")
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_REPLACED = (SEGMENTS, HEADS, TAIL, CHECKSUMS)  # directories of files without which no store is opened


class DamagedReader(LightReader):
    """Read what is left of a store; see `LightReader`. What it has is as of when it was opened, whoever writes to it.

    Costs what listing episodes costs, and decoding what is not sealed.

    Raises
    ------
    CorruptionError
        Nothing tells what this store is.
    """

    def __init__(self, root: Path, frame_stack: int | None = None) -> None:
        self._have(Store(_Remains(root), writable=False))
        try:
            state, files = self.store.manifest.state, self.store.files
            boot = files.boot_id()
            power_lost = not state.session.closed and not (boot and state.session.boot == boot)
            notes = Notes(files, Report(root))
            numbers = NumbersCheck(self.store, notes, live=False, power_lost=power_lost).find()
            layout = self.store.layout
            until = layout.files(int(numbers.entries.segments.max(initial=-1)) + 1)
            self.store.maps.grow(state.first_file, until)  # an older manifest knows of fewer
            _hide_bad_rows(self.store, numbers)
            self.index = Index(layout.environments, layout.segment_rows, (frame_stack or layout.frame_stack) - 1, layout.lanes)
            segments = Segments.of(numbers.entries, numbers.ends, numbers.low)
            self.index.restore(*read_rows(segments, self.store.flags, layout.lanes, {}))
            self.index.drop_below(numbers.low)
        except BaseException:
            self.store.close()
            raise

    def refresh(self) -> None:
        """Do nothing: what is left stays as it is."""

    def retried(self, attempt: Callable[[], T]) -> T:
        """Return what an attempt returns, with the store's lock held; nothing changes that another one would see."""
        with self.store.lock:
            try:
                return attempt()
            except FileNotFoundError as error:
                raise CorruptionError(f"{self.store.root}: {error.filename} is missing; was it removed?") from error


class _Remains(Files):
    """A store's files, as if those without which it cannot be opened had been put in their places."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._manifest: npt.NDArray[np.uint8] | None = None
        self._table: list[str] = []
        state = salvaged_state(self)
        self._manifest = np.frombuffer(state.encode(), np.uint8).copy()
        self._table = [state.layout.table_file(number) for number in range(state.layout.table_files(state.numbers))]

    @contextlib.contextmanager
    def _in(self, name: str) -> Iterator[tuple[int, str]]:
        try:
            with super()._in(name) as found:
                yield found
        except CorruptionError as error:
            if isinstance(error.__cause__, NotADirectoryError):  # something else is in the place of a directory
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.root / name)) from error
            raise

    def exists(self, name: str) -> bool:
        return self._is_salvaged(name) or super().exists(name)

    def stat(self, name: str) -> Any:
        return super().stat("." if self._is_salvaged(name) else name)

    def _is_salvaged(self, name: str) -> bool:
        return name == MANIFEST and self._manifest is not None

    def names(self, name: str = ".") -> list[str]:
        found: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            found = super().names(name)
        return found if name != SEGMENTS else [*{*found, *(Path(table).name for table in self._table)}]

    def map(self, name: str, size: int, *, writable: bool, random: bool = False, last: int | None = None) -> Map:
        if name == MANIFEST and self._manifest is not None:
            return InMemory(self._manifest)
        try:
            return super().map(name, size, writable=writable, random=random, last=last)
        except (CorruptionError, FileNotFoundError):
            if size < 0 or name.split("/")[0] not in _REPLACED:
                raise
        found = np.zeros(size, np.uint8)
        with contextlib.suppress(OSError, CorruptionError):
            kept = np.frombuffer(self.read(name)[:size], np.uint8)
            found[: len(kept)] = kept
        return InMemory(found)


def _hide_bad_rows(store: Store, numbers: Numbers) -> None:
    """Have no row that is not as it was written be a step, and the row before each be the last of its episode."""
    entries, layout = numbers.entries, store.layout
    files = entries.segments // layout.lanes
    if TAG in layout.derived:
        for file in np.unique(files).tolist():
            _map_or_zeros(store, TAG, file)
    counts = np.minimum(numbers.ends - entries.firsts, layout.segment_rows)
    is_newest = np.diff(entries.environments, append=-1) != 0
    sealed = store.manifest.state.is_sealed(files)
    good: list[Bools] = [np.zeros(0, np.bool_)] * len(counts)
    for file in np.unique(files).tolist():
        mine = np.flatnonzero((files == file) & (counts > 0))
        if not len(mine):
            continue
        every = _verified(store, file, entries[mine], counts[mine], is_newest[mine], sealed=bool(sealed[mine].all()))
        for n, rows in zip(mine.tolist(), np.split(every, np.cumsum(counts[mine])[:-1]), strict=True):
            good[n] = rows
    hidden = dict[int, Bools]()
    for n in range(len(counts)):
        follows_bad = n + 1 < len(counts) and not is_newest[n] and len(good[n + 1]) > 0 and not good[n + 1][0]
        if good[n].all() and not follows_bad:
            continue
        lane, file = int(entries.segments[n] % layout.lanes), int(files[n])
        if file not in hidden:
            hidden[file] = _held_flag(store, "is_last", file)
        hidden[file][lane, : counts[n]] |= ~good[n] | np.append(~good[n][1:], follows_bad)


def _verified(store: Store, file: int, entries: Entries, counts: Int64, is_newest: Bools, *, sealed: bool) -> Bools:
    """Return which rows of a file's segments are as they were written, segment after segment; reads of others see zeros."""
    good = np.ones(int(counts.sum()), np.bool_)
    try:
        if not sealed:
            found = inspect(store, entries, counts)
            last = (np.cumsum(counts) - 1)[is_newest]
            found.step[last] = True  # nothing need have been done there
            good = found.obs & found.step
    except (CorruptionError, FileNotFoundError):
        good[:] = False
    for path in _needed(store):
        good &= _map_or_zeros(store, path, file)
    return good


def _map_or_zeros(store: Store, path: str, file: int) -> bool:
    """Map a file of a flat column, or have reads of it see zeros where it is damaged; return whether it is not."""
    try:
        store.maps.get(path, file)
    except (CorruptionError, FileNotFoundError):
        store.maps.hold(path, file, InMemory(np.zeros(store.layout.flat_bytes(path), np.uint8)))
        return False
    return True


def _held_flag(store: Store, path: str, file: int) -> Bools:
    """Have reads of a flag of a file see a copy of it in memory; return that."""
    copied = store.flags(path, file).copy()
    store.maps.hold(path, file, InMemory(copied.reshape(-1).view(np.uint8)))
    return copied


def _needed(store: Store) -> list[str]:
    """Return the columns that tell of episodes: where they begin and end, and how good they are."""
    return [*FLAGS, *(path for path in store.layout.schema.step if path.split("/")[0] == "reward")]
