"""A file that HDF5 writes to, whatever the disk says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Sink:
    """A file for ``h5py.File``, in which writing never fails: `check` raises the error, once HDF5 is out of the way.

    HDF5 does not get over a write that fails, as on a full disk: it tries again when the file is closed, and when the process
    ends, where it then crashes (seen with HDF5 2.0: a segmentation fault). So what could not be written is kept in memory, and
    read from there, until the file is closed. That is little, where `check` is called after each block.

    Parameters
    ----------
    path : pathlib.Path
        There is a new file afterwards.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o666)
        self._error: OSError | None = None
        self._kept: list[tuple[int, bytes]] = []  # what could not be written, and where
        self._at = self._size = 0

    def check(self) -> None:
        """Raise the error of the first write that failed."""
        if self._error is not None:
            raise OSError(self._error.errno, self._error.strerror, str(self._path))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def write(self, buffer: Any) -> int:
        """Write at the place, or keep in memory what cannot be written."""
        data = bytes(buffer)
        done = 0
        while done < len(data) and self._error is None:
            try:
                done += os.pwrite(self._descriptor, memoryview(data)[done:], self._at + done)
            except OSError as error:
                self._error = error
        if self._error is not None:
            self._kept.append((self._at + done, data[done:]))
        self._at += len(data)
        self._size = max(self._size, self._at)
        return len(data)

    def readinto(self, into: Any) -> int:
        """Read from the place."""
        view = memoryview(into).cast("B")
        length = max(0, min(len(view), self._size - self._at))
        view[:length] = os.pread(self._descriptor, length, self._at).ljust(length, b"\0")
        for begin, data in self._kept:
            first, last = max(begin, self._at), min(begin + len(data), self._at + length)
            if first < last:
                view[first - self._at : last - self._at] = data[first - begin : last - begin]
        self._at += length
        return length

    def read(self, size: int = -1) -> bytes:
        """Return bytes from the place on. h5py knows a file by this, and reads with `readinto`."""
        buffer = bytearray(max(0, self._size - self._at) if size < 0 else size)
        return bytes(buffer[: self.readinto(buffer)])

    def truncate(self, size: int | None = None) -> int:
        """Cut the file, or make it longer."""
        self._size = self._at if size is None else size
        if self._error is None:
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError as error:
                self._error = error
        return self._size

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def close(self) -> None:
        """Close the file, once HDF5 has."""
        os.close(self._descriptor)
