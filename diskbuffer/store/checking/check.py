"""Checking every structure and every checksum of a store, and repairing what can be repaired."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.inputs import counted, local_path
from diskbuffer.runtime.progress import bar
from diskbuffer.schema import CHECKSUM
from diskbuffer.store import directory, last_writer
from diskbuffer.store.checking import repair as repairing
from diskbuffer.store.checking import salvage
from diskbuffer.store.copies import marks
from diskbuffer.store.format import zarr_metadata
from diskbuffer.store.format.checksums import OBS, STEP, covered
from diskbuffer.store.format.layout import SEGMENTS, Layout
from diskbuffer.store.last_writer import Fate, State, how_it_was_left
from diskbuffer.store.opening import open_store
from diskbuffer.store.recovery import power_loss, resume_writing
from diskbuffer.store.recovery.inspection import Inspected
from diskbuffer.store.segments.table import NEVER
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import WriterLock, is_held

Bools = npt.NDArray[np.bool_]
_Segments = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # slots of a stream in the order of its rows, and their lengths

_TRIES = 5
_LOOKS = 1000  # at the segment table, until a writer did not change it in between
_PATIENCE = 0.2  # seconds, in which a writer has written the metadata of all nodes


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
        found = counted(len(lines), "problem") if lines else "everything is as it was written"
        done = f"; repaired: {counted(self.dropped, 'row')} dropped" if self.repaired and lines else ""
        return "\n".join([*lines, f"{self.path}: {counted(self.rows, 'row')} checked, {found}{done}"])


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
    root = local_path(path)
    for _ in range(_TRIES):
        begun = _who_writes(root)
        report = _checked(root, repair, progress)
        if repair or report.ok or _who_writes(root) == begun:
            break  # or a writer has opened or closed it meanwhile, and what was seen is of before and after
    return report


def _who_writes(root: Path) -> tuple[bool, Any]:
    """Return whether there is a writer; if not, what the last one left."""
    files = Files(root)
    held = bool(is_held(files))
    return held, None if held else State.raw(files)


def _checked(root: Path, repair: bool, progress: bool) -> Report:
    report = Report(root, repaired=repair)
    framework = _Framework(root, report)
    if framework.check():
        store = open_store(root, writable=repair, recover=False)
        try:
            _Check(store, report, search=framework.made_anew, outdated=framework.outdated).run(progress)
        finally:
            store.unlock()
    return report


class _Framework:
    """The files without which a store cannot be opened, and those that only other tools read.

    Attributes
    ----------
    made_anew : bool
        Whether a file of the segment table was, so that rows may have been forgotten.
    outdated : bool
        Whether the segment table is older than the rows, or may be.
    """

    def __init__(self, root: Path, report: Report) -> None:
        self._root, self._files, self._report = root, Files(root), report
        self.made_anew = self.outdated = False

    def check(self) -> bool:
        """Note what is wrong, and mend it if that is asked for; return whether the store can be opened."""
        if not self._report.repaired:
            can_be_opened = self._check(None)
            if self._report.problems and is_held(self._files):  # the writer may be changing one file after the other
                found, self._report.problems = {str(problem) for problem in self._report.problems}, []
                time.sleep(_PATIENCE)
                can_be_opened = self._check(None)
                self._report.problems = [problem for problem in self._report.problems if str(problem) in found]
            return can_be_opened
        damage = directory.damaged_group(self._root)  # a NotAStoreError where there is none, before anything is written
        self._check_places([".", SEGMENTS, f"{SEGMENTS}/length"])
        self._files.make_directory(f"{SEGMENTS}/length")
        lock = WriterLock(self._files)
        try:
            return self._check(damage)
        finally:
            lock.release()

    def _check(self, damage: str | None) -> bool:
        repair = self._report.repaired
        if not repair and not self._check_places([SEGMENTS, f"{SEGMENTS}/length"]):
            return False
        damage = damage or directory.damaged_group(self._root)
        if damage is not None:
            self._note("zarr.json", damage)
            if not repair:
                return False
            directory.restore_group(self._root)
        if way_back := marks.unfinished(self._root):
            self._note(*way_back)
            if not repair:
                return False
            marks.finish_or_forget(self._files)
        layout, slots = directory.read_metadata(self._root)
        if not self._check_places(zarr_metadata.nodes(layout, slots)):
            return False
        if outdated := directory.outdated_group(self._root):
            self._note("zarr.json", outdated)
        for path in self._strange_metadata():
            if path != "." or directory.is_copied(self._root):  # else it is told above, or was left by a kill
                self._note(f"{path}/zarr.json", "is not what it should be; only other Zarr tools read it, and opening mends it")
        if not self._check_age(layout):
            return False
        if repair:
            layout, slots = directory.with_all_slots(self._root, layout, slots) if self.outdated else (layout, slots)
            layout = directory.grow(self._files, layout, slots)
        damaged = salvage.damaged_files(self._root, layout, slots)
        for name, (size, what) in damaged.items():
            self._note(name, f"{what}; repair makes it anew, and the rest cannot be looked at before")
            if repair:
                salvage.restore_file(self._root, name, size)
                self.made_anew = True
        return repair or not damaged

    def _strange_metadata(self) -> list[str]:
        """Return the nodes whose metadata is not what it should be; beside a writer, who changes them, those that stay so."""
        found: list[str] = []
        for n in range(_TRIES):
            layout, slots = directory.read_metadata(self._root)
            now = directory.strange_metadata(self._root, layout, slots)
            found = [path for path in now if n == 0 or path in found]
            if not found or not is_held(self._files):
                break
            time.sleep(_PATIENCE / _TRIES)
        return found

    def _check_places(self, paths: Iterable[str]) -> bool:
        """Note what is no directory where there must be one; return whether all are, or are now."""
        whole = True
        for path, what in salvage.no_directories(self._root, paths).items():
            self._note(path, what)
            whole = False
            if self._report.repaired:
                salvage.make_directory(self._root, path)
        if self._report.repaired:
            for path in paths:
                salvage.clear_places_of_files(self._root, path)
        return whole or self._report.repaired

    def _check_age(self, layout: Layout) -> bool:
        """Note files that were replaced by older ones of the same store; return whether the rest can be looked at."""
        if is_held(self._files) and not self._report.repaired:
            return True  # only a writer knows
        older = last_writer.older_note(self._files, layout.salt), directory.older_description(self._root, layout.salt)
        for name, what in zip((last_writer.NAME, "zarr.json"), older, strict=True):
            if what is not None:
                self._note(name, f"{what}; rows may be missing, and repair looks for them")
                self.outdated = True
        if last_writer.is_second_place_damaged(self._files, layout.salt):
            self._note(
                last_writer.REVISION,
                f"is missing or damaged, which tells whether {last_writer.NAME} is the newest; repair makes it anew",
            )
        return self._report.repaired or not self.outdated

    def _note(self, name: str, what: str) -> None:
        self._report.problems.append(Problem(self._root / name, what))


class _Check:
    def __init__(self, store: Store, report: Report, *, search: bool, outdated: bool) -> None:
        self._search = search  # for rows that the segment table does not know
        self._outdated = outdated  # whether the table is older than the rows
        self._store, self._report, self._layout, self._table = store, report, store.layout, store.table
        self._repair = store.writable
        self._live = not store.writable and bool(is_held(store.files))
        self._made: set[int] = set()  # slots of segments that were missing
        left = State.read(store.files, store.layout.salt)
        self._fate, self._synced = how_it_was_left(left, store.files, store.layout.streams)
        if outdated:
            self._fate = Fate.KILLED  # which is not known, and expects the least
        if left is None or left.synced != self._synced:
            self._note(
                store.root / f"{SEGMENTS}/length/state.json", "is missing or damaged, so how the store was left is not known"
            )

    def run(self, progress: bool) -> None:
        if self._outdated:
            self._find_rows_anew()
        if self._live:
            self._check_segments(self._streams(), progress, settled=False)
            return
        if self._fate is not Fate.LOST_POWER or self._rows_missing():
            self._find_lost_entries()
        if self._fate is Fate.LOST_POWER:
            kept = power_loss.find_what_counts(self._store, self._synced, damaged=True)
            if not self._repair:
                self._check_segments(list(kept), progress, settled=False)
                return
            power_loss.keep_rows(self._store, kept)
        self._check_segments(self._streams(), progress, settled=self._fate is Fate.CLOSED)
        if self._repair:
            self._finish()

    # The segment table

    def _find_rows_anew(self) -> None:
        """Have the table, which is older than the rows, say what the files of slots have."""
        store, table, reach, used = self._store, self._table, self._reach(), self._table.used()[0]
        for slot in range(table.slots):
            if not store.files.exists(self._layout.data_file(CHECKSUM, slot)):
                if not any(store.files.exists(self._layout.data_file(path, slot)) for path in self._layout.schema.recorded):
                    table.set_length(slot, 0)  # which was evicted since
                continue
            (stream, first), rows = salvage.find_rows(store, slot, reach)
            if rows and ((stream, first) != table.identity(slot) or rows > used[slot]):
                table.identify(slot, stream, first)
                table.set_length(slot, rows)

    def _find_lost_entries(self) -> None:
        """Look at slots whose entry is damaged, gone, or too short: their rows tell which they are, and how many."""
        reach, lost, length = self._reach(), self._rows_missing(), self._table.column("length")
        damaged = np.flatnonzero(self._table.used()[1]).tolist()
        found = [self._find_lost_entry(slot, reach, damaged=True) for slot in damaged]
        newest = [slots[-1] for slots in self._used_slots() if slots]
        for slot in [*np.flatnonzero(length == 0).tolist(), *newest] if lost or self._search else []:
            if slot not in damaged and self._store.files.exists(self._layout.data_file(CHECKSUM, slot)):
                found.append(self._find_lost_entry(slot, reach, damaged=False))
        if self._repair:
            lost = self._rows_missing()
        elif any(found):
            lost = []  # or a part of them, as a repair will tell
        for stream, first, last in lost:
            self._note_rows(self._store.root / SEGMENTS, stream, first, last, "rows that were on the disk are not there")
            self._report.dropped += last - first + 1

    def _find_lost_entry(self, slot: int, reach: npt.NDArray[np.int64], *, damaged: bool) -> bool:
        """Look for rows of a slot whose entry is `damaged`, or has too few; return whether there are some it does not have."""
        table, known = self._table, 0 if damaged else self._table.length(slot)
        (stream, first), rows = salvage.find_rows(self._store, slot, reach)
        if not damaged and rows <= known:
            return False  # such as files of a segment that no row came into yet
        what = f"its {rows} rows are there, and repair finds them" if rows else "nothing of its rows can be found"
        self._note(self._store.root / SEGMENTS, f"the entry of slot {slot} is damaged; {what}")
        if self._repair:
            if rows:
                table.identify(slot, stream, first)
            table.set_length(slot, rows)
        return rows > 0

    def _rows_missing(self) -> list[tuple[int, int, int]]:
        """Return rows that are not there, and were on the disk: (stream, first, last)."""
        found = []
        for stream, slots in enumerate(self._used_slots()):
            if self._fate is Fate.LOST_POWER and not power_loss.stays(self._store, stream):
                continue  # they may have been evicted
            head = self._table.get("first_row", slots[-1]) + self._table.length(slots[-1]) - 1 if slots else -1
            if head < self._synced[stream]:
                found.append((stream, head + 1, self._synced[stream]))
        return found

    def _reach(self) -> npt.NDArray[np.int64]:
        """Return the positions of the first and the last segment of each stream that a slot can have, (streams, 2)."""
        rows, found = self._layout.segment_rows, []
        for stream, slots in enumerate(self._used_slots()):
            there = [self._table.get("first_row", slot) for slot in slots]
            newest = max([0, self._synced[stream] // rows * rows, *there])
            around = rows * self._table.slots
            found.append((max(0, newest - around), newest + around))
        return np.array(found, np.int64).reshape(-1, 2)

    def _used_slots(self) -> list[list[int]]:
        return [[slot for _, slot in found] for found in self._used()]

    def _used(self) -> list[list[tuple[int, int]]]:
        """Return (first row, slot) of each stream's segments, in their order, at one moment even beside a writer."""
        (length, _), stream, first = self._table.used(), self._table.column("stream"), self._table.column("first_row")
        for _ in range(_LOOKS if self._live else 0):
            again = self._table.used()[0], self._table.column("stream"), self._table.column("first_row")
            used = (length > 0, again[0] > 0)
            if (used[0] == used[1]).all() and all(
                (a[used[0]] == b[used[0]]).all() for a, b in ((stream, again[1]), (first, again[2]))
            ):
                break
            length, stream, first = again
        there = (length > 0) & (first % self._layout.segment_rows == 0) & (first >= 0)
        found = []
        for s in range(self._layout.streams):
            mine = np.flatnonzero(there & (stream == s))
            mine = mine[np.argsort(first[mine], kind="stable")]
            found.append(list(zip(first[mine].tolist(), mine.tolist(), strict=True)))
        return found

    def _streams(self) -> list[_Segments]:
        """Return what `_by_stream` does; beside a writer, who may evict meanwhile, after some tries that told something else."""
        known, dropped = len(self._report.problems), self._report.dropped
        for _ in range(_TRIES if self._live else 1):
            del self._report.problems[known:]
            self._report.dropped = dropped
            found = self._by_stream()
            if len(self._report.problems) == known:
                break
            if self._live:
                time.sleep(_PATIENCE)
        return found

    def _by_stream(self) -> list[_Segments]:
        """Return the slots of each stream and their lengths, without gaps: what is missing is noted, and made up by a repair."""
        found, rows = [], self._layout.segment_rows
        for stream, there in enumerate(self._used()):
            whole: list[tuple[int, int]] = []
            for first, slot in there:
                expected = whole[-1][0] + rows if whole else first
                if first < expected:
                    self._note(
                        self._store.root / SEGMENTS,
                        f"slot {slot} has rows {first} and following of stream {stream}, as another",
                    )
                    if self._repair:
                        self._table.set_length(slot, 0)
                    continue
                for missing in range(expected, first, rows):
                    self._note_rows(self._store.root / SEGMENTS, stream, missing, missing + rows - 1, "the segment is missing")
                    self._report.dropped += rows
                    if self._repair:
                        whole.append((missing, repairing.make_blank(self._store, stream, missing)))
                        self._made.add(whole[-1][1])
                whole.append((first, slot))
            for _, slot in whole[:-1]:
                if self._table.length(slot) < rows and self._repair:
                    self._table.set_length(slot, rows)  # its rows are looked at like all others
            slots = np.array([slot for _, slot in whole], np.int64)
            lengths = np.array([self._table.length(slot) for _, slot in whole], np.int64)
            found.append((slots, lengths))
        return found

    # Segments

    def _check_segments(self, streams: list[_Segments], progress: bool, *, settled: bool) -> None:
        total = sum(int(lengths.sum()) for _, lengths in streams)
        with bar(total, 0, progress, " rows") as shown:
            for stream, (slots, lengths) in enumerate(streams):
                bad_first = False  # whether the segment behind this one begins with a row that is bad
                for n in reversed(range(len(slots))):
                    slot, length, newest = int(slots[n]), int(lengths[n]), n == len(slots) - 1
                    self._check_notes(slot, oldest=n == 0)
                    bad_first = self._check_segment(slot, length, newest, settled, bad_first)
                    self._report.rows += length
                    shown.update(length)
                self._check_before(stream, slots[:2].tolist())

    def _check_segment(self, slot: int, length: int, newest: bool, settled: bool, bad_behind: bool) -> bool:
        """Check a segment; return whether its first row is bad."""
        if slot in self._made:
            return True
        if self._live:
            return self._check_beside_writer(slot, length, settled)
        found, problems, bad = self._look_at(slot, length, newest, settled)
        damaged = self._damaged_derived(slot)
        self._note_segment(found, problems, bad, damaged)
        if self._repair:
            for path in damaged:
                self._store.maps.retire(slot, (path,))
                self._store.files.remove(self._layout.data_file(path, slot))
                self._table.set_checksum(path, slot, NEVER)
            if bad.any() or problems or bad_behind:
                nothing_done = newest and not settled and not found.verified(STEP, newest=True)[-1]
                repairing.blank(self._store, found, bad, bad_behind, newest=newest, nothing_done=nothing_done)
        return bool(bad[0])

    def _check_beside_writer(self, slot: int, length: int, settled: bool) -> bool:
        """Check a segment that is sealed, if it stays what it is meanwhile; a problem is one that lasts."""
        before, found, last = self._what_it_is(slot), None, ""
        if not self._store.verification.is_sealed(slot):
            return False
        for _ in range(_TRIES):
            if length == 0 or before[-1] != length:
                return False  # it was evicted
            found, problems, bad = self._look_at(slot, length, False, settled)
            damaged = self._damaged_derived(slot)
            if self._what_it_is(slot) != before:
                return False  # it was evicted meanwhile
            told = " ".join([*map(str, problems), *map(str, np.flatnonzero(bad)), *damaged])
            if told == last:
                break
            last = told
            time.sleep(_PATIENCE)
        if found is not None and last:
            self._note_segment(found, problems, bad, damaged)
        return bool(bad[0])

    def _what_it_is(self, slot: int) -> tuple[int, ...]:
        """Return what is another where a slot holds other rows, or none, or its files were replaced."""
        return (*self._table.identity(slot), self._table.get("sealed", slot), self._table.length(slot))

    def _look_at(self, slot: int, length: int, newest: bool, settled: bool) -> tuple[Inspected, list[Problem], Bools]:
        """Return a segment's rows, what is wrong with its files, and which rows are bad."""
        sealed, found = self._store.verification.is_sealed(slot), Inspected(self._store, slot, length, decode=True)
        problems = list(self._problems_of_files(found, sealed))
        bad = self._bad_rows(found, newest, settled)
        if sealed and {problem.column for problem in problems} == {CHECKSUM}:
            bad[:] = False  # for each other file has a checksum of its own
        return found, problems, bad

    def _note_segment(self, found: Inspected, problems: list[Problem], bad: Bools, damaged: list[str]) -> None:
        self._report.problems += problems
        if not problems:
            for begin, end in _ranges(bad):
                self._note_row_words(found, begin, end)
        for path in damaged:
            file, last = self._store.root / self._layout.data_file(path, found.slot), found.first + found.length - 1
            what = "the checksum does not match, or the file is missing; repair drops the values, zeros then, not the steps"
            self._report.problems.append(self._problem(file, found.stream, found.first, last, what, path))
        self._report.dropped += int(bad.sum())

    def _bad_rows(self, found: Inspected, newest: bool, settled: bool) -> Bools:
        """Return which rows are not vouched for; at the newest one, what was done there need not be where it is not `settled`."""
        obs, step = found.verified(OBS), found.verified(STEP, newest=newest)
        if newest and not settled:
            step[-1] = True
        return ~(obs & step)

    def _problems_of_files(self, found: Inspected, sealed: bool) -> Iterator[Problem]:
        store, layout = self._store, self._layout
        for path in layout.schema.recorded:
            file = store.root / layout.data_file(path, found.slot)
            if path in found.damage:
                yield self._problem(file, found.stream, found.first, found.first + found.length - 1, found.damage[path], path)
                continue
            rows = layout.chunks_of.get(path, 0)
            for chunk, what in found.bad_chunks.get(path, {}).items():
                first, last = chunk * rows, min((chunk + 1) * rows, max(found.length, chunk * rows + 1)) - 1
                yield self._problem(file, found.stream, found.first + first, found.first + last, f"chunk {chunk}: {what}", path)
            if sealed and not found.bad_chunks.get(path):
                try:
                    store.verification.verify_file(path, found.slot)
                except CorruptionError:
                    bad = ~found.verified(OBS) | ~found.verified(STEP)
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

    def _damaged_derived(self, slot: int) -> list[str]:
        return [path for path in sorted(self._layout.derived) if not self._holds_what_was_written(path, slot)]

    def _holds_what_was_written(self, path: str, slot: int) -> bool:
        """Tell whether a segment of a column that was written later is as it should be: not there, where nothing was written."""
        store, layout = self._store, self._layout
        expected = self._table.checksum(path, slot)
        if expected == NEVER and not store.files.exists(layout.data_file(path, slot)):
            return True
        try:
            store.verification.verify_file(path, slot)
            if expected != NEVER:
                return True
            mapped = store.files.map(layout.data_file(path, slot), layout.flat_bytes(path), writable=False)
        except CorruptionError:
            return False
        return not mapped.array(np.uint8, (mapped.size,)).any() or self._table.checksum(path, slot) != NEVER

    def _check_notes(self, slot: int, *, oldest: bool) -> None:
        """Look at what the segment table notes of a slot, and whether it is vouched for."""
        strange = self._lasting(slot, lambda: self._table.strange_notes(slot))
        if oldest and self._table.get("first_row", slot) > 0:
            strange.pop("before", None)  # `_check_before` looks at that
        for name, what in strange.items():
            self._note(
                self._store.root / SEGMENTS / name, f"{what} are not as they were noted for slot {slot}; repair forgets it"
            )
            if self._repair:
                self._table.forget_note(name, slot)

    def _lasting(self, slot: int, look: Callable[[], dict[str, str]]) -> dict[str, str]:
        """Return what is strange about a slot; beside a writer, only what stays so while the slot keeps its rows."""
        found, identity = look(), self._table.identity(slot)
        for _ in range(_TRIES if self._live else 0):  # the writer may be noting something, or have evicted the segment
            if not found:
                break
            time.sleep(_PATIENCE / _TRIES)
            again = look()
            if self._table.length(slot) == 0 or self._table.identity(slot) != identity:
                return {}
            found = {name: what for name, what in found.items() if name in again}
        return found

    def _check_before(self, stream: int, slots: list[int]) -> None:
        """Look at what the oldest of a stream's slots tells of those that were evicted before; the next one may tell, too."""
        first = self._table.get("first_row", slots[0]) if slots else 0
        if first == 0 or not self._lasting(slots[0], lambda: {} if self._table.before(slots[0]) else {"before": "unknown"}):
            return
        if self._live and (self._used()[stream][0][1] != slots[0] or self._table.before(slots[0])):
            return  # it was evicted meanwhile, and has other rows now
        self._note(self._store.root / SEGMENTS, f"how many steps came before slot {slots[0]} is not known; repair works it out")
        if self._repair:
            following = self._table.before(slots[1]) if len(slots) > 1 else None
            steps, start = (first, first) if following is None else self._before(slots[0], following)
            self._table.note_before(slots[0], steps, min(start, first))

    def _before(self, slot: int, following: tuple[int, int]) -> tuple[int, int]:
        """Return what came before a slot, by what came before the one that follows it."""
        rows = self._layout.segment_rows
        ended = int(self._store.verification.flags("is_last", slot, rows).sum())
        return max(0, following[0] - rows + ended), following[1]

    # Repair and report

    def _finish(self) -> None:
        """Bring what was repaired to the disk, and note that the store is closed; the tail has the newest rows."""
        store = self._store
        for slots, lengths in store.segments():
            if len(slots):  # what was newer may be gone
                resume_writing.make_writable(store, slots, int(lengths[-1]))
        resume_writing.undo_newest(store)
        for slots, _ in store.segments():
            for slot in slots.tolist():
                if not store.verification.is_sealed(slot):
                    store.durability.sync_slot(slot)
        store.free = np.flatnonzero(self._table.column("length") == 0).tolist()
        directory.remove_strays(store.files, self._layout, self._table.slots, store.free)
        store.durability.sync(store.heads(), store.durability.written_files())
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
