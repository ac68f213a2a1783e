"""Arrays of a Zarr v2 group from anyone, in a directory or in a zip, read chunk by chunk.

numcodecs decodes chunks; of its codecs those are taken that run no code. zarr-python reads the same, and takes 0.4 s to import.
"""

from __future__ import annotations

import itertools
import os
import zipfile
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.formats.json_files import json_object
from diskbuffer.formats.untrusted import damaged
from diskbuffer.formats.zarr2 import jpegxl

_CODECS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd", jpegxl.ID)


class Group:
    """The files of a group, by their names, "data/action/.zarray".

    Attributes
    ----------
    arrays : list of str
        Where arrays are, "data/action".
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip: zipfile.ZipFile | None = None
        if path.is_file():
            with damaged(path, "a Zarr group"):
                self._zip = zipfile.ZipFile(path)
            names = self._zip.namelist()
        elif path.is_dir():
            found = ((root, file) for root, _, files in os.walk(path) for file in files)
            names = [os.path.relpath(os.path.join(root, file), path) for root, file in found if file == ".zarray"]
        else:
            raise SourceError(f"there is no file or directory {path}")
        self.arrays = sorted(name.removesuffix("/.zarray") for name in names if name.endswith("/.zarray"))

    def read(self, name: str) -> bytes | None:
        """Return what is in a file; None where there is none."""
        with damaged(self.path, "a Zarr group"):
            try:
                return (self.path / name).read_bytes() if self._zip is None else self._zip.read(name)
            except (KeyError, FileNotFoundError):
                return None

    def metadata(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file; an empty one where there is no such file."""
        text = self.read(name)
        return {} if text is None else json_object(text, f"{self.path}: {name}")

    def close(self) -> None:
        """Close the zip."""
        if self._zip is not None:
            self._zip.close()


class ZarrRows:
    """The rows of an array; an item of its first axis is one. Those of the chunks that were read last are kept.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        In this machine's byte order.
    """

    def __init__(self, group: Group, name: str) -> None:
        self._group, self._name = group, name
        where, metadata = f"{group.path}: {name}", group.metadata(f"{name}/.zarray")
        codec, filters = metadata.get("compressor"), metadata.get("filters")
        kind = codec.get("id") if isinstance(codec, dict) else codec
        self._is_blosc = kind == "blosc"
        if filters or kind not in (None, *_CODECS):
            raise SourceError(f"{where} is compressed by {codec}, filters {filters}, which is not read here")
        try:
            self.shape, self._chunks = (tuple(int(n) for n in metadata[axes]) for axes in ("shape", "chunks"))
            self._dtype = np.dtype(metadata["dtype"])
            self._order, self._separator = metadata["order"], metadata.get("dimension_separator", ".")
            self._fill = np.zeros((), self._dtype)
            if metadata["fill_value"] is not None and self._dtype.kind in "biufc":
                self._fill = np.array(metadata["fill_value"], self._dtype)
            if kind == jpegxl.ID:
                jpegxl.register()
            self._codec = None if codec is None else numcodecs.get_codec(dict(codec))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SourceError(f"{where}/.zarray is not the metadata of a Zarr v2 array: {error!r}") from error
        if (
            metadata.get("zarr_format") != 2
            or len(self.shape) != len(self._chunks)
            or min(self.shape, default=0) < 0
            or min(self._chunks, default=1) < 1
            or self._order not in ("C", "F")
            or self._separator not in (".", "/")
            or self._fill.shape
            or self._dtype.hasobject
        ):
            raise SourceError(f"{where}/.zarray is not the metadata of a Zarr v2 array of numbers")
        self.dtype = self._dtype.newbyteorder("=")
        self._kept: tuple[int, npt.NDArray[Any]] = (-1, np.zeros(0))

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        values = np.empty((max(0, last - first), *self.shape[1:]), self.dtype)
        at, length = first, self._chunks[0]
        while at < last:
            number = at // length
            end = min(last, (number + 1) * length)
            values[at - first : end - first] = self._row_of_chunks(number)[at - number * length : end - number * length]
            at = end
        return values

    def _row_of_chunks(self, number: int) -> npt.NDArray[Any]:
        """Return the rows of the chunks with this number along the first axis."""
        if self._kept[0] != number:
            across = list(zip(self.shape[1:], self._chunks[1:], strict=True))
            whole = np.empty((self._chunks[0], *self.shape[1:]), self._dtype)
            for place in itertools.product(*(range(-(-n // chunk)) for n, chunk in across)):
                into = tuple(slice(p * chunk, min(n, (p + 1) * chunk)) for p, (n, chunk) in zip(place, across, strict=True))
                inside = tuple(slice(0, part.stop - part.start) for part in into)
                whole[(slice(None), *into)] = self._chunk((number, *place))[(slice(None), *inside)]
            self._kept = (number, whole)
        return self._kept[1]

    def _chunk(self, place: tuple[int, ...]) -> npt.NDArray[Any]:
        name = f"{self._name}/{self._separator.join(map(str, place))}"
        data = self._group.read(name)
        if data is None:
            return np.full(self._chunks, self._fill, self._dtype)
        with damaged(self._group.path, "a Zarr group"):
            if self._is_blosc and int.from_bytes(data[12:16], "little") != len(data):  # c-blosc reads on after its end
                raise SourceError(f"{self._group.path}: {name} was cut, or is damaged")
            decoded = data if self._codec is None else self._codec.decode(data)
            return np.frombuffer(decoded, self._dtype).reshape(self._chunks, order=self._order)
