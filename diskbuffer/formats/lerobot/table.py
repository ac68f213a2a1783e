"""Parquet files, read in blocks, column by column."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diskbuffer.errors import DiskBufferError, SourceError
from diskbuffer.formats.lerobot.arrays import pyarrow

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
            self._file = parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        except FileNotFoundError:
            raise SourceError(f"{path} is missing") from None
        except (OSError, ValueError, pa.ArrowException) as error:
            raise SourceError(f"{path} is damaged, or no parquet file ({error})") from error
        self._metadata = self._file.metadata
        self._counts = [self._metadata.row_group(n).num_rows for n in range(self._metadata.num_row_groups)]
        self.rows: int = self._metadata.num_rows
        if rows is not None and rows != self.rows:
            raise SourceError(f"{path}: expected {rows} rows, found {self.rows}")
        self.names: list[str] = self._file.schema_arrow.names

    def type_of(self, name: str) -> Any:
        """Return Arrow's type of a column; a SourceError where there is none."""
        if self.names.count(name) != 1:
            raise SourceError(f"{self.path} has no column {name!r}, or several; it has {', '.join(self.names)[:500]}")
        return self._file.schema_arrow.field(name).type

    def blocks(self, name: str, first: int, rows: int) -> Iterator[Any]:
        """Yield a column in blocks of `rows` rows at most, from row number `first` on."""
        pa, parquet = pyarrow(), pyarrow("pyarrow.parquet")
        self.type_of(name)
        group = 0
        while group < len(self._counts) and first >= self._counts[group]:
            first -= self._counts[group]
            group += 1
        groups = list(range(group, len(self._counts)))
        try:
            # A file of its own: two that read from one get blocks as large as the second one asked for.
            with parquet.ParquetFile(self.path, metadata=self._metadata, buffer_size=_BUFFER, pre_buffer=False) as file:
                for batch in file.iter_batches(rows, row_groups=groups, columns=[name], use_threads=False):
                    if first < len(batch):
                        yield batch.column(name).slice(first)
                    first -= min(first, len(batch))
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            if isinstance(error, DiskBufferError):
                raise
            raise SourceError(f"{self.path}: the column {name!r} is damaged ({error})") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()
