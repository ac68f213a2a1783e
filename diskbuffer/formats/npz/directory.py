"""Directories of ``.npz`` files whose arrays have the same names, dtypes and shapes of rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.errors import SourceError
from diskbuffer.formats.npz.reading import ZippedRows, npz_arrays


def files_of(path: Path) -> list[Path]:
    """Return the ``.npz`` files in a directory, by name; or the path itself, where it is such a file."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise SourceError(f"there is no file or directory {path}")
    files = sorted(file for file in path.iterdir() if file.suffix == ".npz")
    if not files:
        raise SourceError(f"{path} has no .npz files; give the directory that they are in")
    return files


class FileSchema:
    """What all files should have, by the first of them."""

    def __init__(self, first: Path) -> None:
        self._first = first
        self.arrays: Mapping[str, ZippedRows] = npz_arrays(first)
        self._known = _kinds(self.arrays)

    def open(self, path: Path) -> dict[str, ZippedRows]:
        """Return a file's arrays; a SourceError where they are others."""
        arrays = npz_arrays(path)
        kinds = _kinds(arrays)
        for name in self._known | kinds:
            if self._known.get(name) != kinds.get(name):
                both = [f"{_shown(of.get(name))} in {file.name}" for of, file in ((self._known, self._first), (kinds, path))]
                raise SourceError(f"{path}: {name!r} should be the same in all files, and is {both[0]}, {both[1]}")
        return arrays

    def rows(self, path: Path, arrays: Mapping[str, ZippedRows]) -> int:
        """Return how many rows each of a file's arrays has; a SourceError where these differ."""
        lengths = {name: rows.shape[0] if rows.shape else 0 for name, rows in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise SourceError(f"{path}: its arrays should have as many rows each, found {lengths}")
        return next(iter(lengths.values()))


def _kinds(arrays: Mapping[str, ZippedRows]) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    return {name: (rows.dtype, rows.shape[1:]) for name, rows in arrays.items()}


def _shown(kind: tuple[np.dtype[Any], tuple[int, ...]] | None) -> str:
    return "missing" if kind is None else f"{kind[0]}{list(kind[1])}"
