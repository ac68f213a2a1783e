"""Arrays in ``.npz`` files of anyone, read block by block.

Nothing that a file says of itself is believed before it is compared with something else: the sizes of arrays with those of the
zip's members, these with the file, and how far they were compressed with what is usual.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.formats.rows import rows_at_a_time, without_nan
from diskbuffer.formats.untrusted import damaged

_LARGEST_BY_COLUMNS = 256 * 1024**2  # bytes of an array that can only be read whole
_LONGEST_HEADER = 10_000
_PIECE = 1024**2


def npz_arrays(path: Path) -> dict[str, ZippedRows]:
    """Return the arrays of a file, by name, of which only the headers were read.

    Parameters
    ----------
    path : pathlib.Path
        Of the file.

    Raises
    ------
    SourceError
        It is no such file, is damaged, or has pickles.
    """
    with damaged(path, "an .npz file"), zipfile.ZipFile(path) as file:
        members = file.infolist()
        if sum(member.compress_size for member in members) > os.stat(path).st_size:
            raise SourceError(f"{path} is damaged, or made to do harm: its members overlap")
        arrays: dict[str, ZippedRows] = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name == member.filename or name in arrays:
                raise SourceError(f"{path} should have arrays of different names, and has {member.filename!r}")
            arrays[name] = _opened(path, file, member)
        return arrays


def _opened(path: Path, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> ZippedRows:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise SourceError(f"{path}: {member.filename} is compressed in a way that numpy does not write")
    with file.open(member) as stream:
        header = stream.read(12)
        if header[:6] != b"\x93NUMPY" or len(header) < 12:
            raise SourceError(f"{path}: {member.filename} is no array of numpy's")
        begin, length = (10, int.from_bytes(header[8:10], "little")) if header[6] == 1 else (12, *struct.unpack("<I", header[8:]))
        if length > _LONGEST_HEADER:
            raise SourceError(f"{path}: {member.filename} has a header of {length:,} bytes, of at most {_LONGEST_HEADER:,}")
        header += stream.read(begin + length - 12)
    text = io.BytesIO(header)
    version = np.lib.format.read_magic(text)
    read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    if version not in ((1, 0), (2, 0)):
        raise SourceError(f"{path}: {member.filename} is of version {version} of numpy's format; 1 and 2 are known")
    shape, fortran, dtype = read(text)
    if dtype.hasobject:
        raise SourceError(f"{path}: {member.filename} has Python objects, which are pickles, and are not read")
    size = math.prod(shape) * dtype.itemsize
    if any(n < 0 for n in shape) or size != member.file_size - text.tell():
        raise SourceError(
            f"{path}: {member.filename} should have {member.file_size - text.tell():,} bytes of rows, and is {dtype}{list(shape)}"
        )
    fortran = fortran and sum(n > 1 for n in shape) > 1
    if fortran and size > _LARGEST_BY_COLUMNS:
        raise SourceError(f"{path}: {member.filename} lies in memory by columns, and cannot be read row by row; save it as rows")
    return ZippedRows(path, _Member(member.filename, text.tell(), fortran), shape, dtype)


@dataclass(frozen=True)
class _Member:
    name: str
    begin: int  # of the rows, in bytes
    fortran: bool


class ZippedRows:
    """The rows of an array in an ``.npz`` file. They are best read from the first to the last, as it is compressed in one piece.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        In this machine's byte order.
    """

    def __init__(self, path: Path, member: _Member, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype.newbyteorder("=")
        self._member, self._stored = member, dtype
        self._stream: IO[bytes] | None = None
        self._next = 0  # the row that the stream is at
        self._last: npt.NDArray[Any] | None = None  # the row before it: blocks of observations share a row

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        if last <= first:
            return np.zeros((0, *self.shape[1:]), self.dtype)
        with damaged(self.path, "an .npz file"):
            if self._member.fortran:
                return self._whole()[first:last]
            kept = self._last if first == self._next - 1 else None
            if kept is not None:
                values = np.concatenate([kept, self._read(self._next, last)]) if last > self._next else kept.copy()
            else:
                values = self._read(first, last)
        self._last = values[-1:].copy()
        if self._next == self.shape[0]:
            self.close()
        return values

    def flags(self, n: int) -> npt.NDArray[Any]:
        """Return the first `n` rows, (n,), which must be single numbers or truth values."""
        where = f"{self.path}: {self._member.name.removesuffix('.npy')}"
        if self.shape[1:] not in ((), (1,)) or self.dtype.kind not in "biuf":
            raise SourceError(f"{where} should be a number in each row, found {self.dtype}{list(self.shape[1:])}")
        return without_nan(self[:n].reshape(n), where)

    def close(self) -> None:
        """Close the file, until more is read."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _read(self, first: int, last: int) -> npt.NDArray[Any]:
        if self._stream is None or first < self._next:
            self.close()
            with zipfile.ZipFile(self.path) as file:
                self._stream = file.open(self._member.name)  # which keeps the file open
            self._next = 0
            self._take(np.empty(self._member.begin, np.uint8))
        step = rows_at_a_time(self)
        while self._next < first:
            skipped = min(step, first - self._next)
            self._take(np.empty((skipped, *self.shape[1:]), self._stored))
            self._next += skipped
        values = np.empty((last - first, *self.shape[1:]), self._stored)
        self._take(values)
        self._next = last
        return values.astype(self.dtype, copy=False)

    def _take(self, into: npt.NDArray[Any]) -> None:
        assert self._stream is not None
        flat = into.reshape(-1).view(np.uint8)
        filled = 0
        while filled < len(flat):
            piece = self._stream.read(min(_PIECE, len(flat) - filled))
            if not piece:
                raise SourceError(f"{self.path}: {self._member.name} ends early")
            flat[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)

    def _whole(self) -> npt.NDArray[Any]:
        with zipfile.ZipFile(self.path) as file, file.open(self._member.name) as stream:
            data = stream.read()[self._member.begin :]
        return np.frombuffer(data, self._stored).reshape(self.shape, order="F").astype(self.dtype, order="C")
