"""How the last writer left a store, and how far it had brought rows to the disk: one small file.

It tells a process that died (what it wrote is in the page cache, and reaches the disk) from a machine that lost its power or
crashed (what was not synced may be there, or not, sector by sector): by the identifier of the boot that wrote it.
"""

from __future__ import annotations

import contextlib
import enum
import json
from dataclasses import dataclass

import google_crc32c

from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.json_files import read_json

NAME = f"{SEGMENTS}/length/state.json"  # inside an array's directory, which no Zarr tool lists


class LastShutdown(enum.Enum):
    """What became of the last writer."""

    CLEAN = "clean"  # all is on the disk
    KILLED = "killed"  # all that was acknowledged is there, but for damage
    POWER_LOSS = "power loss"  # or it was copied while it was open: nothing counts but what matches its checksums


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
    reserved : tuple of int
        Of each stream, the position before which rows may have been added since, so that readers may have seen their ids. Empty
        in notes of earlier versions.
    """

    boot: str
    clean: bool
    synced: tuple[int, ...]
    salt: int
    reserved: tuple[int, ...] = ()

    @classmethod
    def read(cls, files: Files, salt: int) -> State | None:
        """Read it; None where it is missing, damaged, or another store's."""
        try:
            data = read_json(files, NAME)
            synced = tuple(int(n) for n in data["synced"])
            reserved = tuple(int(n) for n in data.get("reserved", ()))
            state = cls(str(data["boot"]), bool(data["clean"]), synced, salt, reserved)
            possible = len(reserved) in (0, len(synced)) and all(0 <= position < 2**56 for position in reserved)
            return state if possible and data["checksum"] == state._checksum() else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None

    @staticmethod
    def raw(files: Files) -> bytes:
        """Return the file as it is, which is another once anybody has noted something; nothing where it is missing."""
        with contextlib.suppress(OSError):
            return files.read(NAME)
        return b""

    def note(self, files: Files) -> State:
        """Write it, and bring it to the disk; return it."""
        contents = {name: value for name, value in vars(self).items() if name != "salt"}
        files.replace_contents(NAME, json.dumps({**contents, "checksum": self._checksum()}).encode())
        return self

    def last_shutdown(self, files: Files) -> LastShutdown:
        """Return how the writer that left it ended."""
        if self.clean:
            return LastShutdown.CLEAN
        return LastShutdown.KILLED if self.boot and self.boot == files.boot_id() else LastShutdown.POWER_LOSS

    def next_positions(self) -> tuple[int, ...]:
        """Return of each stream the position from which on no row was ever added: those before may have been seen."""
        reserved = self.reserved if self.reserved and not self.clean else (0,) * len(self.synced)
        return tuple(max(synced + 1, until) for synced, until in zip(self.synced, reserved, strict=True))

    def _checksum(self) -> int:
        return int(google_crc32c.value(f"{self.boot} {self.clean} {self.synced} {self.salt} {self.reserved}".encode()))


def how_it_was_left(state: State | None, files: Files, streams: int) -> tuple[LastShutdown, tuple[int, ...]]:
    """Return what became of the last writer, and up to which position rows of each stream were on the disk then.

    Where the note is missing or damaged, that is no power loss's doing, as it is replaced at once: nothing else is excused then.
    """
    if state is None or len(state.synced) != streams:
        return LastShutdown.KILLED, (-1,) * streams
    return state.last_shutdown(files), state.synced
