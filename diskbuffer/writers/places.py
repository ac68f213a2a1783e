"""Where a store may be written: not inside of another, nor of a mark, nor beside several writers' stores without being one."""

from __future__ import annotations

import os
from pathlib import Path

from diskbuffer.errors import InputError, ReadOnlyError
from diskbuffer.store.copies.marks import MARKS
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.system.files import Files
from diskbuffer.writers import marks
from diskbuffer.writers.description import has_writers, read_description


def refuse_inside(path: Path) -> None:
    """Raise an error where a path that is to be written to is inside of something that is whole without it.

    Raises
    ------
    ReadOnlyError
        It is a mark, or in one.
    InputError
        It is in a store, or in a directory of several writers, none of whose stores it is.
    """
    real = Path(os.path.realpath(path))
    for above in real.parents:
        one = os.path.isdir(above / SEGMENTS)
        if not one and not has_writers(Files(above)):
            continue
        within, kept = real.relative_to(above), Path(MARKS if one else marks.PATHS.marks)
        if within.is_relative_to(kept):
            raise ReadOnlyError(
                f"{path} is in the marks of {above}, which stay as they are",
                advice=f"Read one with ReplayBuffer({str(above)!r}, mode='r', mark=NAME), and copy what you want to change",
            )
        if one:
            raise InputError(f"{path} is inside of the store {above}; give a path outside of it")
        if real.parent != above or read_description(Files(above)).find(real.name) is None:
            raise InputError(
                f"{path} is inside of {above}, which has the stores of several writers; open that with writer=NAME, or give "
                "another path"
            )
