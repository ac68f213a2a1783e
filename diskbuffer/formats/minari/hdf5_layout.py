"""Minari's HDF5 layout: `main_data.hdf5`, with a group for each episode."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.errors import SourceError
from diskbuffer.formats.hdf5.files import Hdf5File, Node, holds
from diskbuffer.formats.minari.images import Jpegs
from diskbuffer.formats.minari.metadata import EpisodeHeader
from diskbuffer.formats.minari.names import Name
from diskbuffer.formats.minari.spaces import Leaf
from diskbuffer.plugin import Rows

FILE = "main_data.hdf5"


class Hdf5Episodes:
    """The episodes of a data set.

    Parameters
    ----------
    directory : pathlib.Path

    Raises
    ------
    SourceError
        There is no such file, or it is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._file = Hdf5File(directory / FILE, "minari")
        self.episodes = sum(name.startswith("episode_") for name in self._file.root.names())

    def header(self, number: int) -> EpisodeHeader:
        """Return the header of an episode."""
        group = self._file.root.group(f"episode_{number}")
        metadata: dict[str, Any] = {}
        for name in group.attributes():
            *parents, last = name.split("/")  # as Minari writes nested dicts
            inner = metadata
            for parent in parents:
                inner = inner.setdefault(parent, {})
                if not isinstance(inner, dict):
                    raise SourceError(f"{self._file.path}: attributes of {group.name} are no nested dicts, at {name!r}")
            inner[last] = group.attribute(name)
        infos = group.get("infos")
        names = frozenset(("infos", *keys) for keys, _ in infos.arrays()) if infos is not None else frozenset[Name]()
        steps = metadata.get("total_steps")
        if steps is None:
            steps = group.array("rewards").shape[0]
        if not isinstance(steps, int):
            raise SourceError(f"{self._file.path}: total_steps of {group.name} must be a number, found {steps!r}")
        return EpisodeHeader(steps, metadata, names, _least_rows(group.get("observations"), steps + 1) > steps)

    def read(self, number: int, leaves: Mapping[Name, Leaf], infos: Collection[Name]) -> dict[Name, Rows]:
        """Return the arrays of an episode."""
        group = self._file.root.group(f"episode_{number}")
        arrays: dict[Name, Rows] = {(name,): group.array(name) for name in ("rewards", "terminations", "truncations")}
        for name, leaf in leaves.items():
            node = _find(group, (name[0], *leaf.hdf5_keys))
            arrays[name] = _picture(node, leaf) if leaf.is_image and _may_be_jpeg(node) else node.rows()
        for name in infos:
            node = _find(group, name)
            if node.handle.shape and holds(np.dtype(node.handle.dtype)):
                arrays[name] = node.rows()
        return arrays

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _least_rows(observations: Node | None, most: int) -> int:
    """Return the rows of what observations have the fewest of, and no more than `most`."""
    arrays = (
        [] if observations is None else [observations] if observations.is_array else [node for _, node in observations.arrays()]
    )
    return min((int(node.handle.shape[0]) for node in arrays if node.handle.shape), default=most)


def _find(group: Node, names: Name) -> Node:
    *parents, last = names
    for parent in parents:
        group = group.group(parent)
    node = group.get(last)
    if node is None or not node.is_array:
        raise SourceError(f"{group.file.path} has no array {group.name}/{last}")
    return node


def _may_be_jpeg(node: Node) -> bool:
    """Return whether an array has one JPEG a row in place of a picture: of as many bytes, or of its own length."""
    shape = node.handle.shape or ()
    return len(shape) == 1 or (len(shape) == 2 and node.handle.dtype == np.uint8)


def _picture(node: Node, leaf: Leaf) -> Rows:
    if len(node.handle.shape) == 2:
        return Jpegs(node.rows(), leaf.shape, node.name)
    return Jpegs(_Lengths(node), leaf.shape, node.name)


class _Lengths:
    """Texts of bytes of different lengths, one a row, as an array of arrays."""

    def __init__(self, node: Node) -> None:
        vlen = node.file.h5py.check_vlen_dtype(node.handle.dtype)
        stored = node.handle.id.get_storage_size()
        if vlen is None or np.dtype(vlen) != np.uint8 or node.handle.is_virtual or node.handle.external:
            raise SourceError(f"{node.file.path}: {node.name} is neither of pictures nor of JPEG")
        if stored > node.file.bytes or stored < node.handle.shape[0]:
            raise SourceError(
                f"{node.file.path}: {node.name} has {node.handle.shape[0]} rows, and {stored} bytes of them are there"
            )
        self._node = node
        self.shape: tuple[int, ...] = tuple(node.handle.shape)
        self.dtype = np.dtype(object)

    def __getitem__(self, rows: slice) -> Any:
        with self._node.file.errors(self._node.name):
            return self._node.handle[rows]
