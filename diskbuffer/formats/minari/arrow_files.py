"""Files of Arrow's record batches, IPC or Parquet, read a few rows at a time."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from diskbuffer.errors import SourceError
from diskbuffer.plugin import require

MOST_BATCH = 2 * 1024**3  # bytes of a compressed batch of Arrow's IPC, once it is not: all of it is in memory
_ROWS = 1024  # that are read at a time from Parquet


def open_file(directory: Path, data_format: str) -> RecordBatches:
    """Open the one file of an episode; a SourceError where there is none, or there are several, or it is damaged."""
    try:
        files = [file for file in sorted(directory.iterdir()) if file.name[0] not in "_." and file.name != "metadata.json"]
    except OSError as error:
        raise SourceError(f"{directory} cannot be read: {error}") from error
    if len(files) != 1 or not files[0].is_file():
        raise SourceError(f"{directory} should have one file of rows, found {', '.join(file.name for file in files) or 'none'}")
    return (Parquet if data_format == "parquet" else Ipc)(files[0])


class RecordBatches:
    """A file of record batches.

    Attributes
    ----------
    path : pathlib.Path
    rows : int
    schema : pyarrow.Schema
    """

    rows: int
    schema: Any

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pyarrow: Any = require("pyarrow", "pyarrow", "minari", "to read Arrow")
        self._read: list[tuple[int, Any]] = []  # batches that were read last, and the first row of each
        self._next: Iterator[Any] | None = None
        self._at = 0  # the row after those

    def _batches(self) -> Iterator[Any]:
        raise NotImplementedError

    def between(self, first: int, last: int) -> list[Any]:
        """Return parts of batches that are rows `first` to `last`. Quick where rows are asked for in their order."""
        if first == last:
            return []
        if self._next is None or first < (self._read[0][0] if self._read else self._at):
            self._next, self._read, self._at = self._batches(), [], 0
        while self._at < last:
            with self.errors():
                batch = next(self._next, None)
                if batch is not None:
                    batch.validate(full=True)  # pyarrow ends the process where it works with one that is not valid
            if batch is None:
                raise SourceError(f"{self.path} ends after {self._at} of {self.rows} rows")
            self._read.append((self._at, batch))
            self._at += len(batch)
            self._read = [(begin, one) for begin, one in self._read if begin + len(one) > first]
        return [
            one.slice(max(first - begin, 0), min(last, begin + len(one)) - max(first, begin))
            for begin, one in self._read
            if begin < last and begin + len(one) > first
        ]

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what pyarrow raises of damage into a SourceError that names the file."""
        try:
            yield
        except SourceError:
            raise
        except (OSError, ValueError, KeyError, TypeError, NotImplementedError, OverflowError, struct.error) as error:
            raise SourceError(f"{self.path} cannot be read, it is damaged or in another format: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._next, self._read = None, []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Parquet(RecordBatches):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        parquet: Any = require("pyarrow.parquet", "pyarrow", "minari", "to read Parquet")
        with self.errors():
            self._file = parquet.ParquetFile(path)
            self.schema, self.rows = self._file.schema_arrow, self._file.metadata.num_rows

    def _batches(self) -> Iterator[Any]:
        batches: Iterator[Any] = self._file.iter_batches(batch_size=_ROWS, use_threads=False)
        return batches

    def close(self) -> None:
        """Close the file."""
        super().close()
        with contextlib.suppress(OSError):
            self._file.close()


class Ipc(RecordBatches):
    """A file of Arrow's IPC format, mapped into memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        ipc: Any = require("pyarrow.ipc", "pyarrow", "minari", "to read Arrow")
        with self.errors():
            self._map = self.pyarrow.memory_map(str(path))
            try:
                self._file = ipc.open_file(self._map)
                self.schema = self._file.schema
                batches = list(_lengths(self.pyarrow, self._map))
            except BaseException:
                self._map.close()
                raise
        self.rows = sum(rows for rows, _ in batches)
        most = max((size for _, size in batches), default=0)
        if len(batches) != self._file.num_record_batches:
            named = self._file.num_record_batches
            self.close()
            raise SourceError(f"{path} has {len(batches)} batches, and its footer names {named}")
        if min((rows for rows, _ in batches), default=0) < 0:
            self.close()
            raise SourceError(f"{path} has a batch of less than no rows")
        if most > MOST_BATCH:
            self.close()
            raise SourceError(f"{path} has a batch that takes {most} bytes when it is decompressed, and {MOST_BATCH} is the most")

    def _batches(self) -> Iterator[Any]:
        return (self._file.get_batch(number) for number in range(self._file.num_record_batches))

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._file = None
        with contextlib.suppress(OSError):
            self._map.close()


def _lengths(pyarrow: Any, mapped: Any) -> Iterator[tuple[int, int]]:
    """Yield the rows of each batch, and how many bytes it takes once it is decompressed, as its buffers say.

    pyarrow has no way to ask for that, and would decompress whatever it finds. Messages' metadata are flatbuffers, which it
    has verified: a RecordBatch is (length, nodes, buffers, compression), and compressed buffers begin with their size.
    """
    mapped.seek(8)  # after the file's magic bytes, messages follow
    reader = pyarrow.ipc.MessageReader.open_stream(mapped)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type == "dictionary":
            raise SourceError("it has dictionaries, which Minari does not write")
        if message.type != "record batch":
            continue
        metadata = memoryview(message.metadata)
        table = _table(metadata, struct.unpack_from("<I", metadata, 0)[0])
        header = _table(metadata, _offset(metadata, table[2]))
        rows = struct.unpack_from("<q", metadata, header[0])[0] if header[0] else 0
        size = 0
        if len(header) > 3 and header[3]:
            body = memoryview(message.body)
            vector = _offset(metadata, header[2])
            for number in range(struct.unpack_from("<I", metadata, vector)[0]):
                begin, length = struct.unpack_from("<qq", metadata, vector + 4 + 16 * number)
                if length >= 8:
                    declared = struct.unpack_from("<q", body, begin)[0]
                    size += length if declared == -1 else declared if declared >= 0 else math.inf  # type: ignore[assignment]
        yield rows, size


def _offset(buffer: memoryview, at: int) -> int:
    """Follow an offset of a flatbuffer."""
    return int(at + struct.unpack_from("<I", buffer, at)[0])


def _table(buffer: memoryview, at: int) -> list[int]:
    """Return where the fields of a flatbuffer's table are; 0 for those that are left out."""
    fields = at - struct.unpack_from("<i", buffer, at)[0]
    size = struct.unpack_from("<H", buffer, fields)[0]
    offsets = struct.unpack_from(f"<{(size - 4) // 2}H", buffer, fields + 4)
    padded = [*offsets, *[0] * (4 - len(offsets))]
    return [at + offset if offset else 0 for offset in padded]
