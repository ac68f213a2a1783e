"""Episodes to data sets of LeRobot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import InputError
from diskbuffer.formats.json_files import write_json
from diskbuffer.formats.lerobot import encoding, images
from diskbuffer.formats.lerobot.arrays import pyarrow, to_arrow
from diskbuffer.formats.lerobot.episodes import STREAM, VALUES
from diskbuffer.formats.lerobot.features import Feature, planned
from diskbuffer.formats.lerobot.file_set import FileSet, file_sets
from diskbuffer.formats.lerobot.info import DATA, DATA_PATH, EPISODES, INFO, OWN, STATISTICS, VIDEO_PATH
from diskbuffer.formats.lerobot.names import DONE, TERMINATED, TRUNCATED
from diskbuffer.formats.lerobot.statistics import NAMES, Numbers, Pictures, Together
from diskbuffer.formats.lerobot.tasks import Tasks
from diskbuffer.plugin import Contents, EpisodeData, integer

_BLOCK = 8 * 1024**2  # bytes of rows that are written at a time
_MOST_ROWS = 8192
_MOST_EPISODES = 10_000  # of a set of files, whose table is in memory until it is whole
# Of a video, in seconds. LeRobot looks frames up by their time as float32, and must find it within 0.1 ms: from 1024 seconds on,
# float32 has steps of 0.12 ms.
_MOST_SECONDS = 1024
_COUNTED = (
    Feature("timestamp", "", Column((), "float32"), "float32", (1,)),
    *(Feature(name, "", Column((), "int64"), "int64", (1,)) for name in ("frame_index", "episode_index", "index", "task_index")),
)
_FLAGS = tuple(Feature(name, "", Column((), "bool"), "bool", (1,)) for name in (DONE, TERMINATED, TRUNCATED))


def losses(contents: Contents, fps: int | None = None, **_: Any) -> Mapping[str, str]:
    """Return what a data set of LeRobot cannot hold."""
    lost = {}
    known = (contents.metadata or {}).get("fps")
    if fps is None and isinstance(known, float) and not known.is_integer():
        lost["fps"] = f"{known} frames a second: the number is whole there, and would be {_fps(known, chosen=False)}"
    if contents.final:
        lost["final_obs"] = "an episode of T steps has T observations there: the final ones are left out"
    if contents.derived:
        lost["derived"] = f"that {', '.join(sorted(contents.derived))} were computed from others: they are features like others"
    return lost


def instruction_of(episode: EpisodeData) -> str:
    """Return what an episode's task is called: the value "instruction", or its tag."""
    instruction = episode.values.get("instruction")
    return instruction if isinstance(instruction, str) and instruction else episode.tag


class LeRobotWriter:
    """Write a data set of LeRobot v3, one set of files after the other: after a kill it goes on after the last that is whole.

    Parameters
    ----------
    path : pathlib.Path
        Its directory.
    contents : Contents
    pictures : {"lossless", "image", "video"}
        What observations of bytes that are grey or RGB pictures become: lossless videos, PNG in the parquet files, or lossy
        videos, as LeRobot's own are.
    codec : {"libsvtav1", "h264", "hevc"}
        Of lossy videos; AV1 as LeRobot's.
    fps : int, optional
        Steps a second. By default what a data set had from which the store was made, else 30.
    robot_type : str, optional
    data_files_size_in_mb, video_files_size_in_mb, chunks_size : int
        When a new file is begun, and how many files a directory has; LeRobot's own defaults.

    Attributes
    ----------
    held : int
        Episodes in sets of files that are whole.
    """

    def __init__(
        self,
        path: Path,
        contents: Contents,
        *,
        pictures: str = "lossless",
        codec: str = "libsvtav1",
        fps: int | None = None,
        robot_type: str | None = None,
        data_files_size_in_mb: int = 100,
        video_files_size_in_mb: int = 200,
        chunks_size: int = 1000,
    ) -> None:
        if pictures not in ("lossless", "image", "video") or codec not in encoding.CODECS:
            raise InputError(
                f"pictures must be 'lossless', 'image' or 'video', and codec one of {', '.join(encoding.CODECS)}, found "
                f"{pictures!r} and {codec!r}"
            )
        data_files_size_in_mb = integer("data_files_size_in_mb", data_files_size_in_mb)
        video_files_size_in_mb = integer("video_files_size_in_mb", video_files_size_in_mb)
        chunks_size = integer("chunks_size", chunks_size)
        facts = _facts(contents)
        self._root, self._contents, self._chunks_size = path, contents, chunks_size
        self._fps = _fps((contents.metadata or {}).get("fps") if fps is None else fps, chosen=fps is not None)
        self._robot = facts.get("robot_type") if robot_type is None else robot_type
        self._names = facts["names"] if isinstance(facts.get("names"), dict) else {}
        self._sizes = {"data_files_size_in_mb": data_files_size_in_mb, "video_files_size_in_mb": video_files_size_in_mb}
        self._columns = planned(contents.columns, "image" if pictures == "image" else "video")
        self._codec = codec if pictures == "video" else None
        for feature in self._columns:
            if feature.pixels is not None and self._codec:
                encoding.check(feature.name, feature.pixels, self._codec)
        self._features = (*self._columns, *_FLAGS, *_COUNTED)
        self._files: FileSet | None = None
        self._resume()

    def _resume(self) -> None:
        """Find what is there from a run that was killed, and remove what is not whole."""
        (self._root / "meta").mkdir(parents=True, exist_ok=True)
        tables = file_sets(self._root, self._chunks_size)
        self._file_sets = len(tables)
        self.held = self._steps = 0
        for path in tables:
            for length in pyarrow("pyarrow.parquet").read_table(path, columns=["length"]).column("length").to_pylist():
                self.held += 1
                self._steps += length
        whole = {(chunk, file) for chunk, file in (divmod(n, self._chunks_size) for n in range(self._file_sets))}
        kept = {DATA_PATH.format(chunk_index=c, file_index=f) for c, f in whole}
        keys = [feature.name for feature in self._columns if feature.dtype == "video"]
        kept |= {VIDEO_PATH.format(video_key=key, chunk_index=c, file_index=f) for c, f in whole for key in keys}
        for directory in (DATA, "videos"):
            for file in (self._root / directory).rglob("*"):
                if file.is_file() and str(file.relative_to(self._root)) not in kept:
                    file.unlink()
        for new in (self._root / EPISODES).rglob("*.new"):
            new.unlink()
        self._tasks = Tasks(self._root)
        self._number = self.held

    def write(self, episode: EpisodeData) -> None:
        """Write an episode."""
        files = self._room_for(episode.steps)
        steps, instruction = episode.steps, instruction_of(episode)
        task = self._tasks.number(instruction)
        statistics: dict[str, Numbers | Pictures] = {
            feature.name: Pictures(steps) if feature.pixels is not None else Numbers(steps) for feature in self._features
        }
        begin = {key: video.frames for key, video in files.videos.items()}
        row_bytes = sum(feature.column.row_bytes for feature in self._features)
        block = max(1, min(_MOST_ROWS, _BLOCK // row_bytes))
        for first in range(0, steps, block):
            last = min(first + block, steps)
            arrays: dict[str, Any] = {}
            for feature in self._columns:
                rows = np.asarray(episode.columns[feature.path][first:last])
                if feature.pixels is None:
                    numbers = feature.numbers(rows)
                    statistics[feature.name].add(first, numbers)
                    arrays[feature.name] = to_arrow(numbers)
                    continue
                pixels = feature.pixels.from_rows(rows)
                statistics[feature.name].add(first, pixels)
                if feature.dtype == "video":
                    files.videos[feature.name].add(pixels)
                else:
                    arrays[feature.name] = images.to_arrow(pixels, first)
            for name, values in {**_flags(episode, first, last), **self._counted(first, last, task)}.items():
                statistics[name].add(first, values[:, None])
                arrays[name] = to_arrow(values[:, None])
            files.add(arrays)
        row: dict[str, Any] = {
            "episode_index": self._number,
            "tasks": [instruction],
            "length": steps,
            "dataset_from_index": self._steps,
            "dataset_to_index": self._steps + steps,
        }
        for key, video in files.videos.items():
            row |= {
                f"videos/{key}/from_timestamp": begin[key] / self._fps,
                f"videos/{key}/to_timestamp": video.frames / self._fps,
            }
        if self._contents.n_envs > 1:
            row[STREAM] = episode.stream
        if self._contents.values or self._contents.tags:
            row[VALUES] = json.dumps({**episode.values, "tag": episode.tag})
        files.add_episode(row, {name: figures.result() for name, figures in statistics.items()})
        self._number += 1
        self._steps += steps

    def _counted(self, first: int, last: int, task: int) -> dict[str, npt.NDArray[Any]]:
        """Return what LeRobot counts steps by."""
        frames = np.arange(first, last)
        return {
            "timestamp": (frames / self._fps).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(len(frames), self._number),
            "index": frames + self._steps,
            "task_index": np.full(len(frames), task),
        }

    def _room_for(self, steps: int) -> FileSet:
        """Return the set of files that the next episode is to be in: the last one, if there is room in it for so many steps."""
        files = self._files
        if files is not None and files.rows:
            grown = 1 + steps / files.rows
            most_data, most_video = (size * 1024**2 for size in self._sizes.values())
            if (
                files.data_size() * grown >= most_data
                or any(video.size * grown >= most_video for video in files.videos.values())
                or (files.videos and files.rows + steps > _MOST_SECONDS * self._fps)
                or files.episodes >= _MOST_EPISODES
            ):
                self._finish_files()
        if self._files is None:
            self._files = FileSet(self._root, self._file_sets, self._chunks_size, self._features, self._fps, self._codec)
        return self._files

    def _finish_files(self) -> None:
        assert self._files is not None
        self._tasks.write()
        self._files.finish()
        self._files = None
        self._file_sets += 1

    def finish(self) -> None:
        """Write the last set of files, the statistics, and info.json."""
        if self._files is not None:
            self._finish_files()
        self._tasks.write()
        write_json(self._root / STATISTICS, self._statistics(), indent=4, ensure_ascii=False)
        write_json(self._root / INFO, self._info(), indent=4, ensure_ascii=False)

    def _statistics(self) -> dict[str, Any]:
        """Return the statistics of all episodes, from the tables of all sets of files, one after the other."""
        together = Together()
        for path in file_sets(self._root, self._chunks_size):
            table = pyarrow("pyarrow.parquet").read_table(path)
            for feature in self._features:
                of = {name: np.array(table.column(f"stats/{feature.name}/{name}").to_pylist()) for name in NAMES}
                together.add(feature.name, of)
        return together.result()

    def _info(self) -> dict[str, Any]:
        contents = self._contents
        own = {
            "version": 1,
            "columns": {feature.name: _described(feature) for feature in self._columns},
            "n_envs": contents.n_envs,
            "frame_stack": contents.frame_stack,
            "padding": contents.padding,
            "environment": contents.environment,
            "metadata": contents.metadata,
        }
        videos = any(feature.dtype == "video" for feature in self._columns)
        return {
            "codebase_version": "v3.0",
            "robot_type": self._robot,
            "total_episodes": self._number,
            "total_frames": self._steps,
            "total_tasks": len(self._tasks),
            "chunks_size": self._chunks_size,
            **self._sizes,
            "fps": self._fps,
            "splits": {"train": f"0:{self._number}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if videos else None,
            "features": {feature.name: self._feature(feature) for feature in self._features},
            OWN: own,
        }

    def _feature(self, feature: Feature) -> dict[str, Any]:
        entry = feature.described()
        if feature.pixels is None and feature.name in self._names:
            entry["names"] = self._names[feature.name]
        if feature.dtype == "video":
            assert feature.pixels is not None
            entry["info"] = encoding.described(feature.pixels, self._fps, self._codec)
        return entry

    def close(self) -> None:
        """Close files, finished or not."""
        if self._files is not None:
            self._files.close()
        self._files = None


def _flags(episode: EpisodeData, first: int, last: int) -> dict[str, npt.NDArray[np.bool_]]:
    terminated, truncated = (
        np.asarray(episode.columns[name][first:last]) if name in episode.columns else np.zeros(last - first, bool)
        for name in ("terminated", "truncated")
    )
    return {DONE: terminated | truncated, TERMINATED: terminated, TRUNCATED: truncated}


def _described(feature: Feature) -> dict[str, Any]:
    """Describe a column, as a reader of ours restores it."""
    column = feature.column
    entry = {"path": feature.path, "shape": list(column.shape), "dtype": column.np_dtype.name, "allow_nan": column.allow_nan}
    return entry | ({"codec": column.codec} if column.codec else {})


def _facts(contents: Contents) -> Mapping[str, Any]:
    """Return what a store's metadata says of the data set that it was made of; nothing where it was not."""
    facts = (contents.metadata or {}).get("lerobot")
    return facts if isinstance(facts, dict) else {}


def _fps(fps: Any, *, chosen: bool) -> int:
    if fps is None:
        return 30
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 1 <= fps <= 1000 or fps != int(fps):
        if chosen:
            raise InputError(f"fps must be an integer from 1 to 1000, found {fps!r}")
        return max(1, round(fps)) if isinstance(fps, float) and 0 < fps <= 1000 else 30
    return int(fps)
