"""The command ``diskbuffer``.

The commands are in `diskbuffer.commands`, and need what the extra ``[cli]`` installs. Without it, those that look after a
store work all the same, in a plainer way.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from diskbuffer import __version__
from diskbuffer.commands.output import complain
from diskbuffer.errors import DiskBufferError

_NEEDED = ("cyclopts", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0 if all is well, 1 if something is wrong with a store, and 2 if it could not be looked at."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"diskbuffer {__version__}")
        return 0
    if all(importlib.util.find_spec(package) for package in _NEEDED):
        from diskbuffer.commands.app import run

        return run(arguments)
    return _plain(given)


def _plain(arguments: Sequence[str]) -> int:
    """Run one of the commands that need no further packages."""
    parser = argparse.ArgumentParser(
        "diskbuffer", description="Replay buffers on disk.", epilog='For all other commands: pip install "diskbuffer[cli]"'
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    checking = commands.add_parser("check", help="verify every structure and every checksum of a store")
    checking.add_argument("path", help="the directory of the store")
    checking.add_argument("--repair", action="store_true", help="drop what cannot be saved, and nothing else; keep a copy first")
    checking.add_argument("--quiet", action="store_true", help="show no progress")
    checking.set_defaults(run=_check)
    marking = commands.add_parser("marks", help="list a store's marks, or remove one, which takes no space, as opening does")
    marking.add_argument("path", help="the directory of the store")
    marking.add_argument("--remove", metavar="NAME", help="remove this mark, and give its space back")
    marking.set_defaults(run=_marks)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except (DiskBufferError, OSError) as error:
        complain(str(error))
        return 2


def _check(options: argparse.Namespace) -> int:
    from diskbuffer.commands.check import check

    return check(options.path, repair=options.repair, quiet=options.quiet)


def _marks(options: argparse.Namespace) -> int:
    from diskbuffer.commands.marks import marks

    return marks(options.path, remove=options.remove)
