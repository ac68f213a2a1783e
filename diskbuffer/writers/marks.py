"""Marks of several writers' stores together, which a learner makes beside them; each is a directory of several writers itself.

    _shared/marks/NAME/zarr.json           the writers that there were, and the numbers of their streams
    _shared/marks/NAME/actor-3/            their stores: a copy that a reader makes, with the files of sealed segments shared
    _shared/marks/NAME/_shared/columns/    the learner's columns, copied, as they are written to in place

Writers are not asked, and go on meanwhile. So a mark has of each writer what it had added when its store was copied: all that had
been acknowledged before, and of some what came while others were copied. What they evict later stays in the mark.
"""

from __future__ import annotations

from diskbuffer.store.copies import marks
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import SHARED

PATHS = marks.MarkPaths(f"{SHARED}/marks", SHARED)


def names(files: Files) -> tuple[str, ...]:
    """Return the names of the marks of a directory of several writers, the oldest first."""
    return marks.names(files, PATHS)


def find(files: Files, name: str) -> Files:
    """Return the files of a mark; an InputError where there is none of that name."""
    return marks.find(files, name, PATHS)


def remove(files: Files, name: str) -> None:
    """Remove a mark, and give back the space that it alone takes."""
    marks.remove(files, name, PATHS)
