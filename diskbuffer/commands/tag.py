"""``diskbuffer tag``: tags of episodes, in the store itself."""

from __future__ import annotations

from diskbuffer.commands.arguments import Where
from diskbuffer.commands.output import WELL
from diskbuffer.errors import InputError
from diskbuffer.plugin import counted


def tag(store: str, tag: str | None = None, /, *, where: Where = None, all: bool = False, remove: bool = False) -> int:
    """Tag episodes that are over, in place of the tag that they have. Not beside a training that writes to the same store.

    Beside several writers it works, as long as no learner writes columns of its own there.

    Parameters
    ----------
    store
        The directory of the store, or of several writers' stores, which is changed.
    tag
        The tag.
    all
        All that are over, in place of --where.
    remove
        Take their tags away: without TAG.
    """
    from diskbuffer.editing import tag as run

    if (tag is None) != remove:
        raise InputError("give a tag, or --remove to take tags away")
    if (where is None) != all:
        raise InputError('give --where CONDITION, such as --where "return > 10", or --all for every episode that is over')
    print(f"{counted(run(store, tag, where), 'episode')} {'without a tag' if tag is None else 'tagged'}")
    return WELL
