"""What arrays of other programs are called as columns: each array has a column of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from diskbuffer.plugin import BUILT_IN, RESERVED_NAMES, TAG, escape_key

RESERVED = frozenset({*RESERVED_NAMES, *BUILT_IN, TAG})  # what a store, or a batch, has under these names is something else
GROUPS = RESERVED - {"info"}  # what no path may begin with

Keys = tuple[str, ...]  # what leads to an array: names of groups, and its own


def column_paths(arrays: Iterable[Keys], own: Mapping[str, str], taken: Collection[str] = ()) -> dict[Keys, str]:
    """Return the column's path of each array of a source. No two are the same: where one is taken, it has a "_" after it.

    Parameters
    ----------
    arrays : iterable of tuple of str
    own : mapping of str to str
        Names that the format has a meaning for, at the top: the paths of what they are.
    taken : collection of str
        Other names that are used up.
    """
    keys = list(dict.fromkeys(arrays))
    plain = {name: escape_key(name) for name in dict.fromkeys(name for name, *_ in keys) if name not in own}
    used = {*taken, *(path.split("/")[0] for path in own.values())}
    groups = {name for name, *inner in keys if inner}
    paths = dict(own)
    for name, path in plain.items():
        refused = used | (GROUPS if name in groups else RESERVED)
        while path in refused or (path != plain[name] and path in plain.values()):
            path += "_"
        used.add(path)
        paths[name] = path
    return {key: "/".join([paths[key[0]], *map(escape_key, key[1:])]) for key in keys}
