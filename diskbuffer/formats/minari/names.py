"""How columns of a store are called in a Minari data set, and the other way round.

Observations, actions, rewards and flags have places of their own; of an episode's metadata, so has its seed. All other columns
are infos. Minari has an info of `reset` ahead of those of the steps: that is another column, `reset_infos/...`, the same value in
every row of an episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from diskbuffer.plugin import escape_key, is_observation, unescape_key

Name = tuple[str, ...]  # of an array of Minari's: ("observations", "camera"), ("rewards",), ("infos", "success")
INFOS, RESET = "infos/", "reset_infos/"
SEED, SEEDED = "episode/seed", "episode/has_seed"  # columns; the second only where some episodes have none
FIXED = ("reward", "terminated", "truncated", SEED, SEEDED)


def is_action(path: str) -> bool:
    """Return whether a column is part of the action."""
    return path == "action" or path.startswith("action/")


def infos_of(paths: Iterable[str]) -> dict[str, Name]:
    """Return the infos that are written of columns, by column; without those of `reset`, which go with them."""
    infos = {}
    for path in paths:
        if is_observation(path) or is_action(path) or path in FIXED or path.startswith(RESET):
            continue
        infos[path] = ("infos", *map(unescape_key, path.removeprefix(INFOS).split("/")))
    return infos


def column_of(name: Name, columns: Mapping[str, str]) -> str:
    """Return the column that an info is read to, as our export noted it, or by its name."""
    path = "/".join(escape_key(key) for key in name[1:])
    return columns.get(path, f"{INFOS}{path}")
