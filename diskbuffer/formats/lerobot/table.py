"""Parquet files, opened and read in blocks, with nothing believed that would need much memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diskbuffer.errors import DiskBufferError, SourceError
from diskbuffer.formats.lerobot.arrays import pyarrow

_MOST_FOOTER = 64 * 1024**2
_SLACK = 1024**2  # bytes that a column's pages may have beside their values
_BUFFER = 256 * 1024


class Table:
    """A parquet file.

    Parameters
    ----------
    path : pathlib.Path
    rows : int, optional
        How many rows it must have.

    Raises
    ------
    SourceError
        It is not there, is damaged, or has another number of rows.
    """

    def __init__(self, path: Path, rows: int | None = None) -> None:
        parquet, pa = pyarrow("pyarrow.parquet"), pyarrow()
        self.path = path
        try:
            with path.open("rb") as file:
                file.seek(-8, 2)
                if int.from_bytes(file.read(4), "little") > _MOST_FOOTER:
                    raise SourceError(f"{path} is damaged: its footer is too large")
            self._file = parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        except FileNotFoundError:
            raise SourceError(f"{path} is missing") from None
        except (OSError, ValueError, pa.ArrowException) as error:
            if isinstance(error, DiskBufferError):
                raise
            raise SourceError(f"{path} is damaged, or no parquet file ({error})") from error
        self._metadata = self._file.metadata
        self.rows: int = self._metadata.num_rows
        counts = [self._metadata.row_group(n).num_rows for n in range(self._metadata.num_row_groups)]
        if any(count < 0 for count in counts) or sum(counts) != self.rows:
            raise SourceError(f"{path} is damaged: its parts have {sum(counts)} rows, and it says {self.rows}")
        if rows is not None and rows != self.rows:
            raise SourceError(f"{path}: expected {rows} rows, found {self.rows}")
        self._counts = counts
        self.names: list[str] = self._file.schema_arrow.names

    def type_of(self, name: str) -> Any:
        """Return Arrow's type of a column; a SourceError where there is none."""
        schema = self._file.schema_arrow
        if self.names.count(name) != 1:
            raise SourceError(f"{self.path} has no column {name!r}, or several; it has {', '.join(self.names)[:500]}")
        return schema.field(name).type

    def blocks(self, name: str, first: int, rows: int, *, values: int, row_bytes: int) -> Iterator[Any]:
        """Yield a column in blocks.

        Parameters
        ----------
        name : str
        first : int
            The first block begins with this row.
        rows : int
            Rows of a block, at most.
        values : int
            How many values a row may have.
        row_bytes : int
            How many bytes a row may take before compression; on average, of those that are compressed together.
        """
        pa, parquet = pyarrow(), pyarrow("pyarrow.parquet")
        leaves = self._leaves(name)
        group = 0
        while group < len(self._counts) and first >= self._counts[group]:
            first -= self._counts[group]
            group += 1
        groups = list(range(group, len(self._counts)))
        for number in groups:
            self._check(name, number, leaves, values, row_bytes)
        paths = [self._metadata.schema.column(leaf).path for leaf in leaves]
        try:
            # A file of its own: two that read from one get blocks as large as the second one asked for.
            with parquet.ParquetFile(self.path, metadata=self._metadata, buffer_size=_BUFFER, pre_buffer=False) as file:
                for batch in file.iter_batches(rows, row_groups=groups, columns=paths, use_threads=False):
                    if first < len(batch):
                        yield batch.column(name).slice(first)
                    first -= min(first, len(batch))
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            if isinstance(error, DiskBufferError):
                raise
            raise SourceError(f"{self.path}: the column {name!r} is damaged ({error})") from error

    def _leaves(self, name: str) -> list[int]:
        """Return the numbers of what a column is made of in the file."""
        self.type_of(name)
        at = 0
        for field in self._file.schema_arrow:
            count = _leaves(field.type)
            if field.name == name:
                return list(range(at, at + count))
            at += count
        raise AssertionError(name)

    def _check(self, name: str, group: int, leaves: list[int], values: int, row_bytes: int) -> None:
        """Raise where the file says of itself that it has more than it may."""
        count = self._counts[group]
        for leaf in leaves:
            chunk = self._metadata.row_group(group).column(leaf)
            if chunk.num_values > count * values or chunk.total_uncompressed_size > 2 * count * row_bytes + _SLACK:
                raise SourceError(
                    f"{self.path}: {count} rows of {name!r} should have {count * values} values of {row_bytes} bytes a row at "
                    f"most, found {chunk.num_values} values in {chunk.total_uncompressed_size} bytes"
                )

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _leaves(kind: Any) -> int:
    """Return how many columns of a file a type has."""
    if isinstance(kind, pyarrow().ExtensionType):
        kind = kind.storage_type
    return sum(_leaves(kind.field(n).type) for n in range(kind.num_fields)) if kind.num_fields else 1


def number_bytes(itemsize: int, shape: tuple[int, ...]) -> int:
    """Return bytes of a row of numbers in a file: the values, and where the lists begin and end."""
    return math.prod(shape) * (itemsize + 2 * len(shape))
