"""The command ``diskbuffer``; its commands are in `diskbuffer.commands`, and need what the extra ``[cli]`` installs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from diskbuffer.commands.output import FAILED, complain

_NEEDED = ("cyclopts", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0 if all is well, 1 if something is wrong with a store, and 2 if it could not be looked at."""
    missing = [package for package in _NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        complain(
            f"the commands need {' and '.join(missing)}: pip install 'diskbuffer[cli]'. In Python, diskbuffer.check(path) and "
            "diskbuffer.check(path, repair=True) do without"
        )
        return FAILED
    from diskbuffer.commands.app import run

    return run(arguments)
