"""Checking every structure and every checksum of a store, and repairing what can be repaired."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskbuffer.bars import bar
from diskbuffer.errors import CorruptionError
from diskbuffer.store import directory, recovery
from diskbuffer.store import repair as repairing
from diskbuffer.store.checksums import OBS, STEP, covered
from diskbuffer.store.inspection import Inspected
from diskbuffer.store.lock import is_held
from diskbuffer.store.segments import NEVER
from diskbuffer.store.state import Fate, State
from diskbuffer.store.store import Store

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it was written.

    Attributes
    ----------
    path : Path
        The file, or the store.
    what : str
        What is wrong, and what can be saved.
    column : str, optional
        Whose file it is.
    steps : (int, int), optional
        The first and the last step that it may concern, as in a batch's ``steps``; both of one environment.
    """

    path: Path
    what: str
    column: str | None = None
    steps: tuple[int, int] | None = None

    def __str__(self) -> str:
        """Return it in a line."""
        where = "" if self.column is None else f", column {self.column!r}"
        return f"{self.path}{where}{'' if self.steps is None else f', steps {self.steps[0]} to {self.steps[1]}'}: {self.what}"


@dataclass
class Report:
    """What a check found.

    Attributes
    ----------
    problems : list of Problem
        Before anything was repaired.
    repaired : bool
        Whether it was asked to repair; then what is there now is whole.
    rows, dropped : int
        Rows that were looked at, and those that repair took out.
    """

    path: Path
    problems: list[Problem] = field(default_factory=list)
    repaired: bool = False
    rows: int = 0
    dropped: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        """Return it for people to read."""
        lines = [str(problem) for problem in self.problems]
        found = f"{len(lines)} problem{'' if len(lines) == 1 else 's'}" if lines else "everything is as it was written"
        done = f"; repaired: {self.dropped:,} rows were dropped" if self.repaired and lines else ""
        return "\n".join([*lines, f"{self.path}: {self.rows:,} rows checked, {found}{done}"])


def check(path: str | os.PathLike[str], repair: bool = False, progress: bool = True) -> Report:
    """Verify every structure and every checksum of a store, and decode every chunk.

    Without `repair` nothing is changed, and a writer may be at work beside: what he has not sealed yet is then left out, as only
    he knows it.

    With `repair` the store must not be open for writing. What cannot be saved is dropped, and nothing else: steps that lie in a
    damaged chunk, or whose row is damaged in some column; the rest of their episode stays, as one that was cut off. Of a file
    that is missing or another, these are the steps of its segment. A column that was written later (`ReplayBuffer.write`) loses
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
        It should be repaired, and is open for writing elsewhere.

    Notes
    -----
    Reads the whole store: some 15 s for a million 84x84 frames.
    """
    root = Path(path).absolute()
    report = Report(root, repaired=repair)
    if damage := directory.damaged_group(root):
        report.problems.append(Problem(root / "zarr.json", damage))
        if not repair:
            return report
        directory.restore_group(root)
    store = Store(root, writable=repair, recover=False)
    try:
        _Check(store, report).run(progress)
    finally:
        store.unlock()
    return report


class _Check:
    def __init__(self, store: Store, report: Report) -> None:
        self._store, self._report, self._layout, self._table = store, report, store.layout, store.table
        self._repair = store.writable
        self._live = not store.writable and is_held(store.root)
        self._made: set[int] = set()  # slots of segments that were missing

    def run(self, progress: bool) -> None:
        store, table = self._store, self._table
        state = State.read(store.files)
        fate = Fate.LOST_POWER if state is None else state.fate(store.files, self._layout.streams)
        if state is None:
            self._note(store.root, "how it was left is not known; what checksums vouch for is kept")
        for path in [] if self._repair else directory.strange_metadata(store.root, self._layout, table.slots):
            self._note(
                store.root / path / "zarr.json", "is not what it should be; only other Zarr tools read it. Opening mends it"
            )
        if fate is Fate.LOST_POWER and not self._live:
            kept = recovery.find_what_counts(store, (-1,) * self._layout.streams if state is None else state.synced)
            if self._repair:
                recovery.keep(store, kept)
            else:
                self._check_segments(list(kept), progress, settled=False)
                return
        self._find_lost_entries()
        self._check_segments(self._by_stream(), progress, settled=fate is Fate.CLOSED)
        if self._repair:
            self._finish()

    # The segment table

    def _find_lost_entries(self) -> None:
        """Look at slots whose entry is damaged: their rows tell which they are, and how many."""
        store, table = self._store, self._table
        for slot in np.flatnonzero(table.used()[1]).tolist():
            candidates = dict.fromkeys([table.identity(slot), *self._missing()])
            found = ((who, self._rows_there(slot, who)) for who in candidates)
            who, there = next((pair for pair in found if pair[1]), ((0, 0), 0))
            what = f"its {there} rows are there, and repair finds them" if there else "nothing of its rows can be found"
            self._note(store.root / "_segments", f"the entry of slot {slot} is damaged; {what}")
            if self._repair:
                if there and who != table.identity(slot):
                    table.allot(slot, *who)
                table.set_length(slot, there)

    def _missing(self) -> list[tuple[int, int]]:
        """Return (stream, first row) of segments that are missing between others, before the first and behind the last."""
        rows, found = self._layout.segment_rows, []
        for stream, slots in enumerate(self._used_slots()):
            there = {self._table.get("first_row", slot) for slot in slots}
            begin, end = (min(there) - rows, max(there) + rows) if there else (0, 0)
            found += [(stream, first) for first in range(max(0, begin), end + 1, rows) if first not in there]
        return found

    def _rows_there(self, slot: int, who: tuple[int, int]) -> int:
        """Return how many rows a slot has, from the first on, if they are those."""
        stream, first = who
        if not (0 <= stream < self._layout.streams and first >= 0 and first % self._layout.segment_rows == 0):
            return 0
        found = Inspected(self._store, slot, self._layout.segment_rows, decode=True, identity=who)
        obs = found.vouched(OBS)
        n = int(np.append(obs & found.vouched(STEP), False).argmin())
        return n + 1 if n < len(obs) and obs[n] else n

    def _used_slots(self) -> list[list[int]]:
        length, _ = self._table.used()
        stream, first = self._table.column("stream"), self._table.column("first_row")
        found = []
        for s in range(self._layout.streams):
            mine = np.flatnonzero((length > 0) & (stream == s) & (first % self._layout.segment_rows == 0) & (first >= 0))
            found.append(mine[np.argsort(first[mine], kind="stable")].tolist())
        return found

    def _by_stream(self) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Return the slots of each stream and their lengths, without gaps: what is missing is noted, and made up by a repair."""
        found, rows = [], self._layout.segment_rows
        for stream, slots in enumerate(self._used_slots()):
            whole: list[int] = []
            for slot in slots:
                first = self._table.get("first_row", slot)
                expected = self._table.get("first_row", whole[-1]) + rows if whole else first
                if first < expected:
                    self._note(
                        self._store.root / "_segments",
                        f"slot {slot} has rows {first} and following of stream {stream}, as another",
                    )
                    if self._repair:
                        self._table.set_length(slot, 0)
                    continue
                for missing in range(expected, first, rows):
                    self._note_rows(self._store.root / "_segments", stream, missing, missing + rows - 1, "the segment is missing")
                    self._report.dropped += rows
                    if self._repair:
                        whole.append(repairing.make_blank(self._store, stream, missing))
                        self._made.add(whole[-1])
                whole.append(slot)
            for slot in whole[:-1]:
                if self._table.length(slot) < rows and self._repair:
                    self._table.set_length(slot, rows)  # its rows are looked at like all others
            lengths = [self._table.length(slot) for slot in whole]
            found.append((np.array(whole, np.int64), np.array(lengths, np.int64)))
        return found

    # Segments

    def _check_segments(
        self, streams: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]], progress: bool, *, settled: bool
    ) -> None:
        total = sum(int(lengths.sum()) for _, lengths in streams)
        with bar(total, 0, progress, " rows") as shown:
            for slots, lengths in streams:
                bad_first = False  # whether the segment behind this one begins with a row that is bad
                for n in reversed(range(len(slots))):
                    slot, length, newest = int(slots[n]), int(lengths[n]), n == len(slots) - 1
                    bad_first = self._check_segment(slot, length, newest and not settled, bad_first)
                    self._report.rows += length
                    shown.update(length)
                if len(slots):
                    self._check_before(int(slots[0]))

    def _check_segment(self, slot: int, length: int, unsettled: bool, bad_behind: bool) -> bool:
        """Check a segment; return whether its first row is bad."""
        store, sealed = self._store, self._store.is_sealed(slot)
        if slot in self._made:
            return True
        if self._live and not sealed:
            return False
        identity = self._table.identity(slot)
        found = Inspected(store, slot, length, decode=True)
        problems = list(self._problems_of_files(found, sealed))
        bad = ~found.vouched(OBS) | ~found.vouched(STEP)
        if unsettled:
            bad[-1] = not found.vouched(OBS)[-1]
        if self._live and self._table.identity(slot) != identity:
            return False  # it was evicted meanwhile
        self._report.problems += problems
        if not problems:
            for begin, end in _ranges(bad):
                self._note_row_words(found, begin, end)
        self._check_derived(slot, length)
        self._report.dropped += int(bad.sum())
        if self._repair and (bad.any() or problems or bad_behind):
            repairing.blank(store, found, bad, bad_behind)
        return bool(bad[0])

    def _problems_of_files(self, found: Inspected, sealed: bool) -> Iterator[Problem]:
        store, layout = self._store, self._layout
        for path in layout.schema.recorded:
            file = store.root / layout.data_file(path, found.slot)
            if path in found.damage:
                yield self._problem(file, found.stream, found.first, found.first + found.length - 1, found.damage[path], path)
                continue
            rows = layout.chunks_of.get(path, 0)
            for chunk, what in found.bad_chunks.get(path, {}).items():
                first = found.first + chunk * rows
                yield self._problem(file, found.stream, first, first + rows - 1, f"chunk {chunk}: {what}", path)
            if sealed and not found.bad_chunks.get(path):
                try:
                    store.verify_file(path, found.slot)
                except CorruptionError:
                    bad = ~found.vouched(OBS) | ~found.vouched(STEP)
                    first, last = _extent(bad) if bad.any() else (0, found.length - 1)
                    what = "the checksum does not match" + ("" if bad.any() else "; all rows are as they were written, though")
                    yield self._problem(file, found.stream, found.first + first, found.first + last, what, path)

    def _note_row_words(self, found: Inspected, begin: int, end: int) -> None:
        columns = [path for word in (OBS, STEP) for path in covered(self._layout.schema, word)]
        self._note_rows(
            self._store.root / self._layout.data_file("row_checksum", found.slot),
            found.stream,
            found.first + begin,
            found.first + end,
            f"rows are not as they were written, in one of {', '.join(columns)}, or in their checksums",
        )

    def _check_derived(self, slot: int, length: int) -> None:
        store, (stream, first) = self._store, self._table.identity(slot)
        for path in self._layout.derived:
            file = store.root / self._layout.data_file(path, slot)
            if self._table.checksum(path, slot) == NEVER and not file.exists():
                continue
            try:
                store.verify_file(path, slot)
            except CorruptionError:
                what = "the checksum does not match, or the file is missing; repair drops the values, not the steps"
                self._report.problems.append(self._problem(file, stream, first, first + length - 1, what, path))
                if self._repair:
                    store.maps.retire(slot, (path,))
                    store.files.remove(self._layout.data_file(path, slot))
                    self._table.set_checksum(path, slot, NEVER)

    def _check_before(self, oldest: int) -> None:
        first = self._table.get("first_row", oldest)
        if first > 0 and self._table.before(oldest) is None:
            self._note(self._store.root / "_segments", f"how many steps came before slot {oldest} is not known; repair guesses")
            if self._repair:
                self._table.note_before(oldest, first, first)

    # Repair and report

    def _finish(self) -> None:
        """Bring what was repaired to the disk, and leave the store as a close does."""
        store = self._store
        recovery.settle_newest(store)
        for slots, _ in store.segments():
            for slot in slots.tolist():
                if not store.is_sealed(slot):
                    store.sync_slot(slot)
        store.free = np.flatnonzero(self._table.column("length") == 0).tolist()
        directory.remove_strays(store.files, self._layout, store.free)
        store.sync(recovery.heads(store))
        store.note_closed()

    def _problem(self, file: Path, stream: int, first: int, last: int, what: str, column: str | None = None) -> Problem:
        streams = self._layout.streams
        return Problem(file, what, column, (first * streams + stream, last * streams + stream))

    def _note_rows(self, file: Path, stream: int, first: int, last: int, what: str) -> None:
        self._report.problems.append(self._problem(file, stream, first, last, what))

    def _note(self, file: Path, what: str) -> None:
        self._report.problems.append(Problem(file, what))


def _ranges(bad: Bools) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of rows that are bad one after the other."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], bad, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True)


def _extent(bad: Bools) -> tuple[int, int]:
    where = np.flatnonzero(bad)
    return int(where[0]), int(where[-1])
