"""WebDataset: shards of tar files, a sample an episode."""

from __future__ import annotations

import io
import math
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.formats import strict_json
from diskbuffer.formats.described import describe_episode
from diskbuffer.formats.rows import rows_at_a_time
from diskbuffer.plugin import Contents, EpisodeData, Format, Rows, Writer, integer


class ShardWriter:
    """Write ``000000.tar`` and so on. A sample has a ``.npy`` of each column, and a ``.json``.

    Of an export that was killed, the shards that are whole stay.

    Parameters
    ----------
    path : pathlib.Path
        The directory.
    shard_mb : int
        Once a shard has so many megabytes, the next one is begun.
    """

    def __init__(self, path: Path, *, shard_mb: int = 500) -> None:
        self._path, self._largest = path, integer("shard_mb", shard_mb) * 10**6
        path.mkdir(exist_ok=True)
        self._part = path / ".part"
        self._part.unlink(missing_ok=True)
        self._shards = sorted(path.glob("*.tar"))
        self.held = sum(_samples(shard) for shard in self._shards)
        self._tar: tarfile.TarFile | None = None

    def write(self, episode: EpisodeData) -> None:
        """Add one episode to the shard."""
        if self._tar is None:
            self._tar = tarfile.open(self._part, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed by `_complete`
        key, description = f"{self.held:08}", strict_json.dumps(describe_episode(episode)).encode()
        self._add(f"{key}.json", io.BytesIO(description), len(description))
        for column, rows in episode.columns.items():
            file = io.BufferedReader(_Npy(rows))
            self._add(f"{key}.{column.replace('/', '.')}.npy", file, _header(rows)[1])
        self.held += 1
        if self._tar.offset >= self._largest:
            self._complete()

    def _add(self, name: str, file: Any, size: int) -> None:
        assert self._tar is not None
        info = tarfile.TarInfo(name)
        info.size = size
        self._tar.addfile(info, file)

    def _complete(self) -> None:
        if self._tar is not None:
            self._tar.close()
            self._tar = None
            shard = self._path / f"{len(self._shards):06}.tar"
            os.replace(self._part, shard)
            self._shards.append(shard)

    def finish(self) -> None:
        """Complete the last shard."""
        self._complete()

    def close(self) -> None:
        """Close the shard."""
        if self._tar is not None:
            self._tar.close()


class _Npy(io.RawIOBase):
    """The bytes of a ``.npy`` file of some rows, made while they are read."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self._blocks = _npy_blocks(rows)  # with a method, this would be a cycle, and live until it is collected
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, into: Any, /) -> int:
        """Fill some of a buffer."""
        if not self._left:
            self._left = memoryview(next(self._blocks, b""))
        n = min(len(into), len(self._left))
        into[:n] = self._left[:n]
        self._left = self._left[n:]
        return n


def _npy_blocks(rows: Rows) -> Iterator[bytes]:
    yield _header(rows)[0]
    step = rows_at_a_time(rows)
    for first in range(0, rows.shape[0], step):
        yield np.ascontiguousarray(rows[first : first + step]).tobytes()


def _header(rows: Rows) -> tuple[bytes, int]:
    """Return the header of a ``.npy`` file, and the size of all of it."""
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": tuple(rows.shape)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue(), len(file.getvalue()) + math.prod(rows.shape) * rows.dtype.itemsize


def _samples(shard: Path) -> int:
    with tarfile.open(shard) as tar:
        return sum(name.endswith(".json") for name in tar.getnames())


def _write(path: Path, _: Contents, *, shard_mb: int = 500) -> Writer:
    return ShardWriter(path, shard_mb=shard_mb)


def _losses(contents: Contents, **_: Any) -> Mapping[str, str]:
    if contents.derived:
        return {"derived": f"{', '.join(sorted(contents.derived))}: computed columns become columns like all others"}
    return {}


WEBDATASET = Format("webdataset", "shards of tar files, a sample an episode", write=_write, losses=_losses, values=True)
