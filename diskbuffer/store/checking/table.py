"""Check the segment table: entries that are damaged or lost, segments that are missing, too short, or there twice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.schema.schema import CHECKSUM
from diskbuffer.store.checking.blank_rows import make_blank
from diskbuffer.store.checking.findings import LOOKS, WRITER_SECONDS, Collector, Finder, Finding
from diskbuffer.store.checking.lost_rows import Identity, find_rows
from diskbuffer.store.checking.lost_tail import save_tail
from diskbuffer.store.checking.opened import Opened
from diskbuffer.store.checking.report import Problem, Report
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.last_writer import LastShutdown
from diskbuffer.store.recovery import going_back
from diskbuffer.store.recovery.visible_rows import begins_then, counts_as_noted, stays, visible_rows
from diskbuffer.store.segments.cleared import CLEARED_FILE
from diskbuffer.store.store import Kept
from diskbuffer.store.tail_copy import StoredTail

Int64 = npt.NDArray[np.int64]
Rows = tuple[Identity, int]  # of a slot: whose they are, and how many


class TableFinder:
    """Find what is wrong with the segment table, and which segments there are.

    Parameters
    ----------
    opened : Opened
    incomplete : bool
        Whether it may have forgotten rows.

    Attributes
    ----------
    blank : set of int
        Slots of segments that were missing, and were made in their place.
    """

    def __init__(self, opened: Opened, *, incomplete: bool) -> None:
        self.blank: set[int] = set()
        self._opened, self._incomplete = opened, incomplete
        self._store, self._layout, self._table = opened.store, opened.store.layout, opened.store.table
        self._place = opened.store.root / SEGMENTS

    def find(self) -> Finder[Kept]:
        """Find all of that; return the segments."""
        if not self._opened.is_last_shutdown_known:
            what = "is missing or damaged, so how the store was left is not known"
            yield Finding((Problem(self._place / "length" / "state.json", what),))
        if self._opened.live:
            return (yield from self._find_lasting_gaps())
        lost_power = self._opened.last_shutdown is LastShutdown.POWER_LOSS
        if lost_power:  # then the note of the last flush tells
            yield Finding(fix=partial(self._store.go_back_to, np.array(begins_then(self._store), np.int64)))
        else:
            yield from self._find_damaged_clears()
        yield from self._find_damaged_tail(lost_power)
        if not lost_power or self._has_lost_rows():
            yield from self._find_lost_entries()
        return (yield from self._find_kept_rows() if lost_power else self._find_gaps())

    def _has_lost_rows(self) -> bool:
        """Return whether opening the store would miss rows."""
        try:
            visible_rows(self._store)
        except CorruptionError:
            return True
        return False

    def _find_kept_rows(self) -> Finder[Kept]:
        """Return what is visible after a power loss, and have a repair keep nothing else."""
        visible = visible_rows(self._store, damaged=True)
        yield Finding(fix=partial(going_back.drop_other_rows, self._store, visible))
        return visible

    def _find_damaged_clears(self) -> Finder[None]:
        """Find out whether it is known which steps were cleared, or given up."""
        what, is_clean = "", self._opened.last_shutdown is LastShutdown.CLEAN
        try:
            if is_clean and not counts_as_noted(self._store):
                what = "which rows count is not what was noted when the store was closed; repair goes by that note"
            self._store.begins  # noqa: B018
        except CorruptionError as error:
            what = str(error)
        if what:
            noted = np.array(begins_then(self._store), np.int64) if is_clean else np.zeros(self._layout.streams, np.int64)
            yield Finding((Problem(self._store.root / CLEARED_FILE, what),), partial(self._store.go_back_to, noted))

    def _find_damaged_tail(self, lost_power: bool) -> Finder[None]:
        """Have the rows that the last flush copied of the tail be looked at, where they count."""
        store, tail = self._store, self._store.durability.tail
        if self._opened.last_shutdown is LastShutdown.KILLED or tail is None:
            return
        visible = visible_rows(store, damaged=True)
        try:
            if store.writable:
                going_back.put_back_tail(store, visible, lost_power=lost_power)
            elif lost_power:
                going_back.show_tail(store, visible)
            else:
                StoredTail(store.files, self._layout, tail)
        except CorruptionError as error:
            yield Finding((Problem(store.root / tail.name, str(error)),), partial(save_tail, store, visible))

    # Entries

    def _find_lost_entries(self) -> Finder[None]:
        """Look at slots whose entry is damaged, gone, or too short: their rows tell whose they are, and how many."""
        reach, length = self._reach(), self._table.column("length")
        damaged = np.flatnonzero(self._table.used()[1]).tolist()
        search = self._incomplete or bool(self._missing_rows()) or self._has_forgotten(damaged)
        recovered: list[Rows] = []
        for slot in damaged:
            recovered.append((yield from self._find_lost_entry(slot, None, reach)))
        newest = [segments[-1][1] for segments in self._opened.segments() if segments]
        for slot in [*np.flatnonzero(length == 0).tolist(), *newest] if search else []:
            if slot not in damaged and self._has_file(CHECKSUM, slot):
                recovered.append((yield from self._find_lost_entry(slot, self._table.length(slot), reach)))
        for stream, first, last in self._missing_rows(recovered):
            what = "rows that were on the disk are not there"
            yield Finding((self._opened.problem(self._place, stream, first, last, what),), dropped=last - first + 1)

    def _has_forgotten(self, damaged: list[int]) -> bool:
        """Return whether entries may be gone: of segments of which none was ever evicted, some are damaged, or miss."""
        if not all(stays(self._store, stream) for stream in range(self._layout.streams)):
            return False
        rows, firsts = self._layout.segment_rows, [[first for first, _ in segments] for segments in self._opened.segments()]
        return bool(damaged) or any(each != list(range(0, rows * len(each), rows)) for each in firsts)

    def _find_lost_entry(self, slot: int, known: int | None, reach: Int64) -> Finder[Rows]:
        """Look for rows of a slot whose entry has so many, None if it is damaged; return those that are there."""
        identity, rows = find_rows(self._store, slot, reach)
        if known is None or rows > known:  # else such as files of a segment that no row came into yet
            what = f"its {rows} rows are there, and repair finds them" if rows else "nothing of its rows can be found"
            problem = Problem(self._place, f"the entry of slot {slot} is damaged; {what}")
            yield Finding((problem,), partial(self._set_entry, slot, identity, rows))
        return identity, rows

    def _set_entry(self, slot: int, identity: Identity, rows: int) -> None:
        if rows:
            self._table.identify(slot, *identity)
        self._table.set_length(slot, rows)

    def _missing_rows(self, recovered: Sequence[Rows] = ()) -> list[tuple[int, int, int]]:
        """Return rows that were on the disk, and neither the table has nor were `recovered`: (stream, first, last)."""
        missing = []
        for stream, segments in enumerate(self._opened.segments()):
            if self._opened.last_shutdown is LastShutdown.POWER_LOSS and not stays(self._store, stream):
                continue  # they may have been evicted
            extents = [(first, self._table.length(slot)) for first, slot in segments[-1:]]
            extents += [(first, rows) for (whose, first), rows in recovered if whose == stream]
            head, expected = sum(max(extents, default=(0, 0))) - 1, self._opened.synced[stream]
            if head < expected:
                missing.append((stream, head + 1, expected))
        return missing

    def _reach(self) -> Int64:
        """Return the positions of the first and the last segment of each stream that a slot can have, (streams, 2)."""
        rows, ranges = self._layout.segment_rows, []
        for stream, segments in enumerate(self._opened.segments()):
            newest = max([0, self._opened.synced[stream] // rows * rows, *(first for first, _ in segments)])
            around = rows * self._table.slots
            ranges.append((max(0, newest - around), newest + around))
        return np.array(ranges, np.int64).reshape(-1, 2)

    def _has_file(self, path: str, slot: int) -> bool:
        return self._store.files.exists(self._layout.data_file(path, slot))

    # Gaps

    def _find_lasting_gaps(self) -> Finder[Kept]:
        """Find gaps beside a writer, which may evict meanwhile: those that are there at the last of some looks."""
        for _ in range(LOOKS - 1):
            report = Report(self._store.root)
            segments = Collector(report).take(self._find_gaps())
            if report.ok:
                return segments
            time.sleep(WRITER_SECONDS)
        return (yield from self._find_gaps())

    def _find_gaps(self) -> Finder[Kept]:
        """Find segments that are missing, there twice, or too short; a fix fills the gaps."""
        kept = []
        for stream, segments in enumerate(self._opened.segments()):
            slots = yield from self._find_gaps_of(stream, segments)
            yield from self._find_short(slots[:-1])
            lengths = np.array([self._table.length(slot) for slot in slots], np.int64)
            if not self._opened.live:
                lengths[:-1] = self._layout.segment_rows  # all rows that should be there are looked at
            kept.append((np.array(slots, np.int64), lengths))
        return kept

    def _find_short(self, slots: list[int]) -> Finder[None]:
        """Find segments that have not all of their rows, though another one follows; of those evicted meanwhile there are 0."""
        rows = self._layout.segment_rows
        for slot in slots:
            if 0 < (length := self._table.length(slot)) < rows:
                what = f"slot {slot} has {length} rows, and {rows} must be there, as others follow; repair finds them"
                yield Finding((Problem(self._place, what),), partial(self._table.set_length, slot, rows))

    def _find_gaps_of(self, stream: int, segments: list[tuple[int, int]]) -> Finder[list[int]]:
        rows, slots = self._layout.segment_rows, list[int]()
        expected = segments[0][0] if segments else 0
        for first, slot in segments:
            if first < expected:
                what = f"slot {slot} has rows {first} and following of stream {stream}, as another"
                yield Finding((Problem(self._place, what),), partial(self._table.set_length, slot, 0))
                continue
            for missing in range(expected, first, rows):
                problem = self._opened.problem(self._place, stream, missing, missing + rows - 1, "the segment is missing")
                yield Finding((problem,), partial(self._fill, stream, missing, slots), dropped=rows)
            slots.append(slot)
            expected = first + rows
        return slots

    def _fill(self, stream: int, first: int, slots: list[int]) -> None:
        """Fill a gap with a segment of rows that are no steps, and add its slot."""
        slots.append(make_blank(self._store, stream, first))
        self.blank.add(slots[-1])
