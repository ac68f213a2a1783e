"""What a store is, as JSON that exports keep beside their data where there is room for it.

With it an import makes the store again: columns by their paths and dtypes, environments, metadata. Files of others have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from diskbuffer.errors import SchemaError, SourceError
from diskbuffer.formats.json_files import read_json, write_json
from diskbuffer.plugin import BUILT_IN, Contents, EpisodeData, Schema

NAME = "diskbuffer"  # of the attribute, or of the file before ".json"


def describe(contents: Contents, **more: Any) -> dict[str, Any]:
    """Return what is told of a store, and of how it was written, as JSON."""
    columns = {path: column for path, column in contents.columns.items() if path not in BUILT_IN}
    return {
        "version": 1,
        "columns": Schema.of(columns).to_attributes(),
        "there": list(columns),
        "n_envs": contents.n_envs,
        "frame_stack": contents.frame_stack,
        "padding": contents.padding,
        "environment": contents.environment,
        "metadata": contents.metadata,
        **more,
    }


def described(description: Any, where: Path) -> Contents:
    """Return what `describe` told, but for how many episodes there are; a SourceError where it cannot be that."""
    try:
        if description["version"] != 1:
            raise SourceError(f"{where} was exported by a newer diskbuffer; update this one")
        schema, n_envs, stack = Schema.from_attributes(description["columns"]), description["n_envs"], description["frame_stack"]
        columns = {str(path): schema[path] for path in description["there"]}
        attributes = [description["environment"], description["metadata"]]
        fits = all(isinstance(one, dict | None) for one in attributes) and description["padding"] in ("first", "zeros")
        if not fits or not (isinstance(n_envs, int) and isinstance(stack, int) and 0 < n_envs < 65536 and 0 < stack < 256):
            raise SourceError(f"{where}: what diskbuffer wrote there of its store is damaged")
        return Contents(
            columns,
            n_envs=n_envs,
            frame_stack=stack,
            padding=description["padding"],
            environment=attributes[0],
            metadata=attributes[1],
        )
    except (SchemaError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{where}: what diskbuffer wrote there of its store is damaged: {error!r}") from error


def read_description(directory: Path) -> dict[str, Any] | None:
    """Return what is in the file ``diskbuffer.json`` of a directory; None where there is none."""
    try:
        return read_json(directory / f"{NAME}.json")
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_description(directory: Path, description: Mapping[str, Any]) -> None:
    """Write the file ``diskbuffer.json`` of a directory."""
    write_json(directory / f"{NAME}.json", description)


def describe_episode(episode: EpisodeData) -> dict[str, Any]:
    """Return what is told of an episode where it is one of many files, as JSON."""
    endings = [flag for flag in ("terminated", "truncated") if episode.flag(flag)]
    ending = " and ".join(endings) or "cut off"
    told = {"steps": episode.steps, "ending": ending, "tag": episode.tag, "stream": episode.stream}
    return told | ({"values": dict(episode.values)} if episode.values else {})


def numbered(contents: Contents, episodes: int | None, steps: int | None, tags: bool = False) -> Contents:
    """Return contents with how many episodes and steps there are."""
    return replace(contents, episodes=episodes, steps=steps, tags=tags)
