"""How the last writer left a store, and how far it had brought rows to the disk: one small file.

It tells a process that died (what it wrote is in the page cache, and reaches the disk) from a machine that lost its power or
crashed (what was not synced may be there, or not, sector by sector): by the identifier of the boot that wrote it.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass

import google_crc32c

from diskbuffer.store.files import Files
from diskbuffer.store.layout import SEGMENTS

_NAME = f"{SEGMENTS}/length/state.json"  # inside an array's directory, which no Zarr tool lists


class Fate(enum.Enum):
    """What became of the last writer."""

    CLOSED = "closed"  # all is on the disk
    KILLED = "killed"  # all that was acknowledged is there, but for damage
    LOST_POWER = "lost power"  # or it was copied while it was open: nothing counts but what checksums vouch for


@dataclass(frozen=True)
class State:
    """The file.

    Attributes
    ----------
    boot : str
        Of the machine, when it was written.
    clean : bool
        Whether the writer closed the store.
    synced : tuple of int
        Of each stream, the position up to which rows were on the disk then; -1 for none.
    salt : int
        The store's number.
    """

    boot: str
    clean: bool
    synced: tuple[int, ...]
    salt: int

    @classmethod
    def read(cls, files: Files, salt: int) -> State | None:
        """Read it; None where it is missing, damaged, or another store's."""
        try:
            found = json.loads(files.read(_NAME))
            state = cls(str(found["boot"]), bool(found["clean"]), tuple(int(n) for n in found["synced"]), salt)
            return state if found["checksum"] == state._checksum() else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def note(self, files: Files) -> None:
        """Write it, and bring it to the disk."""
        contents = {"boot": self.boot, "clean": self.clean, "synced": self.synced, "checksum": self._checksum()}
        files.replace_contents(_NAME, json.dumps(contents).encode())

    def fate(self, files: Files) -> Fate:
        """Tell what became of the writer who left it."""
        if self.clean:
            return Fate.CLOSED
        return Fate.KILLED if self.boot and self.boot == files.boot_id() else Fate.LOST_POWER

    def _checksum(self) -> int:
        return int(google_crc32c.value(f"{self.boot} {self.clean} {self.synced} {self.salt}".encode()))


def how_it_was_left(state: State | None, files: Files, streams: int) -> tuple[Fate, tuple[int, ...]]:
    """Return what became of the last writer, and up to which position rows of each stream were on the disk then.

    Where the note is missing or damaged, that is no power loss's doing, as it is replaced at once: nothing else is excused then.
    """
    if state is None or len(state.synced) != streams:
        return Fate.KILLED, (-1,) * streams
    return state.fate(files), state.synced
