"""Where the files in a store's directory come from: a note by which readers know that they were exchanged for others.

There is one in a snapshot or a mark, and in a store that went back to a mark.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass

import google_crc32c

from diskbuffer.errors import CorruptionError
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.system.files import Files

FILE = f"{SEGMENTS}/length/origin.json"  # inside an array's directory, which no Zarr tool lists
MARK_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Origin:
    """Where what is in a store's directory comes from.

    Attributes
    ----------
    identifier : str
        Another one whenever it comes from elsewhere.
    number : int
        Of a mark, by which marks are in the order in which they were made.
    back_to : str, optional
        The mark that the store is going back to; None when it is there.
    """

    identifier: str
    number: int = 0
    back_to: str | None = None

    @classmethod
    def new(cls, number: int = 0, back_to: str | None = None) -> Origin:
        """Return one with an identifier of its own."""
        return cls(uuid.uuid4().hex, number, back_to)

    @classmethod
    def read(cls, files: Files) -> Origin | None:
        """Read it; None where there is none, a CorruptionError where it is damaged."""
        try:
            data = json.loads(files.read(FILE))
            back_to = None if data["back_to"] is None else str(data["back_to"])
            origin = cls(str(data["identifier"]), int(data["number"]), back_to)
            if data["checksum"] == origin._checksum() and (back_to is None or MARK_NAME.fullmatch(back_to)):
                return origin
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise CorruptionError(
            f"{files.root / FILE}, which tells whether the store is going back to a mark, is damaged. "
            "`diskbuffer check --repair` takes the store as it is"
        )

    def note(self, files: Files) -> None:
        """Write it, and bring it to the disk."""
        files.replace_contents(FILE, json.dumps({**vars(self), "checksum": self._checksum()}).encode())

    def _checksum(self) -> int:
        return int(google_crc32c.value(f"{self.identifier} {self.number} {self.back_to}".encode()))
