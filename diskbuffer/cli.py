"""The command ``diskbuffer``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from diskbuffer.errors import DiskBufferError
from diskbuffer.store.checking.check import check
from diskbuffer.store.copies.closed_marks import marks, remove_mark
from diskbuffer.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0 if all is well, 1 if something is wrong with a store, and 2 if it could not be looked at."""
    parser = argparse.ArgumentParser("diskbuffer", description="Replay buffers on disk.")
    parser.add_argument("--version", action="version", version=f"diskbuffer {__version__}")
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
    warming = commands.add_parser("warmup", help="compile what else the first use compiles, for images and CI")
    warming.set_defaults(run=_warmup)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except (DiskBufferError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _check(options: argparse.Namespace) -> int:
    report = check(options.path, repair=options.repair, progress=not options.quiet)
    print(report)
    return 0 if report.ok or report.repaired else 1


def _warmup(_: argparse.Namespace) -> int:
    from diskbuffer.precompile import warmup

    print(f"ready, after {warmup():.0f} s")
    return 0


def _marks(options: argparse.Namespace) -> int:
    if options.remove is not None:
        remove_mark(options.path, options.remove)
    else:
        print(*marks(options.path), sep="\n", end="\n" if marks(options.path) else "")
    return 0
