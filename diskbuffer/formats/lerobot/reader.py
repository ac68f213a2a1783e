"""LeRobot's data sets as a source of episodes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError, LossError, SourceError
from diskbuffer.formats.lerobot.episodes import VALUES, Episodes, read_episodes
from diskbuffer.formats.lerobot.features import column_features
from diskbuffer.formats.lerobot.files import Files, Rows
from diskbuffer.formats.lerobot.info import EPISODES, OWN, SUBTASKS, Info, read_info
from diskbuffer.formats.lerobot.names import DONE, TERMINATED, TRUNCATED
from diskbuffer.formats.lerobot.statistics import read_statistics
from diskbuffer.plugin import Contents, EpisodeData, either, format_option, is_sane, values_that_fit

_CHECKED = 65536  # rows that are checked at a time
_MOST_STREAMS = 2**16
_LONGEST_TAG = 200  # characters; a longer task is the instruction alone
_TOLERANCE = 1e-3  # of a frame's length, and what float32 rounds: how far a time may be from its frame's


class LeRobotSource:
    """Read a data set of LeRobot v3.

    Parameters
    ----------
    path : pathlib.Path
        Its directory.
    timestamps : bool
        Whether the steps' times become a column, "timestamp". If not, they must be the frames' number divided by fps.
    done : {"terminated", "truncated", "column"}
        What `next.done` is where there is no `next.terminated`: a flag, which may be set in the last step only, or a column of
        its own, "next/done".

    Raises
    ------
    SourceError
        It is none, or is damaged. Files of data are opened, and checked, when their turn comes.
    """

    def __init__(self, path: Path, *, timestamps: bool = False, done: str = "terminated") -> None:
        if not isinstance(timestamps, bool) or done not in ("terminated", "truncated", "column"):
            raise InputError(
                "timestamps must be true or false, and done 'terminated', 'truncated' or 'column', found "
                f"{timestamps!r} and {done!r}"
            )
        self._info = info = read_info(Path(path))
        self._timestamps, self._done = timestamps, done
        self._features, strings = column_features(info.features, info.own.get("columns", {}), timestamps, done)
        self._n_envs = _within(info.own, "n_envs", 1, _MOST_STREAMS)
        videos = [feature.name for feature in self._features if feature.dtype == "video"]
        self._episodes = read_episodes(info, videos, self._n_envs)
        self._files = Files(info, self._features, self._episodes)
        self._tags, self._values, lost = _given(self._episodes)
        self.losses = _losses(info, strings, self._episodes) | lost

    @property
    def contents(self) -> Contents:
        """What the data set holds."""
        info, own = self._info, self._info.own
        return Contents(
            {feature.path: feature.column for feature in self._features},
            info.episodes,
            info.steps,
            final=False,
            environment=own.get("environment"),
            metadata={"fps": info.fps, **((own.get("metadata") or {}) if own else {"lerobot": _facts(info)})},
            n_envs=self._n_envs,
            frame_stack=_within(own, "frame_stack", 1, 1000),
            padding=str(own.get("padding", "first")),
            tags=any(self._tags),
            arrays=read_statistics(info.root, self._features),
            values=tuple(sorted({name for row in self._values for name in row})),
        )

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes."""
        table = self._episodes
        for number in range(len(table)):
            self._files.go_to(number)
            self._check(number)
            columns: dict[str, Any] = {feature.path: Rows(self._files, feature, number) for feature in self._features}
            columns |= self._flags(number)
            tag, values = self._tags[number], self._values[number]
            yield EpisodeData(columns, int(table.length[number]), tag, int(table.stream[number]), values=values)

    def _check(self, number: int) -> None:
        """Raise where an episode's rows are not those of this episode, in order and at regular times."""
        steps, fps = int(self._episodes.length[number]), self._info.fps
        for first in range(0, steps, _CHECKED):
            last = min(first + _CHECKED, steps)
            part = partial(self._files.column, number=number, first=first, last=last)
            frames = np.arange(first, last)
            if not (part("episode_index", "int64") == number).all() or not np.array_equal(part("frame_index", "int64"), frames):
                raise SourceError(f"{self._files.path}: the rows of episode {number} are not where the table of episodes says")
            if self._timestamps:
                continue
            expected = frames / fps
            wrong = np.abs(part("timestamp", "float64") - expected) > _TOLERANCE / fps + np.spacing(expected.astype(np.float32))
            if wrong.any():
                raise LossError(
                    f"{self._files.path}: the times of episode {number} are not those of {fps} frames a second, and a store has "
                    f"no times; to have them as a column, say {either('timestamps=True', '--option timestamps=true')}"
                )

    def _flags(self, number: int) -> dict[str, npt.NDArray[np.bool_]]:
        """Return the flags of an episode."""
        features, steps = self._info.features, int(self._episodes.length[number])
        names = {flag: name for flag, name in (("terminated", TERMINATED), ("truncated", TRUNCATED)) if name in features}
        if "terminated" not in names and DONE in features and self._done != "column":
            names[self._done] = DONE
        flags = {flag: self._files.column(name, "bool", number, 0, steps) for flag, name in names.items()}
        for flag, values in flags.items():
            if values[:-1].any():
                raise SourceError(
                    f"{self._files.path}: {names[flag]} is set within episode {number}; a flag may be set in the last step only"
                    + (f"; to have it as a column, say {format_option('done', 'column')}" if names[flag] == DONE else "")
                )
        return flags

    def close(self) -> None:
        """Close files."""
        self._files.close()


def _given(episodes: Episodes) -> tuple[list[str], list[dict[str, Any]], dict[str, str]]:
    """Return the tag and the values of each episode, and what of them is lost.

    Of others' data sets these are its task: as its tag, where that is not too long, and as its instruction.
    """
    tasks = [episodes.task_names[number] for number in episodes.task.tolist()]
    rows: list[Any] = [{"instruction": task} if task else {} for task in tasks]
    tags = [task if len(task) <= _LONGEST_TAG else "" for task in tasks]
    if episodes.values is not None:
        try:
            rows = [json.loads(text) for text in episodes.values]
            tags = [str(row.pop("tag", tag)) for row, tag in zip(rows, tags, strict=True)]
        except (ValueError, RecursionError, AttributeError, TypeError) as error:
            raise SourceError(f"{EPISODES}: {VALUES!r} is damaged: {error}") from error
    kept, left = values_that_fit(rows)
    lost = {"values": f"what episodes cannot be given by name: {', '.join(sorted(left))[:500]}"} if left else {}
    return tags, kept, lost


def _within(own: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = own.get(name, least)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SourceError(f"info.json: {name!r} under {OWN!r} must be from {least} to {most}, found {str(value)[:100]}")
    return value


def _losses(info: Info, strings: list[str], episodes: Episodes) -> dict[str, str]:
    lost = {}
    if strings:
        lost["strings"] = f"features that are no numbers and no pictures: {', '.join(strings)[:500]}"
    if episodes.several:
        lost["tasks"] = "which step has which task: an episode's tasks become one tag, joined by '; '"
    if (info.root / SUBTASKS).exists():
        lost["subtasks"] = "the texts of subtasks; their numbers are a column"
    return lost


def _facts(info: Info) -> dict[str, Any]:
    """Return what there is to know of a data set of others, for the store's metadata: a writer takes it from there."""
    names = {name: feature["names"] for name, feature in info.features.items() if feature.get("names") is not None}
    facts = {"robot_type": info.robot}
    full = {**facts, "names": names}
    return full if is_sane({"lerobot": full}) and len(json.dumps(full)) < 32 * 1024 else facts
