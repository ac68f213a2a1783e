"""Verifying the stores of several writers, one after the other."""

from __future__ import annotations

from pathlib import Path

from diskbuffer.store.building import is_there
from diskbuffer.store.checking.check import check
from diskbuffer.store.checking.framework import find_links
from diskbuffer.store.checking.report import Report
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import read_description


def check_all(root: Path, *, repair: bool = False, progress: bool = True) -> Report:
    """Verify every store of a directory of several writers, as `check` does one."""
    combined = Report(root, repaired=repair)
    for entry in read_description(Files(root)).present:
        if is_there(root / entry.name):  # else it was removed, or is only being made
            report = check(root / entry.name, repair=repair, progress=progress)
            combined.problems += report.problems
            combined.rows, combined.dropped = combined.rows + report.rows, combined.dropped + report.dropped
    for finding in find_links(root, {problem.path for problem in combined.problems}):
        combined.problems += finding.problems
    return combined
