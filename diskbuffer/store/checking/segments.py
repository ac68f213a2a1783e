"""Check segments: their files, chunks and checksums, and what the segment table notes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.schema.schema import CHECKSUM
from diskbuffer.store.checking.blank_rows import blank
from diskbuffer.store.checking.findings import LOOKS, WRITER_SECONDS, Finder, Finding, lasting
from diskbuffer.store.checking.opened import Opened
from diskbuffer.store.checking.report import Problem
from diskbuffer.store.format.checksums import OBS, STEP, covered
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.inspection import Inspected
from diskbuffer.store.segments.table import NEVER

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Look:
    """What was seen of a segment: its rows, problems of its files, which rows are bad, and which derived columns are."""

    rows: Inspected
    problems: list[Problem]
    bad: Bools
    bad_derived: list[str]

    @property
    def comparable(self) -> tuple[list[str], list[int], list[str]]:
        """What is wrong, to be compared with another look."""
        return list(map(str, self.problems)), np.flatnonzero(self.bad).tolist(), self.bad_derived


class SegmentFinder:
    """Find what is wrong with segments, one at a time; those of a stream the newest first.

    Parameters
    ----------
    opened : Opened
    blank : set of int
        Slots of segments that a repair made, and nothing is wrong with.
    """

    def __init__(self, opened: Opened, blank: set[int]) -> None:
        self._opened, self._blank = opened, blank
        self._store, self._layout, self._table = opened.store, opened.store.layout, opened.store.table

    def find(self, slot: int, length: int, *, newest: bool, bad_after: bool) -> Finder[bool]:
        """Find damage of a segment's rows; return whether the first is bad, as `bad_after` tells of the row after the last."""
        if slot in self._blank:
            return True
        look = self._lasting_look(slot, length) if self._opened.live else self._look(slot, length, newest=newest)
        if look is None:
            return False
        rewrite = bool(look.problems) or bool(look.bad.any()) or bad_after
        fix = partial(self._rewrite, look, newest=newest, bad_after=bad_after) if rewrite else None
        yield Finding(tuple(look.problems or self._problems_of_rows(look)), fix, dropped=int(look.bad.sum()))
        for path in look.bad_derived:
            yield Finding((self._problem_of_derived(path, look.rows),), partial(self._remove_derived, path, slot))
        return bool(look.bad[0])

    def _lasting_look(self, slot: int, length: int) -> Look | None:
        """Look at a segment beside a writer, which may evict it; None where nothing is wrong for long, or it is not sealed."""
        before, last = self._version(slot), None
        if not self._store.verification.is_sealed(slot) or length == 0 or before[-1] != length:
            return None
        for _ in range(LOOKS):
            look = self._look(slot, length, newest=False)
            if self._version(slot) != before or not any(look.comparable):
                return None
            if look.comparable == last:
                break
            last = look.comparable
            time.sleep(WRITER_SECONDS)
        return look

    def _version(self, slot: int) -> tuple[int, ...]:
        """Return what is another where a slot holds other rows, or none, or its files were replaced."""
        return (*self._table.identity(slot), self._table.get("sealed", slot), self._table.length(slot))

    def _look(self, slot: int, length: int, *, newest: bool) -> Look:
        sealed, rows = self._store.verification.is_sealed(slot), Inspected(self._store, slot, length, decode=True)
        rows.look_at_pictures()
        problems, bad = list(self._problems_of_files(rows, sealed)), self._bad_rows(rows, newest)
        if sealed and {problem.column for problem in problems} == {CHECKSUM}:
            bad[:] = False  # for each other file has a checksum of its own
        return Look(rows, problems, bad, [path for path in sorted(self._layout.derived) if not self._is_derived_good(path, slot)])

    # Rows and files

    def _bad_rows(self, rows: Inspected, newest: bool) -> Bools:
        """Return which rows no checksum verifies."""
        return ~(rows.verified(OBS) & rows.verified(STEP, newest=newest))

    def _problems_of_rows(self, look: Look) -> Iterator[Problem]:
        columns = [path for word in (OBS, STEP) for path in covered(self._layout.schema, word)]
        what = f"rows are not as they were written, in one of {', '.join(columns)}, or in their checksums"
        rows, file = look.rows, self._store.root / self._layout.data_file(CHECKSUM, look.rows.slot)
        for first, last in _ranges(look.bad):
            yield self._opened.problem(file, rows.stream, rows.first + first, rows.first + last, what)

    def _problems_of_files(self, rows: Inspected, sealed: bool) -> Iterator[Problem]:
        for path in self._layout.schema.recorded:
            if path in rows.damage:
                yield self._problem(rows, path, 0, rows.length - 1, rows.damage[path])
                continue
            yield from self._problems_of_chunks(rows, path)
            if sealed and not rows.bad_chunks.get(path) and not self._is_verified(path, rows.slot):
                bad = np.flatnonzero(~rows.verified(OBS) | ~rows.verified(STEP)).tolist()
                what = "the checksum does not match" + ("" if bad else "; all rows are as they were written, though")
                yield self._problem(rows, path, *((bad[0], bad[-1]) if bad else (0, rows.length - 1)), what)

    def _problems_of_chunks(self, rows: Inspected, path: str) -> Iterator[Problem]:
        each = self._layout.chunks_of.get(path, 0)
        for chunk, what in rows.bad_chunks.get(path, {}).items():
            first, last = chunk * each, min((chunk + 1) * each, max(rows.length, chunk * each + 1)) - 1
            yield self._problem(rows, path, first, last, f"chunk {chunk}: {what}")

    def _is_verified(self, path: str, slot: int) -> bool:
        try:
            self._store.verification.verify_file(path, slot)
        except CorruptionError:
            return False
        return True

    def _rewrite(self, look: Look, *, newest: bool, bad_after: bool) -> None:
        """Write a segment anew, without the rows that are bad."""
        blank(self._store, look.rows, look.bad, bad_after, newest=newest)

    def _problem(self, rows: Inspected, path: str, first: int, last: int, what: str) -> Problem:
        """Return a problem of a segment's file, and of some of its rows."""
        file = self._store.root / self._layout.data_file(path, rows.slot)
        return self._opened.problem(file, rows.stream, rows.first + first, rows.first + last, what, path)

    # Derived columns

    def _is_derived_good(self, path: str, slot: int) -> bool:
        """Return whether a segment of a derived column is as it should be: not there, where nothing was written."""
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

    def _problem_of_derived(self, path: str, rows: Inspected) -> Problem:
        what = "the checksum does not match, or the file is missing; repair drops the values, zeros then, not the steps"
        return self._problem(rows, path, 0, rows.length - 1, what)

    def _remove_derived(self, path: str, slot: int) -> None:
        self._store.maps.retire(slot, (path,))
        self._store.files.remove(self._layout.data_file(path, slot))
        self._table.set_checksum(path, slot, NEVER)

    # Notes of the segment table

    def find_strange_notes(self, slot: int, *, oldest: bool) -> Finder[None]:
        """Find what the table notes of a slot, and its checksum does not verify."""
        strange = self._lasting_of(slot, partial(self._table.strange_notes, slot))
        if oldest and self._table.get("first_row", slot) > 0:
            strange.pop("before", None)  # `find_unknown_start` looks at that
        for name, note in strange.items():
            what = f"{note} are not as they were noted for slot {slot}; repair forgets it"
            problem = Problem(self._store.root / SEGMENTS / name, what)
            yield Finding((problem,), partial(self._table.forget_note, name, slot))

    def find_unknown_start(self, stream: int, slots: list[int]) -> Finder[None]:
        """Find out whether it is known what came before the oldest of a stream's slots, some of which were evicted."""
        first = self._table.get("first_row", slots[0]) if slots else 0
        if first == 0:
            return
        if not self._lasting_of(slots[0], lambda: {} if self._table.before(slots[0]) else {"before": "unknown"}):
            return
        if self._opened.live and self._opened.segments()[stream][:1] != [(first, slots[0])]:
            return  # it was evicted meanwhile
        what = f"how many steps came before slot {slots[0]} is not known; repair works it out"
        yield Finding((Problem(self._store.root / SEGMENTS, what),), partial(self._note_start, slots))

    def _note_start(self, slots: list[int]) -> None:
        """Work out what came before the oldest slot, by what came before the next."""
        first, rows = self._table.get("first_row", slots[0]), self._layout.segment_rows
        following = self._table.before(slots[1]) if len(slots) > 1 else None
        steps, start = first, first
        if following is not None:
            steps = max(0, following[0] - rows + int(self._store.verification.flags("is_last", slots[0], rows).sum()))
            start = min(following[1], first)
        self._table.note_before(slots[0], steps, start)

    def _lasting_of(self, slot: int, look: Callable[[], dict[str, str]]) -> dict[str, str]:
        """Return what is strange about a slot; beside a writer, only what stays so while the slot keeps its rows."""
        identity = self._table.identity(slot)

        def looked() -> dict[str, str]:
            problems = look()
            kept = self._table.length(slot) > 0 and self._table.identity(slot) == identity
            return problems if kept or not self._opened.live else {}

        return lasting(looked, beside_writer=self._opened.live)


def _ranges(bad: Bools) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of rows that are bad one after the other."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], bad, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True)
