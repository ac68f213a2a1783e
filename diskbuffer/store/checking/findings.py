"""Findings: problems, each with what fixes it. Finders yield them, a collector notes them and, in a repair, fixes them.

A finder is a generator. It goes on once what it yielded is noted and, in a repair, fixed: what it looks at next is whole by then,
and no finder has to ask whether there is a repair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar, cast

from diskbuffer.store.checking.report import Problem, Report

T = TypeVar("T")

LOOKS = 5  # at something that a writer may be changing
WRITER_SECONDS = 0.2  # within which a writer has changed files that belong together


@dataclass(frozen=True)
class Finding:
    """Problems that are fixed together.

    Attributes
    ----------
    problems : tuple of Problem
        Empty where a repair has something to do that nobody needs to know.
    fix : callable, optional
        What a repair calls. None where opening the store, or the end of the repair, fixes it.
    dropped : int
        Rows that the fix takes out.
    blocks : bool
        Whether the stages that follow cannot look at anything before it is fixed.
    """

    problems: tuple[Problem, ...] = ()
    fix: Callable[[], object] | None = None
    dropped: int = 0
    blocks: bool = False


Finder = Generator[Finding, None, T]


class Collector:
    """Put what finders yield into a report, and fix it if that is a repair's.

    Attributes
    ----------
    blocked : bool
        Whether something was found, and not fixed, without which the rest cannot be looked at.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.blocked = False

    def take(self, finder: Finder[T]) -> T:
        """Note and fix what a finder yields; return what it returns."""
        while True:
            try:
                finding = next(finder)
            except StopIteration as end:
                return cast(T, end.value)
            self._note(finding)

    def take_all(self, stages: Iterable[Finder[None]]) -> bool:
        """Take one finder after the other, until one is blocked; return whether none was."""
        for finder in stages:
            self.take(finder)
            if self.blocked:
                return False
        return True

    def _note(self, finding: Finding) -> None:
        self.report.problems += finding.problems
        self.report.dropped += finding.dropped
        if not self.report.repaired:
            self.blocked = self.blocked or finding.blocks
        elif finding.fix is not None:
            finding.fix()


def lasting(look: Callable[[], dict[str, str]], *, beside_writer: bool) -> dict[str, str]:
    """Return what is strange, by name; beside a writer, which may be changing it, only what stays so for some looks."""
    problems = look()
    for _ in range(LOOKS if beside_writer else 0):
        if not problems:
            break
        time.sleep(WRITER_SECONDS / LOOKS)
        again = look()
        problems = {name: what for name, what in problems.items() if name in again}
    return problems
