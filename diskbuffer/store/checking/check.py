"""Check every structure and every checksum of a store, and repair what can be repaired.

The order of things: the framework, without which a store cannot be opened; then, of an open store, the segment table; then every
segment that it has.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.arguments.paths import local_path
from diskbuffer.runtime.progress import bar
from diskbuffer.store import directory
from diskbuffer.store.checking.findings import LOOKS, WRITER_SECONDS, Collector
from diskbuffer.store.checking.framework import Framework, find_links
from diskbuffer.store.checking.opened import Opened
from diskbuffer.store.checking.report import Report
from diskbuffer.store.checking.segments import SegmentFinder
from diskbuffer.store.checking.table import TableFinder
from diskbuffer.store.checking.values import find_damaged_values
from diskbuffer.store.last_writer import LastShutdown, State
from diskbuffer.store.opening import open_store
from diskbuffer.store.recovery import going_back, resume_writing
from diskbuffer.store.recovery.visible_rows import visible_from
from diskbuffer.store.store import Kept, Store
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import WriterLock, is_held
from diskbuffer.store.writing.writer import Writer


def check(path: str | os.PathLike[str], repair: bool = False, progress: bool = True) -> Report:
    """Verify one store; see `diskbuffer.check`."""
    root = local_path(path)
    for _ in range(LOOKS):
        before = _last_written(root)
        report = _checked(root, repair, progress)
        if repair or report.ok or _last_written(root) == before:
            break  # or a writer has opened or closed it meanwhile, and what was seen is of before and after
    return report


def _last_written(root: Path) -> tuple[bool, Any]:
    """Return whether there is a writer; if not, what the last one left."""
    files = Files(root)
    held = bool(is_held(files))
    return held, None if held else State.raw(files)


def _checked(root: Path, repair: bool, progress: bool) -> Report:
    collector = Collector(Report(root, repaired=repair))
    framework = (_mend_framework if repair else _look_at_framework)(root, collector)
    if not collector.blocked:
        store = open_store(root, writable=repair, recover=False)
        try:
            opened = _check_contents(store, framework, collector, progress)
            if repair:
                _close_repaired(opened)
        finally:
            store.close()
    collector.take(find_links(root, {problem.path for problem in collector.report.problems}))
    return collector.report


def _look_at_framework(root: Path, collector: Collector) -> Framework:
    """Look at the framework; beside a writer, which may be changing one file after the other, once more: what stays so counts."""
    framework, report = Framework(root), collector.report
    collector.take_all(framework.stages())
    if report.problems and is_held(Files(root)):
        messages, report.problems, collector.blocked = set(map(str, report.problems)), [], False
        time.sleep(WRITER_SECONDS)
        framework = Framework(root)
        collector.take_all(framework.stages())
        report.problems = [problem for problem in report.problems if str(problem) in messages]
    return framework


def _mend_framework(root: Path, collector: Collector) -> Framework:
    """Mend the framework, with the writer's lock as soon as there is a place for it."""
    framework = Framework(root)
    collector.take(framework.before_locking())
    lock = WriterLock(Files(root))
    try:
        collector.take_all(framework.stages(locked=True))
    finally:
        lock.release()
    return framework


def _check_contents(store: Store, framework: Framework, collector: Collector, progress: bool) -> Opened:
    opened = Opened(store)
    table = TableFinder(opened, incomplete=framework.made_anew)
    segments = collector.take(table.find())
    _check_segments(SegmentFinder(opened, table.blank), segments, collector, progress)
    collector.take(find_damaged_values(opened))
    return opened


def _check_segments(finder: SegmentFinder, segments: Kept, collector: Collector, progress: bool) -> None:
    """Check every segment; those of a stream the newest first, as a bad row makes the one before it the last of its episode."""
    with bar(sum(int(lengths.sum()) for _, lengths in segments), 0, progress, " rows") as shown:
        for stream, (slots, lengths) in enumerate(segments):
            bad_after = False
            for n in reversed(range(len(slots))):
                slot, length, newest = int(slots[n]), int(lengths[n]), n == len(slots) - 1
                collector.take(finder.find_strange_notes(slot, oldest=n == 0))
                bad_after = collector.take(finder.find(slot, length, newest=newest, bad_after=bad_after))
                collector.report.rows += length
                shown.update(length)
            collector.take(finder.find_unknown_start(stream, slots[:2].tolist()))


def _close_repaired(opened: Opened) -> None:
    """Sync what was repaired to the disk, and note that the store is closed."""
    store = opened.store
    store.go_back_to(visible_from(store, store.segments()))
    if opened.last_shutdown is LastShutdown.POWER_LOSS:
        going_back.go_back(store, store.segments())
    else:
        for slots, lengths in store.segments():
            if len(slots):  # what was newer may be gone
                resume_writing.make_writable(store, slots, int(lengths[-1]))
    layout, heads, segments = store.layout, store.heads(), [slots for slots, _ in store.segments()]
    writer = Writer(store, heads, segments)
    try:
        writer.publish(heads)
        tail = store.copy_tail(writer.tail.unpacked(stream, head) for stream, head in enumerate(heads.tolist()))
    finally:
        writer.close()
    every = np.concatenate(segments).tolist()
    unsealed = [slot for slot in every if not store.verification.is_sealed(slot)]
    store.files.sync_all(layout.data_file(path, slot) for slot in unsealed for path in layout.schema)
    store.find_free()
    directory.remove_strays(store.files, store.layout, store.table.slots, store.free)
    store.sync(heads, store.begins, tail, store.episode_values.note)
    store.note_closed()
    store.begin_session()
