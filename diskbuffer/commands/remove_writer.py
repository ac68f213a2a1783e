"""``diskbuffer remove-writer``: a directory of several writers without the store of one that nobody comes back to."""

from __future__ import annotations

import diskbuffer
from diskbuffer.commands.output import WELL


def remove_writer(path: str, name: str, /) -> int:
    """Remove the store of one of several writers, with all its steps. Nobody may have it open for writing.

    Parameters
    ----------
    path
        The directory of all writers.
    name
        The writer, as `diskbuffer info` lists it.
    """
    diskbuffer.remove_writer(path, name)
    return WELL
