"""How commands show things: tables for people, JSON for programs, messages on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from diskbuffer.errors import CorruptionError
from diskbuffer.formats import strict_json
from diskbuffer.plugin import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

P = ParamSpec("P")
WELL, WRONG, FAILED = 0, 1, 2  # exit codes: all is well, something is wrong with a store, it could not be looked at
_WIDE = 160  # columns of output that is no terminal's, so that nothing is cut


@cache
def console() -> Console:
    """Return the terminal, or the file that stands in its place."""
    from rich.console import Console

    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=_WIDE)


def show(*things: Any) -> None:
    """Show tables and texts."""
    from rich.text import Text

    for thing in things:
        console().print(Text(printable(thing)) if isinstance(thing, str) else thing)


def show_lines(*lines: str) -> None:
    """Write lines to stdout, as they are; names from files may be part of them."""
    print(*map(printable, lines), sep="\n")


def show_json(value: Any) -> None:
    """Write a value as JSON; figures that are NaN or infinite become null."""
    text = strict_json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False)
    print("".join(c if c.isprintable() or c == "\n" else strict_json.dumps(c)[1:-1] for c in text))


def complain(*lines: str) -> None:
    """Write lines to stderr; names from files, and what libraries say of them, may be part of them."""
    print(*map(printable, "\n".join(lines).split("\n")), sep="\n", file=sys.stderr)


def telling_damage(command: Callable[P, int]) -> Callable[P, int]:
    """Have a command that looks at a store say what is wrong with one that is damaged, and return the exit code."""

    @wraps(command)
    def telling(*args: P.args, **options: P.kwargs) -> int:
        try:
            return command(*args, **options)
        except CorruptionError as error:
            complain(f"This store is damaged: {error}")
            return WRONG

    return telling


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = (), title: str | None = None) -> Table:
    """Return a table of texts; columns are aligned at the right, but for those of the headings in `left`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False)
    for heading in headings:
        grid.add_column(heading, justify="left" if heading in left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))  # what is stored is no markup
    return grid
