"""A store at a path, looked at again and again, whatever becomes of it: written to, moved away, deleted, replaced, put back."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from diskbuffer.errors import DiskBufferError
from diskbuffer.plugin import Reader

_PAUSE = 0.4  # seconds between two looks at a store, however many pages ask


class NotThereError(DiskBufferError):
    """There is no store at the path now."""


@dataclass(frozen=True)
class State:
    """What is known of the store now.

    Attributes
    ----------
    reader : Reader or None
        None where no store is there.
    token : str
        Of the store that is seen: another one for each store that takes its place, and each time that it is opened again. Within
        one, the name of a step is that of one frame, for good.
    version : int
        Grows whenever something has changed.
    message : str
        Why there is none.
    """

    reader: Reader | None
    token: str
    version: int
    message: str

    def seen(self) -> Reader:
        """Return the reader; a NotThereError where there is none."""
        if self.reader is None:
            raise NotThereError(self.message)
        return self.reader


class Watched:
    """Look at the store at a path; any number of threads at once.

    Parameters
    ----------
    path : Path
        Where a store is, or may come to be again.
    reader : Reader, optional
        Of it, where one was opened already.
    """

    def __init__(self, path: Path, reader: Reader | None = None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._name = secrets.token_hex(4)
        self._opened = self._version = 0
        self._seen = (0, 0)  # the reader's version, as of the last look
        self._looked = 0.0
        self._state = State(reader, self._token(), 0, "")
        if reader is not None:
            self._note(reader)

    def _token(self) -> str:
        return f"{self._name}-{self._opened}"

    def look(self, *, at_once: bool = False) -> State:
        """Look again, unless it was done just now; return what there is. Some 15 ms for a million steps."""
        with self._lock:
            if at_once or time.monotonic() - self._looked > _PAUSE:
                self._look()
                self._looked = time.monotonic()
            return self._state

    def last(self) -> State:
        """Return what the last look saw, at no cost."""
        return self._state

    def _look(self) -> None:
        reader = self._state.reader
        try:
            if reader is None:
                reader = Reader(self.path, tolerate_damage=True)
            else:
                reader.refresh()
        except (DiskBufferError, OSError) as error:
            message = f"{error}. This page goes on as soon as there is a store again."
            if self._state.reader is not None or self._state.message != message:
                self._version += 1
                self._state = State(None, self._token(), self._version, message)
            return
        self._note(reader)

    def _note(self, reader: Reader) -> None:
        version, known = reader.version, reader is self._state.reader and self._version > 0
        if known and version == self._seen:
            return
        if not known or version[0] != self._seen[0]:
            self._opened += 1
        self._seen, self._version = version, self._version + 1
        self._state = State(reader, self._token(), self._version, "")
