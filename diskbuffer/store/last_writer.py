"""How the last writer left a store, and how far it had brought rows to the disk: one small file, and its number in another place.

It tells a process that died (what it wrote is in the page cache, and reaches the disk) from a machine that lost its power or
crashed (what was not synced may be there, or not, sector by sector): by the identifier of the boot that wrote it.

Every note has a larger number than all before. The number alone is written a second time, elsewhere, once the note is on the
disk: so the note is never the older of the two, whatever a crash leaves, unless somebody put an older file in its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
from dataclasses import dataclass

import google_crc32c
import numpy as np

from diskbuffer.schema import CHECKSUM
from diskbuffer.store.format.checksums import length_word, mix
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.json_files import read_json

NAME = f"{SEGMENTS}/length/state.json"  # inside an array's directory, which no Zarr tool lists
REVISION = f"{CHECKSUM}/revision"  # as that, and not below `_segments`, which may be replaced as a whole
_MOST = 2**32 - 1


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
    generation : int
        Of the group's description; those of the store are this at least.
    revision : int
        How often the state was noted; 0 where it never was with a number.
    reserved : tuple of int
        Of each stream, the position before which rows may have been added since, so that readers may have seen their ids. Empty
        in notes of earlier versions.
    """

    boot: str
    clean: bool
    synced: tuple[int, ...]
    salt: int
    generation: int = 0
    revision: int = 0
    reserved: tuple[int, ...] = ()

    @classmethod
    def read(cls, files: Files, salt: int) -> State | None:
        """Read it; None where it is missing, damaged, or another store's."""
        try:
            found = read_json(files, NAME)
            synced = tuple(int(n) for n in found["synced"])
            numbers = int(found.get("generation", 0)), int(found.get("revision", 0))
            reserved = tuple(int(n) for n in found.get("reserved", ()))
            state = cls(str(found["boot"]), bool(found["clean"]), synced, salt, *numbers, reserved)
            possible = 0 <= state.revision < _MOST and state.generation >= 0 and len(reserved) in (0, len(synced))
            possible = possible and all(0 <= position < 2**56 for position in reserved)
            return state if possible and found["checksum"] == state._checksum() else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None

    @staticmethod
    def raw(files: Files) -> bytes:
        """Return the file as it is, which is another once anybody has noted something; nothing where it is missing."""
        with contextlib.suppress(OSError):
            return files.read(NAME)
        return b""

    def note(self, files: Files) -> State:
        """Write it, with a number larger than all before, and bring it to the disk; return it with its number."""
        known, second = State.read(files, self.salt), _second_revision(files, self.salt)
        state = dataclasses.replace(self, revision=max(0 if known is None else known.revision, second or 0) + 1)
        contents = {name: value for name, value in vars(state).items() if name != "salt"}
        files.replace_contents(NAME, json.dumps({**contents, "checksum": state._checksum()}).encode())
        state._note_revision(files, anew=second is None)
        return state

    def _note_revision(self, files: Files, *, anew: bool) -> None:
        """Write the number to its second place: one word, in place, which is the old one or the new whatever happens."""
        word = np.array([length_word(_seed(self.salt), self.revision)], np.int64)
        if anew:
            files.replace_contents(REVISION, word.tobytes())
            return
        fd = files.open(REVISION)
        try:
            files.pwrite(fd, word, 0)
        finally:
            files.close(fd)

    def last_shutdown(self, files: Files) -> LastShutdown:
        """Tell how the writer that left it ended."""
        if self.clean:
            return LastShutdown.CLEAN
        return LastShutdown.KILLED if self.boot and self.boot == files.boot_id() else LastShutdown.POWER_LOSS

    def next_positions(self) -> tuple[int, ...]:
        """Return of each stream the position from which on no row was ever added: those before may have been seen."""
        reserved = self.reserved if self.reserved and not self.clean else (0,) * len(self.synced)
        return tuple(max(synced + 1, until) for synced, until in zip(self.synced, reserved, strict=True))

    def _checksum(self) -> int:
        numbers = f" {self.generation} {self.revision}" if self.revision else ""  # notes had none once
        numbers += f" {self.reserved}" if self.reserved else ""
        return int(google_crc32c.value(f"{self.boot} {self.clean} {self.synced} {self.salt}{numbers}".encode()))


def how_it_was_left(state: State | None, files: Files, streams: int) -> tuple[LastShutdown, tuple[int, ...]]:
    """Return what became of the last writer, and up to which position rows of each stream were on the disk then.

    Where the note is missing or damaged, that is no power loss's doing, as it is replaced at once: nothing else is excused then.
    """
    if state is None or len(state.synced) != streams:
        return LastShutdown.KILLED, (-1,) * streams
    return state.last_shutdown(files), state.synced


def older_note(files: Files, salt: int) -> str | None:
    """Tell whether the note is older than its second place says, and so not what the last writer left."""
    second, state = _second_revision(files, salt), State.read(files, salt)  # in this order beside a writer
    if state is None or second is None or second <= state.revision:
        return None
    return (
        f"{files.root / NAME} is older than {files.root / REVISION} (number {state.revision}, and {second}): older files of this "
        f"store were put in the place of newer ones in {files.root / SEGMENTS}"
    )


def is_second_place_damaged(files: Files, salt: int) -> bool:
    """Tell whether the second place of the note's number is missing or damaged, where there must be one."""
    state = State.read(files, salt)
    return state is not None and state.revision > 0 and _second_revision(files, salt) is None


def _second_revision(files: Files, salt: int) -> int | None:
    with contextlib.suppress(OSError):
        data = files.read(REVISION)
        if len(data) == 8:
            word = int.from_bytes(data, "little", signed=True)
            revision = word & _MOST
            return revision if revision and length_word(_seed(salt), revision) == word else None
    return None


def _seed(salt: int) -> int:
    return mix(salt ^ 0x5EC0)
