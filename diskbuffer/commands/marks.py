"""``diskbuffer marks``: the marks of a store that need not be open."""

from __future__ import annotations

import diskbuffer
from diskbuffer.commands.arguments import Json
from diskbuffer.commands.output import WELL, show_json, show_lines


def marks(path: str, /, *, remove: str | None = None, json: Json = False) -> int:
    """List a store's marks, the oldest first; or remove one, which takes no space, as opening does.

    Parameters
    ----------
    path
        The directory of the store.
    remove
        The name of a mark to remove, which gives its space back. Nobody may have the store open for writing.
    """
    if remove is not None:
        diskbuffer.remove_mark(path, remove)
    names = diskbuffer.marks(path)
    if json:
        show_json(list(names))
    elif remove is None:
        show_lines(*(names or ["There are no marks."]))
    return WELL
