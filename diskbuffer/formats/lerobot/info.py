"""`meta/info.json`: what a data set says of itself, checked."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from diskbuffer.errors import SourceError
from diskbuffer.formats.json_files import read_json

INFO = "meta/info.json"
STATISTICS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
SUBTASKS = "meta/subtasks.parquet"
EPISODES = "meta/episodes"
DATA = "data"
_PLACE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
EPISODES_PATH = f"{EPISODES}/{_PLACE}.parquet"
DATA_PATH = f"{DATA}/{_PLACE}.parquet"
VIDEO_PATH = f"videos/{{video_key}}/{_PLACE}.mp4"
OWN = "diskbuffer"  # the key of what we need to restore a store
_MOST_FPS = 1_000_000


@dataclass(frozen=True)
class Info:
    """What is in info.json.

    Attributes
    ----------
    root : pathlib.Path
        The data set's directory.
    fps : float
        Frames a second.
    episodes, steps : int
        How many it says there are.
    robot : str or None
    features : mapping
        By name, not checked.
    own : mapping
        What we wrote of the store that it was made of; empty if it was not.
    data_path, video_path : str
        Templates of paths.
    """

    root: Path
    fps: float
    episodes: int
    steps: int
    robot: str | None
    features: Mapping[str, Any]
    own: Mapping[str, Any]
    data_path: str
    video_path: str

    def data_file(self, chunk: int, file: int) -> Path:
        """Return the path of a file of data."""
        return self.root / _filled(self.data_path, {"chunk_index": chunk, "file_index": file})

    def video_file(self, key: str, chunk: int, file: int) -> Path:
        """Return the path of a file of a feature's pictures."""
        return self.root / _filled(self.video_path, {"video_key": key, "chunk_index": chunk, "file_index": file})


def read_info(root: Path) -> Info:
    """Read and check info.json; a SourceError where it is none, or the data set is of another version."""
    path = root / INFO
    try:
        info = read_json(path)
    except FileNotFoundError:
        raise SourceError(f"{root} is no data set of LeRobot: expected {INFO} in it, found none") from None
    except NotADirectoryError:
        raise SourceError(f"{root} is no data set of LeRobot: expected a directory, found a file") from None
    version = _of(info, "codebase_version", str)
    if not version.startswith("v3."):
        raise SourceError(
            f"{root} is of LeRobot's version {version[:20]}, and v3 is read; convert it by "
            "python -m lerobot.datasets.v30.convert_dataset_v21_to_v30"
        )
    fps = _of(info, "fps", int, float)
    if not 0 < fps <= _MOST_FPS:
        raise SourceError(f"info.json: fps must be a number of frames a second, found {fps}")
    robot, own = info.get("robot_type"), info.get(OWN) or {}
    if not isinstance(own, dict) or not isinstance(own.get("columns", {}), dict):
        raise SourceError(f"info.json: what we wrote under {OWN!r} is damaged, found {str(own)[:200]}")
    return Info(
        root,
        fps,
        _count(info, "total_episodes"),
        _count(info, "total_frames"),
        str(robot)[:500] if robot is not None else None,
        _of(info, "features", dict),
        own,
        _template(info.get("data_path", DATA_PATH), {"chunk_index", "file_index"}),
        _template(info.get("video_path") or VIDEO_PATH, {"chunk_index", "file_index", "video_key"}),
    )


def _of(info: Mapping[str, Any], name: str, *kinds: type) -> Any:
    if not isinstance(info.get(name), kinds) or isinstance(info[name], bool):
        raise SourceError(f"info.json: {name!r} must be {' or '.join(kind.__name__ for kind in kinds)}, found {info.get(name)!r}")
    return info[name]


def _count(info: Mapping[str, Any], name: str) -> int:
    count: int = _of(info, name, int)
    if count < 0:
        raise SourceError(f"info.json: {name!r} must not be negative, found {count}")
    return count


def _template(template: Any, fields: set[str]) -> str:
    """Check a template of paths: what is filled in are numbers, and names."""
    try:
        parts = list(string.Formatter().parse(template))
    except (TypeError, ValueError) as error:
        raise SourceError(f"info.json: {str(template)[:200]!r} is no template of a path ({error})") from error
    for _, field, form, conversion in parts:
        if field is not None and (field not in fields or conversion or not re.fullmatch(r"(0?[1-9]d?|d)?", form or "")):
            raise SourceError(
                f"info.json: the path {template[:200]!r} may have {', '.join(sorted(fields))} in it, found {field!r}"
            )
    return str(template)


def _filled(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template in; a SourceError where that leads out of the data set."""
    try:
        filled = template.format(**values)
    except ValueError as error:
        raise SourceError(f"info.json: the path {template[:200]!r} cannot be filled in ({error})") from error
    path = PurePosixPath(filled)
    if path.is_absolute() or ".." in path.parts or "\0" in filled:
        raise SourceError(f"info.json: the path {template[:200]!r} leads out of the data set: {filled[:200]!r}")
    return filled
