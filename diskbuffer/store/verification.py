"""Whether the files of a segment are those that were written: by the checksums that the segment table has of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store.description import Description
from diskbuffer.store.format import codec
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.segments.mapped import Zeros, checked_map
from diskbuffer.store.segments.shard import shard_checksum
from diskbuffer.store.segments.table import NEVER, UNCHECKED, SegmentTable
from diskbuffer.store.system.files import Files, Map

AMBIGUOUS = UNCHECKED + 2  # up to which a number of the table may stand for two checksums


def file_checksum(layout: Layout, path: str, mapped: Map | Zeros) -> int:
    """Return what the table has as the checksum of a segment's file."""
    if path in layout.chunks_of:
        return shard_checksum(mapped, layout.chunks(path))
    checksum = codec.checksum(mapped.array(np.uint8, (mapped.size,)))
    return as_noted(checksum) if path in layout.derived else checksum


def as_noted(crc: int) -> int:
    """Return the CRC32C of a derived column's file as the table has it: `NEVER` and `UNCHECKED` say something else."""
    return crc if crc > UNCHECKED else crc + 2


class Verification:
    """Verify files when they are mapped. Chunks are verified when they are decoded."""

    def __init__(self, files: Files, description: Description, table: SegmentTable) -> None:
        self._files, self._description, self._table = files, description, table
        self._sealed: dict[int, int] = {}  # slots that were seen to be sealed, and the word of the table that said so

    def load(self) -> None:
        """Read which slots are sealed: all at once, which takes a hundredth of the time."""
        sealed = np.flatnonzero(self._table.sealed())
        self._sealed = dict(zip(sealed.tolist(), self._table.column("sealed")[sealed].tolist(), strict=True))

    def is_sealed(self, slot: int) -> bool:
        """Return whether a slot is sealed, so that its files have checksums."""
        word = self._table.get("sealed", slot)
        if word and self._sealed.get(slot) != word and self._table.is_sealed(slot):
            self._sealed[slot] = word
        return bool(word) and self._sealed.get(slot) == word

    def check(self, path: str, slot: int, mapped: Map | Zeros) -> None:
        """Raise a CorruptionError where a file does not match the table's checksum."""
        if path in self._description.layout.derived:
            self._check_derived(path, slot, mapped)
        elif self.is_sealed(slot) and self._table.checksum(path, slot) != self.checksum(path, mapped):
            raise CorruptionError(self._mismatch(path, slot))

    def _check_derived(self, path: str, slot: int, mapped: Map | Zeros) -> None:
        """Check a column that may be written to elsewhere meanwhile: then its checksum changes, too."""
        expected = self._table.checksum(path, slot)
        while expected not in (NEVER, UNCHECKED):
            if isinstance(mapped, Zeros):
                if self._files.exists(self._description.layout.data_file(path, slot)):
                    return  # made since by a writer elsewhere
                raise CorruptionError(f"{self.describe(path, slot)}: the file is missing; was it removed?")
            if expected == self.checksum(path, mapped):
                return
            before, expected = expected, self._table.checksum(path, slot)
            if expected == before:
                raise CorruptionError(self._mismatch(path, slot))

    def _mismatch(self, path: str, slot: int) -> str:
        return (
            f"{self.describe(path, slot)}: the checksum does not match; the file was damaged, or replaced by another. "
            "`diskbuffer check --repair` saves what can be saved"
        )

    def checksum(self, path: str, mapped: Map | Zeros) -> int:
        """Return the checksum of a segment's file, as the table has it."""
        return file_checksum(self._description.layout, path, mapped)

    def verify_file(self, path: str, slot: int) -> None:
        """Raise a CorruptionError where a segment's file is missing, has the wrong size, or does not match its checksum."""
        layout = self._description.layout
        self._checked(path, slot, -1 if path in layout.chunks_of else layout.flat_bytes(path))

    def flags(self, path: str, slot: int, length: int) -> npt.NDArray[np.bool_]:
        """Return a copy of the first `length` values of a flag in one segment, without keeping its map."""
        size = self._description.layout.flat_bytes(path)
        return self._checked(path, slot, size).array(np.bool_, (size,))[:length].copy()

    def _checked(self, path: str, slot: int, size: int) -> Map:
        name = self._description.layout.data_file(path, slot)
        return checked_map(self._files, name, size, lambda mapped: self.check(path, slot, mapped), writable=False)

    # For errors

    def describe(self, path: str, slot: int) -> str:
        """Name a segment's file, its column and its steps."""
        stream, first = self._table.identity(slot)
        return self.describe_rows(path, slot, stream, first, first + max(self._table.length(slot), 1) - 1)

    def describe_rows(self, path: str, slot: int, stream: int, first: int, last: int) -> str:
        """Name rows of a stream in a column, and the file in which they are."""
        layout = self._description.layout
        n = layout.streams
        return (
            f"{self._files.root / layout.data_file(path, slot)} (column {path!r}, rows {first} to {last} of stream {stream}, "
            f"steps {first * n + stream} to {last * n + stream})"
        )
