"""Episodes as Zarr v2 replay buffers of diffusion_policy and UMI."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import InputError
from diskbuffer.formats.described import NAME, describe
from diskbuffer.formats.json_files import write_json
from diskbuffer.formats.zarr2 import jpegxl
from diskbuffer.formats.zarr2.reading import ENDS, STREAMS
from diskbuffer.plugin import Contents, EpisodeData, Rows, either, is_observation

_CHUNK = 2_000_000  # bytes, as diffusion_policy has it


class ZarrWriter:
    """Write chunks of each array as they are full, in a directory; at last, if wanted, put all files into a zip.

    Of an export that was killed, the chunks that are there stay; rows that are in them are passed over, and not read.
    """

    held = 0

    def __init__(self, path: Path, contents: Contents, *, zip: bool = False, pictures: bool = False, lossy: bool = False) -> None:
        if not isinstance(zip, bool) or not isinstance(lossy, bool):
            raise InputError("zip and lossy must be true or false")
        self._path, self._zip = path, zip
        self._keys = keys(contents)
        if path.is_file():  # of a run that was killed when all was done
            path.unlink()
        self._packed = path.with_name(f"{path.name}.packed")
        self._packed.unlink(missing_ok=True)
        self._ends: list[int] = []
        self._streams: list[int] = []
        self._several = contents.n_envs > 1
        self._arrays: dict[str, _Array] = {}
        for column_path, name in self._keys.items():
            column = contents.columns[column_path]
            codec = "jpegxl" if pictures and is_picture(column_path, column) else "blosc"
            self._arrays[column_path] = _Array(path / "data" / name, column, f"{codec}, lossy" if lossy else codec)
        description = describe(contents, keys=self._keys)
        for group, attributes in (("", {NAME: description}), ("data", {}), ("meta", {})):
            (path / group).mkdir(parents=True, exist_ok=True)
            write_json(path / group / ".zgroup", {"zarr_format": 2}, indent=4)
            write_json(path / group / ".zattrs", attributes, indent=4)

    def write(self, episode: EpisodeData) -> None:
        """Add the rows of one episode."""
        for path, array in self._arrays.items():
            array.add(episode.columns[path], episode.steps)
        self._ends.append((self._ends[-1] if self._ends else 0) + episode.steps)
        self._streams.append(episode.stream)

    def finish(self) -> None:
        """Write the chunks that are not full, and what describes the arrays."""
        for array in self._arrays.values():
            array.finish()
        for name, values in ((ENDS, self._ends), (STREAMS, self._streams)):
            if name == ENDS or self._several:
                array = _Array(self._path / name, Column((), "int64"), "raw", rows=len(values))
                array.add(np.array(values, np.int64), len(values))
                array.finish()
        if self._zip:
            with zipfile.ZipFile(self._packed, "w", zipfile.ZIP_STORED, allowZip64=True) as file:
                for root, _, files in os.walk(self._path):
                    for one in sorted(files):
                        file.write(os.path.join(root, one), os.path.relpath(os.path.join(root, one), self._path))
            shutil.rmtree(self._path)
            self._packed.replace(self._path)

    def close(self) -> None:
        """Close nothing."""


def keys(contents: Contents) -> dict[str, str]:
    """Return the array of each column. Flags and rewards are arrays like all others."""
    names = {path: (path.removeprefix("obs/") if is_observation(path) else path).replace("/", "_") for path in contents.columns}
    for path, name in names.items():
        if list(names.values()).count(name) > 1:
            raise InputError(
                f"the column {path!r} would be the array {name!r}, and another one would, too: "
                f"leave it out by {either('columns=', '--columns')}"
            )
    return names


def is_picture(path: str, column: Column) -> bool:
    """Return whether a column is compressed as pictures where that is asked for."""
    return is_observation(path) and column.np_dtype == "uint8" and len(column.shape) == 3 and column.shape[-1] in (1, 3, 4)


class _Array:
    """An array that grows by whole chunks."""

    def __init__(self, path: Path, column: Column, codec: str, rows: int | None = None) -> None:
        self._path, self._column, self._codec = path, column, codec
        self._length = rows or (1 if codec.startswith("jpegxl") else max(1, -(-_CHUNK // column.row_bytes)))
        self._rows = 0
        self._chunk = np.zeros((self._length, *column.shape), column.np_dtype)
        path.mkdir(parents=True, exist_ok=True)

    def add(self, rows: Rows, n: int) -> None:
        """Add the first `n` rows of some."""
        first = 0
        while first < n:
            filled = self._rows % self._length
            some = min(self._length - filled, n - first)
            file = self._file(self._rows // self._length)
            if not file.exists():
                self._chunk[filled : filled + some] = rows[first : first + some]
            self._rows, first = self._rows + some, first + some
            if self._rows % self._length == 0:
                self._save(file)

    def finish(self) -> None:
        """Write what is left, and the metadata."""
        if self._rows % self._length:
            self._chunk[self._rows % self._length :] = 0
            self._save(self._file(self._rows // self._length))
        metadata = {
            "zarr_format": 2,
            "shape": [self._rows, *self._column.shape],
            "chunks": [self._length, *self._column.shape],
            "dtype": self._column.np_dtype.str,
            "compressor": self._configuration(),
            "fill_value": False if self._column.np_dtype == "bool" else 0,
            "order": "C",
            "filters": None,
        }
        write_json(self._path / ".zarray", metadata, indent=4)

    def _file(self, number: int) -> Path:
        return self._path / ".".join(map(str, (number, *(0 for _ in self._column.shape))))

    def _save(self, file: Path) -> None:
        if not file.exists():
            part = file.with_name("part")
            part.write_bytes(self._encoded(self._chunk))
            part.replace(file)

    def _configuration(self) -> dict[str, Any] | None:
        if self._codec == "raw":
            return None
        if self._codec.startswith("jpegxl"):
            return jpegxl.configuration(self._codec == "jpegxl, lossy")
        configuration: dict[str, Any] = _blosc().get_config()
        return configuration

    def _encoded(self, chunk: npt.NDArray[Any]) -> bytes:
        if self._codec == "raw":
            return chunk.tobytes()
        if self._codec.startswith("jpegxl"):
            return jpegxl.encode(chunk, self._codec == "jpegxl, lossy")
        return bytes(_blosc().encode(chunk))


def _blosc() -> Any:
    """Return the codec that diffusion_policy's arrays have by default."""
    import numcodecs

    return numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.NOSHUFFLE)
