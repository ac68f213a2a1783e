"""How the last writer left a store, and how far it had brought rows to the disk: one small file.

It tells a process that died (what it wrote is in the page cache, and reaches the disk) from a machine that lost its power or
crashed (what was not synced may be there, or not, sector by sector): by the identifier of the boot that wrote it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
from dataclasses import dataclass

import google_crc32c

from diskbuffer.store.episode_values import ValuesNote
from diskbuffer.store.format.layout import SEGMENTS, Layout
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.json_files import read_json
from diskbuffer.store.system.writer_lock import LOCK
from diskbuffer.store.tail_copy import CopyNote

NAME = f"{SEGMENTS}/length/state.json"  # inside an array's directory, which no Zarr tool lists


class LastShutdown(enum.Enum):
    """What became of the last writer."""

    CLEAN = "clean"  # all is on the disk
    KILLED = "killed"  # all that was acknowledged is there
    POWER_LOSS = "power loss"  # all is there that was synced by the last flush


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
    begins : tuple of int
        Of each stream, the position before which rows did not count then: they were cleared, or more than the capacity.
    salt : int
        The store's number.
    place : str
        What tells the store's directory from a copy of it; see `Files.place_id`.
    tail : CopyNote, optional
        The copy of what was in the tail only of the rows up to `synced`. None where nothing was.
    values : ValuesNote, optional
        What was on the disk of the values of episodes. None where none was ever given any.
    """

    boot: str
    clean: bool
    synced: tuple[int, ...]
    begins: tuple[int, ...]
    salt: int
    place: str = ""
    tail: CopyNote | None = None
    values: ValuesNote | None = None

    @classmethod
    def nothing(cls, layout: Layout) -> State:
        """Return that of a store without rows, which is open."""
        return cls("", False, (-1,) * layout.streams, (0,) * layout.streams, layout.salt)

    @classmethod
    def read(cls, files: Files, layout: Layout) -> State | None:
        """Read it; None where it is missing, damaged, or another store's."""
        try:
            data = read_json(files, NAME)
            synced, begins = (tuple(int(n) for n in data[name]) for name in ("synced", "begins"))
            tail = None if data["tail"] is None else CopyNote(*map(int, data["tail"]))
            values = None if data["values"] is None else ValuesNote(*map(int, data["values"]))
            state = cls(str(data["boot"]), bool(data["clean"]), synced, begins, layout.salt, str(data["place"]), tail, values)
            is_sane = len(synced) == len(begins) == layout.streams and all(0 <= n < 2**62 for n in (*begins, *(values or ())))
            return state if is_sane and data["checksum"] == state._checksum() else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None

    @staticmethod
    def raw(files: Files) -> bytes:
        """Return the file as it is, which is another once anybody has noted something; nothing where it is missing."""
        with contextlib.suppress(OSError):
            return files.read(NAME)
        return b""

    def note(self, files: Files) -> State:
        """Write it for the store in a directory, and bring it to the disk; return it."""
        state = dataclasses.replace(self, place=files.place_id(LOCK))
        contents = {name: value for name, value in vars(state).items() if name != "salt"}
        files.replace_contents(NAME, json.dumps({**contents, "checksum": state._checksum()}).encode())
        return state

    def is_copied(self, files: Files) -> bool:
        """Return whether it was left elsewhere by a writer that lived: files were copied at different moments."""
        return not self.clean and bool(self.place) and not set(files.place_id(LOCK).split()) & set(self.place.split())

    def last_shutdown(self, files: Files) -> LastShutdown:
        """Return how the writer that left it ended."""
        if self.clean:
            return LastShutdown.CLEAN
        is_here = self.boot and self.boot == files.boot_id() and not self.is_copied(files)
        return LastShutdown.KILLED if is_here else LastShutdown.POWER_LOSS

    def _checksum(self) -> int:
        notes = *(self.tail or ()), *(self.values or ())
        contents = (self.boot, self.clean, self.synced, self.begins, self.salt, self.place, *notes)
        return int(google_crc32c.value(" ".join(map(str, contents)).encode()))


def how_it_was_left(state: State | None, files: Files, streams: int) -> tuple[LastShutdown, tuple[int, ...]]:
    """Return what became of the last writer, and up to which position rows of each stream were on the disk then.

    Where the note is missing or damaged, that is no power loss's doing, as it is replaced at once: nothing else is excused then.
    """
    if state is None:
        return LastShutdown.KILLED, (-1,) * streams
    return state.last_shutdown(files), state.synced


def values_left(state: State | None, files: Files) -> tuple[ValuesNote | None, bool]:
    """Return what `episode_values.what_counts` takes: what the last flush noted, and whether more counts that came after that."""
    if state is None:
        return None, True
    return state.values, state.last_shutdown(files) is LastShutdown.KILLED
