"""Arrays in ``.npz`` files of anyone, read block by block: a file may be larger than memory."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.formats.rows import without_nan
from diskbuffer.formats.untrusted import damaged

_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def npz_arrays(path: Path) -> dict[str, ZippedRows]:
    """Return the arrays of a file, by name, of which only the headers were read.

    Raises
    ------
    SourceError
        It is no such file, is damaged, or has pickles.
    """
    with damaged(path, "an .npz file"), zipfile.ZipFile(path) as file:
        names = file.namelist()
        if len(set(names)) < len(names) or not all(name.endswith(".npy") for name in names):
            raise SourceError(f"{path} should have arrays of different names, and has {', '.join(names)}")
        return {member.filename.removesuffix(".npy"): _opened(path, file, member) for member in file.infolist()}


def _opened(path: Path, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> ZippedRows:
    with file.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise SourceError(f"{path}: {member.filename} is of version {version} of numpy's format; 1 and 2 are known")
        shape, fortran, dtype = _HEADERS[version](stream)
        begin = stream.tell()
    if dtype.hasobject:
        raise SourceError(f"{path}: {member.filename} has Python objects, which are pickles, and are not read")
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != member.file_size - begin:
        raise SourceError(
            f"{path}: {member.filename} should have {member.file_size - begin:,} bytes of rows, and is {dtype}{list(shape)}"
        )
    return ZippedRows(path, member.filename, begin, shape, dtype, by_columns=fortran and sum(n > 1 for n in shape) > 1)


class ZippedRows:
    """The rows of an array in an ``.npz`` file. They are best read from the first to the last, as it is compressed in one piece.

    Parameters
    ----------
    path : pathlib.Path
    member : str
        Its name in the zip.
    begin : int
        Where its rows begin, in bytes.
    shape : tuple of int
    dtype : numpy.dtype
    by_columns : bool
        Whether it lies in memory by columns: then all of it is read at once, and kept.

    Attributes
    ----------
    dtype : numpy.dtype
        In this machine's byte order.
    """

    def __init__(
        self, path: Path, member: str, begin: int, shape: tuple[int, ...], dtype: np.dtype[Any], by_columns: bool
    ) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype.newbyteorder("=")
        self._member, self._begin, self._stored, self._by_columns = member, begin, dtype, by_columns
        self._stream: IO[bytes] | None = None
        self._kept = (0, np.zeros((0, *shape[1:]), self.dtype))  # rows, from which on: blocks of observations share a row

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        at, kept = self._kept
        with damaged(self.path, "an .npz file"):
            if self._by_columns and last > first and not len(kept):
                whole = self._read(0, self.shape[0]).ravel().reshape(self.shape, order="F")
                self._kept = at, kept = 0, np.ascontiguousarray(whole)
            if not at <= first <= at + len(kept):
                kept = kept[:0]
            else:
                kept = kept[first - at : max(last, first) - at]
            if last <= first + len(kept):
                return kept.copy()
            values = np.concatenate([kept, self._read(first + len(kept), last)])
        self._kept = last - 1, values[-1:].copy()
        if last == self.shape[0]:
            self.close()
        return values

    def flags(self, n: int) -> npt.NDArray[Any]:
        """Return the first `n` rows, (n,), which must be single numbers or truth values."""
        where = f"{self.path}: {self._member.removesuffix('.npy')}"
        if self.shape[1:] not in ((), (1,)) or self.dtype.kind not in "biuf":
            raise SourceError(f"{where} should be a number in each row, found {self.dtype}{list(self.shape[1:])}")
        return without_nan(self[:n].reshape(n), where)

    def close(self) -> None:
        """Close the file, until more is read."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _read(self, first: int, last: int) -> npt.NDArray[Any]:
        if self._stream is None:
            with zipfile.ZipFile(self.path) as file:
                self._stream = file.open(self._member)  # which keeps the file open
        values = np.empty((last - first, *self.shape[1:]), self._stored)
        self._stream.seek(self._begin + first * (values.nbytes // len(values)))
        filled = self._stream.readinto(values.reshape(-1).view(np.uint8))  # type: ignore[attr-defined]
        if filled != values.nbytes:
            raise SourceError(f"{self.path}: {self._member} ends early")
        return values.astype(self.dtype, copy=False)
