"""Writing a Minari data set, in its HDF5 layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer import Column
from diskbuffer.errors import InputError
from diskbuffer.formats.hdf5.sink import Sink
from diskbuffer.formats.json_files import write_json
from diskbuffer.formats.minari import metadata as metadata_module
from diskbuffer.formats.minari.hdf5_layout import FILE
from diskbuffer.formats.minari.names import Name
from diskbuffer.formats.minari.plan import Plan, is_complex
from diskbuffer.plugin import Contents, EpisodeData, Rows, require

_CHUNK = 512 * 1024  # bytes: a chunk is decompressed whole, and HDF5 keeps one of up to 1 MiB at hand
_MOST_ROWS = 16384
_CODECS: dict[str, dict[str, Any]] = {
    "none": {},
    "lzf": {"compression": "lzf"},
    "gzip": {"compression": "gzip", "compression_opts": 1},
}


def losses(contents: Contents, **_: object) -> Mapping[str, str]:
    """Return what a data set cannot hold."""
    left = [path for path, column in contents.columns.items() if is_complex(column)]
    lost = {"complex": f"spaces have no complex numbers, and these columns are left out: {', '.join(left)}"} if left else {}
    if taken := sorted(metadata_module.OWN_NAMES & {*contents.values}):
        lost["values"] = f"Minari has these names for metadata of its own, and the values are left out: {', '.join(taken)}"
    return lost


class MinariWriter:
    """Write a data set. What a kill left is none that can be gone on with: it is written anew.

    Parameters
    ----------
    path : pathlib.Path
        Where ``data`` is made, as Minari has it in its directory of data sets.
    contents : Contents
    dataset_id : str, optional
        Such as "mine/pong/expert-v0". By default the one that was imported, or one made of the environment's.
    compression : {"lzf", "gzip", "none"}
        "lzf" is h5py's own. Minari reads all of them.

    Raises
    ------
    InputError
        An option is none of these, or there is no single reward, no observation or no action.
    """

    def __init__(self, path: Path, contents: Contents, *, dataset_id: str | None = None, compression: str = "lzf") -> None:
        h5py: Any = require("h5py", "h5py", "minari", "to write Minari's HDF5 layout")
        if compression not in _CODECS:
            raise InputError(f"compression must be one of {', '.join(_CODECS)}, found {compression!r}")
        self._compression = _CODECS[compression]
        self._plan, self._directory = Plan(contents, dataset_id), path / "data"
        self._names: dict[str, Name] = {leaf.path: (name[0], *leaf.hdf5_keys) for name, leaf in self._plan.leaves} | {
            "reward": ("rewards",),
            "terminated": ("terminations",),
            "truncated": ("truncations",),
        }
        for name in [*self._names.values(), *(info.name for info in self._plan.infos)]:
            if any("/" in key or key in ("", ".", "..") or "\0" in key for key in name):
                raise InputError(f"HDF5 has no names such as {name[-1]!r}; choose other columns")
        self._directory.mkdir(parents=True, exist_ok=True)
        for left in (metadata_module.FILE, FILE):
            (self._directory / left).unlink(missing_ok=True)
        self._sink: Sink | None = Sink(self._directory / FILE)
        self._file = h5py.File(self._sink, "w", track_order=True)
        self.held = self._steps = self._episodes = 0

    def write(self, episode: EpisodeData) -> None:
        """Write one episode."""
        group = self._file.create_group(f"episode_{self._episodes}")
        _note(group, "", self._plan.episode_metadata(self._episodes, episode))
        for root in ("observations", "actions", "infos"):
            if all(name[0] != root or len(name) > 1 for name in self._names.values()):
                group.require_group(root)
        for path, name in self._names.items():
            self._put(group, name, episode.columns[path], self._plan.columns[path])
        for info in self._plan.infos:
            rows = episode.columns[info.path]
            first = episode.columns[info.reset][0:1] if info.reset is not None else None
            self._put(group, info.name, rows, self._plan.columns[info.path], first)
        self._episodes += 1
        self._steps += episode.steps

    def _put(self, group: Any, name: Name, rows: Rows, column: Column, first: Any = None) -> None:
        """Write rows, after a first one where it is given, block by block."""
        chunk = max(1, min(_MOST_ROWS, _CHUNK // column.row_bytes))
        before = 0 if first is None else 1
        length = rows.shape[0] + before
        compression = self._compression if column.row_bytes * length > 4096 else {}
        array = group.create_dataset(
            "/".join(name),
            shape=(length, *column.shape),
            maxshape=(None, *column.shape),
            dtype=column.np_dtype,
            chunks=(min(chunk, length), *column.shape),
            **compression,
        )
        if first is not None:
            array[0:1] = first
        block = chunk * max(1, 8 * _CHUNK // max(1, chunk * column.row_bytes))
        for begin in range(0, rows.shape[0], block):
            end = min(begin + block, rows.shape[0])
            array[begin + before : end + before] = np.asarray(rows[begin:end])
            self._check()

    def _check(self) -> None:
        if self._sink is not None:
            self._sink.check()

    def finish(self) -> None:
        """Write the metadata."""
        self._file.close()
        self._check()
        size = metadata_module.size_of(self._directory)
        metadata = self._plan.metadata(self._episodes, self._steps, size)
        write_json(self._directory / metadata_module.FILE, metadata)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        if self._sink is not None:
            self._sink.close()
            self._sink = None


def _note(group: Any, prefix: str, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if isinstance(value, dict):
            _note(group, f"{prefix}{name}/", value)
        else:
            group.attrs[prefix + name] = np.uint64(value) if isinstance(value, int) and value >= 2**63 else value
