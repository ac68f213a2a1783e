"""What a check tells its caller: a report, and the problems in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from diskbuffer.arguments.wording import counted


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
        The column that the file belongs to.
    steps : (int, int), optional
        The first and the last step that it may concern, as in a batch's ``steps``; both of one environment.
    is_finished_by_opening : bool
        Whether a kill left it so, and the next opening for writing puts it right: nothing is lost.
    """

    path: Path
    what: str
    column: str | None = None
    steps: tuple[int, int] | None = None
    is_finished_by_opening: bool = False

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
        """Whether nothing is wrong but what the next opening for writing puts right by itself."""
        return all(problem.is_finished_by_opening for problem in self.problems)

    def __str__(self) -> str:
        """Return it for people to read."""
        lines = [str(problem) for problem in self.problems]
        wrong = sum(not problem.is_finished_by_opening for problem in self.problems)
        summary = counted(wrong, "problem") if wrong else "everything is as it was written"
        summary += ", but for what a kill left and opening finishes" if len(lines) > wrong else ""
        done = f"; repaired: {counted(self.dropped, 'row')} dropped" if self.repaired and lines else ""
        return "\n".join(
            [*lines, f"{self.path}: {counted(self.rows, 'row')} (steps, and final observations) checked, {summary}{done}"]
        )
