"""Values nested in dicts, as dict observations are, and the columns' paths that say where each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diskbuffer.schema.schema import escape_key, unescape_key


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Take values apart that are nested in dicts: ``{"obs": {"pixels": ...}}`` becomes ``{"obs/pixels": ...}``."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten({f"{name}/{escape_key(str(key))}": inner for key, inner in value.items()}))
        elif value is not None:
            flat[name] = value
    return flat


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Put a value in its place, nested as its path tells."""
    *parents, name = map(unescape_key, path.split("/"))
    for parent in parents:
        values = values.setdefault(parent, {})
    values[name] = value


def put_argument(values: dict[str, Any], path: str, value: Any) -> None:
    """Put a value in its place among the arguments of `ReplayBuffer.extend`: columns' names, and below them keys of dicts."""
    name, _, below = path.partition("/")
    if below:
        put(values.setdefault(name, {}), below, value)
    else:
        values[name] = value


def one_of(values: Any, n: Any) -> Any:
    """Return what an index, such as a number along the first axis, chooses of each of the values, nested or not."""
    return {name: one_of(part, n) for name, part in values.items()} if isinstance(values, dict) else values[n]


def leaves(values: Mapping[str, Any]) -> list[Any]:
    """Return what is in nested dicts and no dict itself."""
    return [leaf for value in values.values() for leaf in (leaves(value) if isinstance(value, Mapping) else [value])]
