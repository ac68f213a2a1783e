"""What columns are called as features of LeRobot, and features as columns.

Dots are slashes, and `observation` is `obs`: "observation.images.front" is the column "obs/images/front". A single column "obs"
becomes "observation.image" or "observation.state". "next.reward" is the column "reward"; `next.done`, `next.terminated` and
`next.truncated` are flags. Where a name is taken, a "_" is put after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from diskbuffer.formats.naming import GROUPS, RESERVED
from diskbuffer.plugin import escape_key, unescape_key

DONE, TERMINATED, TRUNCATED = "next.done", "next.terminated", "next.truncated"
COUNTED = ("timestamp", "frame_index", "episode_index", "index", "task_index")  # features of every data set
_REWARD = "next.reward"


def feature_names(paths: Iterable[str], pictures: Collection[str]) -> dict[str, str]:
    """Return the features' names by the columns' paths; `pictures` are the paths of those that are pictures."""
    names: dict[str, str] = {}
    taken = {*COUNTED, "task", DONE, TERMINATED, TRUNCATED}
    for path in paths:
        if path == "obs":
            name = "observation.image" if path in pictures else "observation.state"
        elif path == "reward":
            name = _REWARD
        else:
            first, *rest = path.split("/")
            name = ".".join(["observation" if first == "obs" else first, *map(_plain, rest)])
        while name in taken:
            name += "_"
        taken.add(name)
        names[path] = name
    return names


def _plain(part: str) -> str:
    """Return a part of a path as the key that it stands for, unless that would look like several parts."""
    key = unescape_key(part)
    return part if "." in key or "/" in key else key


def column_paths(names: Sequence[str]) -> dict[str, str]:
    """Return the columns' paths by the features' names."""
    paths: dict[str, str] = {}
    taken = {*RESERVED}
    known, below = set(names), {name.split(".")[0] for name in names if "." in name}
    for name in names:
        first, slash, rest = _path(name, known, below).partition("/")
        path = f"{first}{'_' if slash and first in GROUPS else ''}{slash}{rest}"
        while path in taken:
            path += "_"
        taken.add(path)
        paths[name] = path
    return paths


def _path(name: str, names: Collection[str], below: Collection[str]) -> str:
    if name == _REWARD:
        return "reward"
    parts = name.split(".")
    if parts[0] == "observation":
        if len(parts) == 1 and "observation" in below:
            return "obs/observation"
        parts[0] = "obs"
    inside = [".".join(name.split(".")[:n]) for n in range(1, len(parts))]
    if "" in parts or any(outer in names and outer != "observation" for outer in inside):
        first, rest = parts[0], ".".join(parts[1:])  # it would lie inside another column: "action.x" beside "action"
        return f"obs/{escape_key(rest or '_')}" if first == "obs" else escape_key(name)
    return "/".join(escape_key(part) for part in parts)
