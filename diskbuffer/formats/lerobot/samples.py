"""What an MP4 says of how many samples it has, against its size: a decoder would make room for all of them."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

from diskbuffer.errors import SourceError

_INSIDE = (b"moov", b"trak", b"mdia", b"minf", b"stbl")  # boxes on the way to the tables
_ENTRIES = {b"stts": 8, b"stsc": 12, b"stco": 4, b"co64": 8, b"stss": 4, b"ctts": 8}  # bytes of an entry
_MOST_BOXES = 10_000


def check_samples(path: Path) -> None:
    """Raise a SourceError where a table in an MP4 says that it has more entries than can be in the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        _check(path, file, 0, size, [0])


def _check(path: Path, file: BinaryIO, at: int, end: int, seen: list[int]) -> None:
    while at + 8 <= end:
        seen[0] += 1
        if seen[0] > _MOST_BOXES:
            raise SourceError(f"{path} is damaged: it has more than {_MOST_BOXES} boxes")
        file.seek(at)
        length, kind = struct.unpack(">I4s", file.read(8))
        header = 8
        if length == 1:
            length, header = int.from_bytes(file.read(8), "big"), 16
        elif length == 0:
            length = end - at
        if length < header or at + length > end:
            if kind == b"mdat" or at == 0:
                raise SourceError(f"{path} ends early, or is no MP4")
            return  # what is behind it is no box
        if kind in _INSIDE:
            _check(path, file, at + header, at + length, seen)
        elif kind == b"stsz":
            _, sample, count = struct.unpack(">III", file.read(12).ljust(12, b"\0"))
            _refuse_more(path, kind, count, (os.fstat(file.fileno()).st_size // sample) if sample else (length - header) // 4)
        elif kind in _ENTRIES:
            _, count = struct.unpack(">II", file.read(8).ljust(8, b"\0"))
            _refuse_more(path, kind, count, (length - header) // _ENTRIES[kind])
        at += length


def _refuse_more(path: Path, kind: bytes, count: int, most: int) -> None:
    if count > most:
        raise SourceError(f"{path} is damaged: its table {kind.decode()} has {most} entries at most, and says {count}")
