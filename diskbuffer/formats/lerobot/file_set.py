"""Sets of files of a data set: a file of data, one of the table of episodes and a video of each camera, all of the same episodes.

LeRobot may begin a new file of each kind on its own. Ours begin together, so that a set is there, or it is not: its file in the
table of episodes is written last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.formats.lerobot import images
from diskbuffer.formats.lerobot.arrays import arrow_type, pyarrow
from diskbuffer.formats.lerobot.encoding import Video
from diskbuffer.formats.lerobot.episodes import VALUES
from diskbuffer.formats.lerobot.features import Feature
from diskbuffer.formats.lerobot.info import DATA_PATH, EPISODES_PATH, VIDEO_PATH
from diskbuffer.formats.lerobot.statistics import NAMES

_COMPRESSION: dict[str, Any] = {"compression": "snappy", "use_dictionary": True}  # as LeRobot's


class FileSet:
    """A set of files that is being written.

    Parameters
    ----------
    root : pathlib.Path
        The data set's directory.
    number : int
        The sets before it.
    chunks_size : int
        Sets in a directory.
    features : sequence of Feature
        All, those that LeRobot counts by included.
    fps : int
    codec : str or None
        Of videos; None for lossless ones.
    """

    def __init__(
        self, root: Path, number: int, chunks_size: int, features: Sequence[Feature], fps: int, codec: str | None
    ) -> None:
        pa, parquet = pyarrow(), pyarrow("pyarrow.parquet")
        self._root, self._features = root, features
        self.place = dict(zip(("chunk_index", "file_index"), divmod(number, chunks_size), strict=True))
        self.episodes = self.rows = 0
        self._table: dict[str, list[Any]] = {}
        self._pending: list[Any] = []
        self._pending_bytes = 0
        self._data = _made(root / DATA_PATH.format(**self.place))
        in_data = [feature for feature in features if feature.dtype != "video"]
        types = [
            images.image_type() if feature.dtype == "image" else arrow_type(feature.dtype, feature.shape) for feature in in_data
        ]
        schema = pa.schema(
            list(zip([feature.name for feature in in_data], types, strict=True)), {"huggingface": described(in_data)}
        )
        self._schema = schema
        self._writer = parquet.ParquetWriter(self._data, schema, **_COMPRESSION)
        self.videos: dict[str, Video] = {}
        try:
            for feature in features:
                if feature.dtype == "video":
                    assert feature.pixels is not None
                    path = _made(root / VIDEO_PATH.format(video_key=feature.name, **self.place))
                    self.videos[feature.name] = Video(path, feature.pixels, fps, codec)
        except BaseException:
            self.close()
            raise

    def add(self, arrays: Mapping[str, Any]) -> None:
        """Add rows of data, as Arrow's arrays by feature."""
        table = pyarrow().Table.from_arrays([arrays[name] for name in self._schema.names], schema=self._schema)
        self._pending.append(table)
        self._pending_bytes += table.nbytes

    def add_episode(self, row: Mapping[str, Any], statistics: Mapping[str, Mapping[str, Any]]) -> None:
        """Add an episode to the table, once its rows are added: they become one row group, as LeRobot 0.6 has them."""
        if self._pending:
            self._writer.write_table(pyarrow().concat_tables(self._pending), row_group_size=row["length"])
        self._pending, self._pending_bytes = [], 0
        places = {f"{kind}/{name}": n for kind in ("data", "meta/episodes") for name, n in self.place.items()}
        places |= {f"videos/{key}/{name}": n for key in self.videos for name, n in self.place.items()}
        figures = {f"stats/{feature}/{name}": values[name] for feature, values in statistics.items() for name in NAMES}
        for name, value in {**row, **places, **figures}.items():
            self._table.setdefault(name, []).append(value)
        self.episodes += 1
        self.rows += row["length"]

    def data_size(self) -> int:
        """Return how many bytes the file of data has, about."""
        return self._data.stat().st_size + self._pending_bytes

    def finish(self) -> None:
        """Write what is left, and the table of episodes last."""
        pa, parquet = pyarrow(), pyarrow("pyarrow.parquet")
        self._writer.close()
        for video in self.videos.values():
            video.finish()
        arrays = {name: pa.array(values, self._type(name)) for name, values in self._table.items()}
        path = _made(self._root / EPISODES_PATH.format(**self.place))
        new = path.with_suffix(".new")
        parquet.write_table(pa.table(arrays), new, **_COMPRESSION)
        os.replace(new, path)

    def _type(self, name: str) -> Any:
        """Return the type of a column of the table of episodes."""
        pa = pyarrow()
        if name == "tasks":
            return pa.list_(pa.string())
        if name.startswith("stats/"):
            feature, _, which = name.removeprefix("stats/").rpartition("/")
            if which == "count":
                return pa.list_(pa.int64())
            of = next(one for one in self._features if one.name == feature)
            if of.pixels is not None:
                return pa.list_(pa.list_(pa.list_(pa.float64())))
            return pa.list_(pa.from_numpy_dtype(np.dtype(of.dtype)) if which in ("min", "max") else pa.float64())
        if name == VALUES:
            return pa.string()
        return pa.float64() if name.endswith("_timestamp") else pa.int64()

    def close(self) -> None:
        """Close the files, whole or not."""
        for video in self.videos.values():
            video.close()
        self._writer.close()


def file_sets(root: Path, chunks_size: int) -> list[Path]:
    """Return the files of the table of episodes of those sets of files that are there, in their order."""
    paths: list[Path] = []
    while True:
        chunk, file = divmod(len(paths), chunks_size)
        path = root / EPISODES_PATH.format(chunk_index=chunk, file_index=file)
        if not path.exists():
            return paths
        paths.append(path)


def described(features: Sequence[Feature]) -> str:
    """Return what the library `datasets` writes into a parquet file about its columns."""
    columns: dict[str, Any] = {}
    for feature in features:
        value = {"dtype": feature.dtype, "_type": "Value"}
        if feature.dtype == "image":
            columns[feature.name] = {"_type": "Image"}
        elif feature.shape == (1,):
            columns[feature.name] = value
        elif len(feature.shape) == 1:
            columns[feature.name] = {"feature": value, "length": feature.shape[0], "_type": "List"}
        else:
            kind = f"Array{len(feature.shape)}D"
            columns[feature.name] = {"shape": list(feature.shape), "dtype": feature.dtype, "_type": kind}
    return json.dumps({"info": {"features": columns}})


def _made(path: Path) -> Path:
    """Make a file's directory, and return the file's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
