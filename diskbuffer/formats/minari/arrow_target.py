"""Minari's Arrow and Parquet layouts, written."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.formats.json_files import write_json
from diskbuffer.formats.minari import metadata as metadata_module
from diskbuffer.formats.minari.plan import Plan
from diskbuffer.formats.minari.spaces import Leaf, Space
from diskbuffer.plugin import EpisodeData, escape_key, require

MOST_ROWS = 2**17  # of an episode: Minari takes each batch that pyarrow reads for an episode, and batches have so many rows


class ArrowWriter:
    """Write each episode to a directory of its own. An episode is whole once its metadata are there.

    Parameters
    ----------
    directory : pathlib.Path
    plan : Plan
    data_format : {"arrow", "parquet"}
    codec : str
        As pyarrow calls it, or "none".
    """

    def __init__(self, directory: Path, plan: Plan, data_format: str, codec: str) -> None:
        self._pa: Any = require("pyarrow", "pyarrow", "minari", "to write Minari's Arrow layout")
        require("pyarrow.parquet" if data_format == "parquet" else "pyarrow.ipc", "pyarrow", "minari")
        self._directory, self._plan, self._format, self._codec = directory, plan, data_format, codec
        (directory / metadata_module.FILE).unlink(missing_ok=True)
        self.held = self._steps = 0
        while (directory / str(self.held) / metadata_module.FILE).is_file():
            self._steps += metadata_module.read_json(directory / str(self.held) / metadata_module.FILE, 2**24)["total_steps"]
            self.held += 1
        shutil.rmtree(directory / str(self.held), ignore_errors=True)
        self._episodes = self.held

    def write(self, episode: EpisodeData) -> None:
        """Write one episode. All of it is in memory, as Minari's layout has it: one batch."""
        if episode.steps + 1 > MOST_ROWS:
            raise InputError(
                f"episode {self._episodes} has {episode.steps} steps, and Minari reads {MOST_ROWS - 1} at most of this layout; "
                "write data_format='hdf5'"
            )
        place = self._directory / str(self._episodes)
        place.mkdir()
        batch = self._batch(episode)
        file = place / f"part-0.{self._format}"
        codec = None if self._codec == "none" else self._codec
        with open(file, "wb") as sink:  # as pyarrow's own would be closed when it is collected, whatever happened
            if self._format == "parquet":
                parquet = self._pa.parquet
                with parquet.ParquetWriter(sink, batch.schema, compression=codec or "none", use_dictionary=False) as writer:
                    writer.write_batch(batch, row_group_size=MOST_ROWS)
            else:
                options = self._pa.ipc.IpcWriteOptions(compression=codec)
                with self._pa.ipc.new_file(sink, batch.schema, options=options) as writer:
                    writer.write_batch(batch)
        write_json(place / metadata_module.FILE, self._plan.episode_metadata(self._episodes, episode))
        self._episodes += 1
        self._steps += episode.steps

    def _batch(self, episode: EpisodeData) -> Any:
        plan, columns, pa = self._plan, episode.columns, self._pa
        leaves = {leaf.path: leaf for _, leaf in plan.leaves}
        arrays = {
            "observations": self._of_space(plan.observations, "obs", leaves, episode),
            "actions": self._of_space(plan.actions, "action", leaves, episode),
            "rewards": pa.array(_padded(columns["reward"][0 : episode.steps])),
            "terminations": pa.array(_padded(columns["terminated"][0 : episode.steps])),
            "truncations": pa.array(_padded(columns["truncated"][0 : episode.steps])),
        }
        fields = [pa.field(name, array.type) for name, array in arrays.items()]
        if plan.infos:
            tree: dict[str, Any] = {}
            for info in plan.infos:
                inner = tree
                for key in info.name[1:-1]:
                    inner = inner.setdefault(key, {})
                values = np.asarray(columns[info.path][0 : episode.steps])
                reset = np.zeros_like(values[:1]) if info.reset is None else np.asarray(columns[info.reset][0:1])
                inner[info.name[-1]] = np.concatenate([reset, values])
            arrays["infos"] = self._of_infos(tree)
            fields.append(pa.field("infos", arrays["infos"].type))
        return pa.RecordBatch.from_arrays(list(arrays.values()), schema=pa.schema(fields))

    def _of_space(self, space: Space, path: str, leaves: Mapping[str, Leaf], episode: EpisodeData) -> Any:
        """Return the values of a space, of T + 1 rows, as Minari has them."""
        if space["type"] in ("Dict", "Tuple"):
            inner = space["subspaces"]
            parts = {str(key): escape_key(str(key)) for key in (inner if space["type"] == "Dict" else range(len(inner)))}
            of = inner.values() if space["type"] == "Dict" else inner
            arrays = [
                self._of_space(part, f"{path}/{name}", leaves, episode) for part, name in zip(of, parts.values(), strict=True)
            ]
            return self._pa.StructArray.from_arrays(arrays, names=list(parts))
        values = np.asarray(episode.columns[path][0 : episode.steps + 1])
        values = values if len(values) > episode.steps else _padded(values)
        return self._pa.array(values) if leaves[path].kind == "Discrete" and values.ndim == 1 else self._list(values)

    def _list(self, values: npt.NDArray[Any]) -> Any:
        flat = np.ascontiguousarray(values).reshape(len(values), -1)
        return self._pa.FixedSizeListArray.from_arrays(self._pa.array(flat.reshape(-1)), flat.shape[1])

    def _of_infos(self, tree: Mapping[str, Any]) -> Any:
        arrays, fields = [], []
        for key, values in tree.items():
            metadata = None
            if isinstance(values, Mapping):
                array = self._of_infos(values)
            elif values.ndim == 1:
                array = self._pa.array(values)
            else:
                array = self._list(values)
                metadata = {"shape": ",".join(map(str, values.shape[1:]))}
            arrays.append(array)
            fields.append(self._pa.field(key, array.type, metadata=metadata))
        return self._pa.StructArray.from_arrays(arrays, fields=fields)

    def finish(self) -> None:
        """Write the metadata."""
        size = metadata_module.size_of(self._directory)
        metadata = self._plan.metadata(self._format, self._episodes, self._steps, size)
        write_json(self._directory / metadata_module.FILE, metadata)

    def close(self) -> None:
        """Do nothing: no file is open between episodes."""


def _padded(values: Any) -> npt.NDArray[Any]:
    """Return rows with one of zeros at their end: Minari has as many of all columns as of observations."""
    rows = np.asarray(values)
    return np.concatenate([rows, np.zeros_like(rows[:1])])
