"""``diskbuffer check``: verify a store, and repair it."""

from __future__ import annotations

from diskbuffer import check as verify
from diskbuffer.commands.arguments import AnyStore, Json, Quiet
from diskbuffer.commands.output import WELL, WRONG, show_json, show_lines


def check(path: AnyStore, /, *, repair: bool = False, quiet: Quiet = False, json: Json = False) -> int:
    """Verify every structure and every checksum of a store; exit code 1 where something is wrong.

    A training may be writing to it; what that has not sealed yet is then left out.

    Parameters
    ----------
    repair
        Drop what cannot be saved, and nothing else; keep a copy first.
    """
    report = verify(path, repair=repair, progress=not quiet and not json)
    if json:
        problems = [
            {
                "path": str(problem.path),
                "column": problem.column,
                "steps": problem.steps,
                "what": problem.what,
                "is_finished_by_opening": problem.is_finished_by_opening,
            }
            for problem in report.problems
        ]
        figures = {"ok": report.ok, "repaired": report.repaired, "rows": report.rows, "dropped": report.dropped}
        show_json({"path": str(report.path), **figures, "problems": problems})
    else:
        show_lines(*str(report).split("\n"))
    return WELL if report.ok or report.repaired else WRONG
