"""Which array of a Dreamer file is which column of a store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskbuffer import Column
from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.options import names_in
from diskbuffer.formats.rows import column_of
from diskbuffer.plugin import BUILT_IN, Contents, Rows, either, escape_key, format_option, is_observation, unescape_key

FLAGS = ("is_first", "is_last", "is_terminal")
# Written anew in an export, and of no use elsewhere: places in the replay, and copies of `is_last`.
_BOOKKEEPING = ("stepid", "id", "reset", "consec", "discount")
_WITH_ACTIONS = ("logprob",)  # what agents write beside their actions


@dataclass(frozen=True)
class Keys:
    """The array of each column, by the column's path; flags are not part of it."""

    of: Mapping[str, str]
    columns: Mapping[str, Column]


def found_keys(arrays: Mapping[str, Rows], actions: str | Collection[str], where: Path) -> Keys:
    """Tell by their names which arrays are observations, and which are actions."""
    more = names_in("actions", actions)
    for name in more:
        if name not in arrays:
            raise InputError(f"there is no array {name!r} in {where}; there are {', '.join(arrays)}")
    rest = [name for name in arrays if name not in (*FLAGS, *_BOOKKEEPING, "reward")]
    acts = [name for name in rest if name in more or name == "action" or name.startswith(("action/", "act_"))]
    beside = [name for name in rest if name in _WITH_ACTIONS and name not in acts]
    obs = [name for name in rest if name not in acts and name not in beside]
    if not acts or not obs:
        raise SourceError(
            f"{where} has no {'observation' if acts else 'action'}: its arrays are {', '.join(arrays)}. "
            f"Say which are actions: {format_option('actions', 'NAME,NAME')}"
        )
    paths = {"obs" if len(obs) == 1 else f"obs/{_path(name)}": name for name in obs}
    for name in sorted(acts, key=lambda name: not name.startswith("action/")):  # "action" beside "action/action"
        path = "action" if len(acts) == 1 else f"action/{_path(name.removeprefix('action/'))}"
        paths[f"{path}_" if path in paths else path] = name
    paths |= {_path(name): name for name in beside}
    if "reward" in arrays:
        paths["reward"] = "reward"
    return Keys(paths, {path: column_of(arrays[name], where, name) for path, name in paths.items()})


def given_keys(contents: Contents) -> Keys:
    """Name an array for each column of a store."""
    columns = {path: column for path, column in contents.columns.items() if path not in BUILT_IN}
    names = {path: _name(path, column) for path, column in columns.items()}
    taken = (*FLAGS, *_BOOKKEEPING)
    for path, name in names.items():
        if name in taken or (name == "reward") != (path == "reward") or list(names.values()).count(name) > 1:
            raise InputError(
                f"the column {path!r} would be Dreamer's array {name!r}, which is another one: "
                f"leave it out by {either('columns=', '--columns')}"
            )
    return Keys(names, columns)


def described_keys(
    description: Mapping[str, Any], columns: Mapping[str, Column], arrays: Mapping[str, Rows], where: Path
) -> Keys:
    """Return the keys that an export told of."""
    of = description.get("keys")
    strings = isinstance(of, dict) and all(isinstance(name, str) for name in of.values())
    if not isinstance(of, dict) or not strings or of.keys() != columns.keys() or not all(name in arrays for name in of.values()):
        raise SourceError(f"{where}: its files do not have the arrays that diskbuffer.json tells of")
    for path, name in of.items():
        if column_of(arrays[name], where, name) != Column(columns[path].shape, columns[path].dtype):
            raise SourceError(f"{where}: {name!r} should be {columns[path]}, as diskbuffer.json tells")
    return Keys(of, columns)


def _path(name: str) -> str:
    return "/".join(escape_key(part) for part in name.split("/"))


def _name(path: str, column: Column) -> str:
    if path == "obs":
        return "image" if column.np_dtype == "uint8" and len(column.shape) == 3 else "vector"
    return "/".join(unescape_key(part) for part in (path.removeprefix("obs/") if is_observation(path) else path).split("/"))
