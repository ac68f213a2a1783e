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
        summary = counted(len(lines), "problem") if lines else "everything is as it was written"
        done = f"; repaired: {counted(self.dropped, 'row')} dropped" if self.repaired and lines else ""
        return "\n".join(
            [*lines, f"{self.path}: {counted(self.rows, 'row')} (steps, and final observations) checked, {summary}{done}"]
        )
