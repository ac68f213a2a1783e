"""Minari's Arrow and Parquet layouts: a directory for each episode, with one file of rows and `metadata.json`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.formats.arrow import as_numpy
from diskbuffer.formats.minari.arrow_files import RecordBatches, open_file
from diskbuffer.formats.minari.images import Jpegs
from diskbuffer.formats.minari.layouts import EpisodeHeader, Name
from diskbuffer.formats.minari.metadata import FILE, read_json
from diskbuffer.formats.minari.spaces import Leaf
from diskbuffer.plugin import Rows

_MOST_NOTES = 16 * 1024**2
_FLAGS = ("rewards", "terminations", "truncations")


class ArrowEpisodes:
    """The episodes of a data set.

    Parameters
    ----------
    directory : pathlib.Path
    data_format : {"arrow", "parquet"}
    """

    def __init__(self, directory: Path, data_format: str) -> None:
        self._directory, self._format = directory, data_format
        self.episodes = sum(inner.name.isdecimal() for inner in directory.iterdir())
        self._open: tuple[int, RecordBatches] | None = None

    def header(self, number: int) -> EpisodeHeader:
        """Return the header of an episode."""
        metadata = read_json(self._directory / str(number) / FILE, _MOST_NOTES)
        with open_file(self._directory / str(number), self._format) as file:
            steps = file.rows - 1
            with file.errors():  # of names that are no text
                names = frozenset(_infos(file.schema)) if "infos" in file.schema.names else frozenset[Name]()
        if metadata.get("total_steps", steps) != steps:
            raise SourceError(
                f"{file.path} has {steps + 1} rows, and of {metadata['total_steps']} steps there should be one more"
            )
        return EpisodeHeader(steps, metadata, names)

    def read(self, number: int, leaves: Mapping[Name, Leaf], infos: Collection[Name]) -> dict[Name, Rows]:
        """Return the arrays of an episode. Its file is open until another episode is read."""
        self.close()
        file = open_file(self._directory / str(number), self._format)
        self._open = (number, file)
        with file.errors():
            return self._columns(file, leaves, infos)

    @staticmethod
    def _columns(file: RecordBatches, leaves: Mapping[Name, Leaf], infos: Collection[Name]) -> dict[Name, Rows]:
        steps = file.rows - 1
        columns: dict[Name, Rows] = {}
        for name, leaf in leaves.items():
            rows = steps + (name[0] == "observations")
            column = ArrowRows(file, (name[0], *leaf.keys), rows)
            if leaf.is_image and file.pyarrow.types.is_binary(column.type):
                columns[name] = Jpegs(column, leaf.shape, f"{file.path}: {'/'.join(name)}")
            else:
                column.shape = (rows, *leaf.shape) if _fits(column.shape[1:], leaf.shape) else column.shape
                columns[name] = column
        for flag in _FLAGS:
            columns[(flag,)] = ArrowRows(file, (flag,), steps)
        for name in infos:
            with contextlib.suppress(SourceError):  # of a dtype that a column cannot hold
                columns[name] = ArrowRows(file, name, file.rows)
        return columns

    def close(self) -> None:
        """Close the file of the episode that was read last."""
        if self._open is not None:
            self._open[1].close()
            self._open = None


def _fits(stored: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return int(np.prod(stored)) == int(np.prod(expected))


def _infos(schema: Any) -> Iterator[Name]:
    left: list[tuple[Name, Any]] = [(("infos",), schema.field("infos"))]
    while left:
        name, field = left.pop()
        inner = [field.type.field(number) for number in range(field.type.num_fields)] if _is_struct(field.type) else None
        if inner is None:
            yield name
        else:
            left += [((*name, part.name), part) for part in inner]


def _is_struct(kind: Any) -> bool:
    return str(kind).startswith("struct<")


class ArrowRows:
    """One column of a file, of which a slice of rows is read when it is asked for.

    Attributes
    ----------
    type : pyarrow.DataType
    shape : tuple of int
        As lists tell; a caller that knows it better may set it.

    Raises
    ------
    SourceError
        There is no such column, or it is of a kind that a column cannot hold.
    """

    def __init__(self, file: RecordBatches, name: Name, rows: int) -> None:
        self._file, self._name = file, name
        if name[0] not in file.schema.names:
            raise SourceError(f"{file.path} has no column {name[0]!r}; it has {', '.join(file.schema.names)}")
        field = file.schema.field(name[0])
        for key in name[1:]:
            at = field.type.get_field_index(key) if _is_struct(field.type) else -1
            if at < 0:
                raise SourceError(f"{file.path} has no column {'/'.join(name)!r}")
            field = field.type.field(at)
        types, kind = file.pyarrow.types, field.type
        self.type = kind
        row: tuple[int, ...] = ()
        if types.is_fixed_size_list(kind):
            row, kind = self._row_shape(field), kind.value_type
        if types.is_binary(kind):
            self.dtype: np.dtype[Any] = np.dtype(object)
        elif types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
            self.dtype = np.dtype(kind.to_pandas_dtype())
        else:
            raise SourceError(
                f"{file.path}: {'/'.join(name)} is of the type {field.type}, and a column holds booleans and numbers"
            )
        self.shape = (rows, *row)

    @staticmethod
    def _row_shape(field: Any) -> tuple[int, ...]:
        """Return the shape of a row, which Minari notes beside a list where it has an axis more, or none."""
        sizes = (field.metadata or {}).get(b"shape")
        if sizes is None:
            return (field.type.list_size,)
        try:
            shape = tuple(int(part) for part in sizes.split(b",") if part)
        except ValueError:
            return (field.type.list_size,)
        return shape if _fits((field.type.list_size,), shape) and all(n > 0 for n in shape) else (field.type.list_size,)

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        blocks = [self._of(batch) for batch in self._file.between(first, max(first, last))]
        if self.dtype == object:
            return np.concatenate([np.empty(0, object), *blocks])
        return np.concatenate([np.empty((0, *self.shape[1:]), self.dtype), *blocks]) if len(blocks) != 1 else blocks[0]

    def _of(self, batch: Any) -> npt.NDArray[Any]:
        """Return what one batch has of the column."""
        with self._file.errors():
            array = batch.column(self._name[0])
            for key in self._name[1:]:
                array = array.field(key)  # as long as the batch, also where that is a slice
            rows = len(batch)
            if array.null_count:
                raise SourceError(f"{self._file.path}: {'/'.join(self._name)} has rows without a value")
            if self.dtype == object:
                values = np.empty(rows, object)
                values[:] = array.to_pylist()
                return values
            if self._file.pyarrow.types.is_fixed_size_list(self.type):
                array = array.flatten()
                if array.null_count:
                    raise SourceError(f"{self._file.path}: {'/'.join(self._name)} has rows without a value")
            return np.asarray(as_numpy(array), self.dtype).reshape(rows, *self.shape[1:])
