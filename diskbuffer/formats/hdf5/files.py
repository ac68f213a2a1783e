"""Untrusted HDF5 files: opened so that nothing outside of them is read, and nothing that is not in them.

HDF5 lets a file name other files (external links, external storage, virtual datasets), which h5py would open, and declare
arrays of any size of which nothing is stored, which read as zeros. None of that is followed here.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import DiskBufferError, SchemaError, SourceError
from diskbuffer.plugin import counted, require

MOST_NODES = 10_000  # in one group, in all levels together: what of an episode is looked at

# What h5py raises of a file that is damaged, depending on where in it.
_DAMAGE = (zlib.error, OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, UnicodeDecodeError, OverflowError)


class Hdf5File:
    """An HDF5 file, open for reading.

    Parameters
    ----------
    path : pathlib.Path
    extra : str
        The extra of diskbuffer that has h5py.

    Raises
    ------
    SourceError
        It is none, or cut short.
    MissingPackageError
        h5py is not installed.
    """

    def __init__(self, path: Path, extra: str) -> None:
        self.h5py: Any = require("h5py", "h5py", extra, "to read HDF5")
        self.path = path
        if not path.is_file():
            raise SourceError(f"expected an HDF5 file at {path}, and there is {'a directory' if path.is_dir() else 'none'}")
        with self.errors("the file"):
            self._file = self.h5py.File(path, "r", locking=False)
        self.bytes = os.path.getsize(path)

    @property
    def root(self) -> Node:
        """The group that all others are in."""
        return Node(self, self._file, "")

    @contextlib.contextmanager
    def errors(self, where: str) -> Iterator[None]:
        """Turn what h5py raises of damage into a SourceError that names the file and a place in it."""
        try:
            yield
        except DiskBufferError:
            raise
        except _DAMAGE as error:
            raise SourceError(f"{self.path}: {where} cannot be read, it is damaged or no HDF5: {error}") from error

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(*_DAMAGE):
            self._file.close()


class Node:
    """A group or an array of a file.

    Attributes
    ----------
    name : str
        Its path in the file, for messages.
    """

    def __init__(self, file: Hdf5File, handle: Any, name: str) -> None:
        self.file, self.handle, self.name = file, handle, name

    @property
    def is_group(self) -> bool:
        """Whether it is a group."""
        return isinstance(self.handle, self.file.h5py.Group)

    @property
    def is_array(self) -> bool:
        """Whether it is an array."""
        return isinstance(self.handle, self.file.h5py.Dataset)

    def names(self) -> list[str]:
        """Return the names of what is in a group."""
        with self.file.errors(self.name or "/"):
            return [str(name) for name in self.handle] if self.is_group else []

    def get(self, name: str) -> Node | None:
        """Return what has a name in a group; None where there is nothing. A SourceError where it is a link."""
        h5py = self.file.h5py
        path = f"{self.name}/{name}"
        with self.file.errors(path):
            if not self.is_group or "/" in name or name not in self.handle:
                link = self.handle.get(name, getlink=True) if self.is_group and "/" not in name else None
                if not isinstance(link, h5py.SoftLink | h5py.ExternalLink):
                    return None
            link = self.handle.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                to = getattr(link, "filename", None)
                raise SourceError(
                    f"{self.file.path}: {path} is a link{f' to another file, {to!r}' if to else ''}; links are not followed: "
                    "copy what it leads to into the file"
                )
            return Node(self.file, self.handle[name], path)

    def group(self, name: str) -> Node:
        """Return a group in a group; a SourceError where there is none."""
        node = self.get(name)
        if node is None or not node.is_group:
            raise SourceError(f"{self.file.path} has no group {self.name}/{name}")
        return node

    def array(self, name: str) -> Hdf5Rows:
        """Return an array in a group; a SourceError where there is none, or it is none that a column can hold."""
        node = self.get(name)
        if node is None or not node.is_array:
            raise SourceError(f"{self.file.path} has no array {self.name}/{name}")
        return node.rows()

    def rows(self) -> Hdf5Rows:
        """Return an array, checked; a SourceError where it is none that a column can hold."""
        return Hdf5Rows(self)

    def arrays(self) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Yield all arrays in a group, in all levels, each with the names that lead to it."""
        left: list[tuple[tuple[str, ...], Node]] = [((), self)]
        seen = 0
        while left:
            keys, group = left.pop()
            for name in group.names():
                seen += 1
                if seen > MOST_NODES:
                    raise SourceError(
                        f"{self.file.path}: {self.name} has more than {MOST_NODES} groups and arrays, or itself in it"
                    )
                inner = group.get(name)
                if inner is None:
                    continue
                if inner.is_group:
                    left.append(((*keys, name), inner))
                elif inner.is_array:
                    yield (*keys, name), inner

    def attributes(self) -> list[str]:
        """Return the names of attributes."""
        with self.file.errors(f"attributes of {self.name or '/'}"):
            return [str(name) for name in self.handle.attrs]

    def attribute(self, name: str) -> Any:
        """Return an attribute: text, a number, an array; None where there is none."""
        with self.file.errors(f"attribute {name!r} of {self.name or '/'}"):
            if name not in self.handle.attrs:
                return None
            value = self.handle.attrs[name]
            if isinstance(value, bytes):
                return value.decode(errors="replace")
            return value.item() if isinstance(value, np.generic) else value

    def json(self, name: str) -> Any:
        """Return an attribute that is JSON; None where there is none, and as it is where it is other text."""
        value = self.attribute(name)
        if not isinstance(value, str):
            return value if not isinstance(value, np.ndarray) else None
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value


class Hdf5Rows:
    """An array of a file, of which a slice of rows is read when it is asked for; in the machine's byte order.

    Raises
    ------
    SourceError
        It lies outside the file, is not all in the file, or is of a dtype that a column cannot hold.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        with node.file.errors(node.name):
            dataset = node.handle
            self.shape: tuple[int, ...] = tuple(dataset.shape or ())
            self.dtype: np.dtype[Any] = np.dtype(dataset.dtype).newbyteorder("=")
            self._check(dataset)

    def _check(self, dataset: Any) -> None:
        def refuse(why: str) -> SourceError:
            return SourceError(f"{self.node.file.path}: {self.node.name} {why}")

        if dataset.is_virtual or dataset.external:
            raise refuse("lies in other files, and only what is in the file itself is read")
        if not holds(self.dtype):
            raise refuse(f"is of the dtype {self.dtype}, and a column holds booleans and numbers")
        declared = math.prod(self.shape) * self.dtype.itemsize
        if not declared or dataset.shape is None:
            return
        if dataset.chunks:
            expected = math.prod(-(-n // chunk) for n, chunk in zip(self.shape, dataset.chunks, strict=True))
            allocated = dataset.id.get_num_chunks() if dataset.id.get_storage_size() else 0
            if allocated < expected:
                raise refuse(
                    f"has the shape {list(self.shape)}, and {allocated} of the {counted(expected, 'chunk')} that this takes"
                )
        else:
            stored = dataset.id.get_storage_size()
            if stored < declared or stored > self.node.file.bytes:
                raise refuse(
                    f"has the shape {list(self.shape)}, which is {declared} bytes, and of these {stored} are in the file"
                )

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        with self.node.file.errors(self.node.name):
            return np.asarray(self.node.handle[rows]).astype(self.dtype, copy=False)

    @property
    def column(self) -> Column:
        """What a column of such rows is."""
        if not self.shape:
            raise SourceError(f"{self.node.file.path}: {self.node.name} is a single value, and should be a row a step")
        try:
            return Column(self.shape[1:], self.dtype)
        except SchemaError as error:
            raise SourceError(f"{self.node.file.path}: {self.node.name} cannot be a column: {error}") from error


def holds(dtype: np.dtype[Any]) -> bool:
    """Return whether a column can be of a dtype."""
    try:
        Column((), dtype)
    except SchemaError:
        return False
    return True
