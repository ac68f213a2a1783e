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
    """There is no store at the path now, or a damaged one."""


@dataclass(frozen=True)
class State:
    """What is known of the store now.

    Attributes
    ----------
    reader : Reader or None
        None where no store is there, or a damaged one.
    token : str
        Of the store that is seen: another one for each store that takes its place, and each time that it is opened again. Within
        one, the id of a step is that of one frame, for good.
    version : str
        Another one whenever something has changed.
    message : str
        Why there is none.
    """

    reader: Reader | None = None
    token: str = ""
    version: str = ""
    message: str = "the store was not looked at yet"

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
        self._name, self._opened = secrets.token_hex(4), 0
        self.last = State() if reader is None else self._state(reader)
        """What the last look saw."""
        self.looked = 0.0
        """When that was: `time.monotonic`."""

    def look(self, *, at_once: bool = False) -> State:
        """Look again, unless it was done just now; return what there is. Some 15 ms for a million steps."""
        with self._lock:
            if at_once or time.monotonic() - self.looked > _PAUSE:
                self.last, self.looked = self._look(), time.monotonic()
            return self.last

    def _look(self) -> State:
        reader = self.last.reader
        try:
            if reader is None:
                reader = Reader(self.path)
                self._opened += 1
            else:
                reader.refresh()
        except (DiskBufferError, OSError) as error:
            return State(version="none", message=f"{error}. This page goes on as soon as there is a store that can be opened.")
        return self._state(reader)

    def _state(self, reader: Reader) -> State:
        opened, changes = reader.version
        token = f"{self._name}-{self._opened}-{opened}"
        return State(reader, token, f"{token}-{changes}", "")
