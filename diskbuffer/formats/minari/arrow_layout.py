"""Minari's Arrow and Parquet layouts: a directory for each episode, with one file of rows and `metadata.json`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.errors import SourceError
from diskbuffer.formats.arrow import as_numpy
from diskbuffer.formats.json_files import read_json
from diskbuffer.formats.minari.images import Jpegs
from diskbuffer.formats.minari.metadata import FILE, EpisodeHeader
from diskbuffer.formats.minari.names import Name
from diskbuffer.formats.minari.spaces import Leaf
from diskbuffer.plugin import Rows, require


class ArrowEpisodes:
    """The episodes of a data set. All of one is in memory when it is read, as Minari writes it: one batch.

    Parameters
    ----------
    directory : pathlib.Path
    data_format : {"arrow", "parquet"}
    """

    def __init__(self, directory: Path, data_format: str) -> None:
        require("pyarrow", "pyarrow", "minari", "to read Minari's Arrow and Parquet layouts")
        self._directory, self._format = directory, data_format
        self.episodes = sum(inner.name.isdecimal() for inner in directory.iterdir())
        self._kept: tuple[int, Any] | None = None  # the episode that was read last, as structs of its columns

    def header(self, number: int) -> EpisodeHeader:
        """Return the header of an episode."""
        with self._opened(number) as (path, file):
            metadata = read_json(path.parent / FILE)
            steps = file.rows - 1
            names = frozenset(_leaves(("infos",), file.schema.field("infos").type) if "infos" in file.schema.names else ())
        if metadata.get("total_steps", steps) != steps:
            raise SourceError(f"{path} has {steps + 1} rows, and of {metadata['total_steps']} steps there should be one more")
        return EpisodeHeader(steps, metadata, names)

    def read(self, number: int, leaves: Mapping[Name, Leaf], infos: Collection[Name]) -> dict[Name, Rows]:
        """Return the arrays of an episode."""
        with self._opened(number) as (path, file):
            if self._kept is None or self._kept[0] != number:
                self._kept = None
                table = file.table()
                table.validate(full=True)
                self._kept = number, table.combine_chunks().to_struct_array().chunk(0)
            episode = self._kept[1]
            steps = len(episode) - 1
            arrays: dict[Name, Rows] = {}
            for name, leaf in leaves.items():
                rows = _rows(episode, name, leaf, path)
                arrays[name] = rows if name[0] == "observations" else rows[:steps]
            for flag in ("rewards", "terminations", "truncations"):
                arrays[flag,] = _rows(episode, (flag,), None, path)[:steps]
            for name in infos:
                with contextlib.suppress(SourceError):  # of a dtype that a column cannot hold
                    arrays[name] = _rows(episode, name, None, path)
            return arrays

    @contextlib.contextmanager
    def _opened(self, number: int) -> Iterator[tuple[Path, Any]]:
        """Have the one file of an episode; a SourceError where there is none, or there are several, or it is damaged."""
        directory = self._directory / str(number)
        try:
            files = [file for file in sorted(directory.iterdir()) if file.name[0] not in "_." and file.name != FILE]
            if len(files) != 1 or not files[0].is_file():
                found = ", ".join(file.name for file in files) or "none"
                raise SourceError(f"{directory} should have one file of rows, found {found}")
            yield files[0], _File(str(files[0]), self._format)
        except SourceError:
            raise
        except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:  # pyarrow's are of all these kinds
            raise SourceError(f"rows in {directory} cannot be read, they are damaged or in another format: {error}") from error

    def close(self) -> None:
        """Let the episode go that was read last: no file is open between episodes."""
        self._kept = None


class _File:
    """A file of rows: their number, their schema, and when asked for all of them."""

    def __init__(self, path: str, data_format: str) -> None:
        import pyarrow as pa

        self.rows: int
        self.schema: Any
        self.table: Callable[[], Any]
        if data_format == "arrow":
            rows = pa.ipc.open_file(pa.memory_map(path)).read_all()  # of which nothing is read until it is looked at
            self.rows, self.schema, self.table = len(rows), rows.schema, lambda: rows
        else:
            from pyarrow.parquet import ParquetFile

            file = ParquetFile(path)
            self.rows, self.schema, self.table = file.metadata.num_rows, file.schema_arrow, partial(file.read, use_threads=False)


def _leaves(name: Name, kind: Any) -> Iterator[Name]:
    """Yield the names of what is no struct."""
    if not _is_struct(kind):
        yield name
        return
    for field in kind:
        yield from _leaves((*name, field.name), field.type)


def _is_struct(kind: Any) -> bool:
    return str(kind).startswith("struct<")


def _rows(array: Any, name: Name, leaf: Leaf | None, path: Path) -> Any:
    """Return a column of structs; a SourceError where there is none, a row has no value, or no column holds such ones."""
    import pyarrow as pa

    what, field = f"{path}: {'/'.join(name)}", pa.field("", array.type)
    for key in name:
        at = field.type.get_field_index(key) if _is_struct(field.type) else -1
        if at < 0:
            has = ", ".join(one.name for one in field.type) if _is_struct(field.type) else "no parts"
            raise SourceError(f"{path} has no column {'/'.join(name)!r}; there it has {has}")
        field, array = field.type.field(at), array.field(at)
    if leaf is not None and leaf.is_image and pa.types.is_binary(array.type) and not array.null_count:
        return Jpegs(np.array([*array.to_pylist(), None], object)[:-1], leaf.shape, what)
    shape: tuple[int, ...] = ()
    flat = array
    if pa.types.is_fixed_size_list(array.type):
        shape, flat = _row_shape(field, leaf), array.flatten()
    if array.null_count or flat.null_count:
        raise SourceError(f"{what} has rows without a value")
    if not (pa.types.is_boolean(flat.type) or pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)):
        raise SourceError(f"{what} is of the type {field.type}, and a column holds booleans and numbers")
    return as_numpy(flat).reshape(len(array), *shape)


def _row_shape(field: Any, leaf: Leaf | None) -> tuple[int, ...]:
    """Return the shape of a row: its space's, or what Minari notes beside a list that has an axis more, or none."""
    size = int(field.type.list_size)
    noted = (field.metadata or {}).get(b"shape", b"").split(b",")
    shape = leaf.shape if leaf is not None else tuple(int(part) for part in noted if part.isdigit())
    return shape if np.prod(shape) == size else (size,)
