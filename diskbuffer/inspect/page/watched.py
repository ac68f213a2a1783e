"""A store at a path, looked at again and again, whatever becomes of it: written to, moved away, deleted, replaced, put back."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskbuffer.errors import DiskBufferError
from diskbuffer.inspect.gathered import open_view
from diskbuffer.inspect.view import StoreView

_PAUSE = 0.4  # seconds between two looks at a store, however many pages ask


class NotThereError(DiskBufferError):
    """There is no store at the path now."""


@dataclass(frozen=True)
class State:
    """What is known of the store now.

    Attributes
    ----------
    view : StoreView or None
        None where no store is there.
    token : str
        Of the store that is seen: another one for each store that takes its place, and each time that it is opened again. Within
        one, the name of a step is that of one frame, for good.
    version : int
        Grows whenever something has changed.
    message : str
        Why there is none.
    """

    view: StoreView | None
    token: str
    version: int
    message: str

    def seen(self) -> StoreView:
        """Return the view; a NotThereError where there is none."""
        if self.view is None:
            raise NotThereError(self.message)
        return self.view


class Watched:
    """Look at the store at a path; any number of threads at once.

    Parameters
    ----------
    path : Path
        Where a store is, or may come to be again.
    view : StoreView, optional
        Of it, where one was opened already.
    """

    def __init__(self, path: Path, view: StoreView | None = None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._name = secrets.token_hex(4)
        self._opened = self._version = 0
        self._store: Any = None
        self._index: Any = None
        self._looked = 0.0
        self._state = State(view, self._token(), 0, "")
        if view is not None:
            self._note(view, changed=True)

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
        view = self._state.view
        try:
            if view is None:
                view = open_view(self.path)
                changed = True
            else:
                looked_itself = view.index is not self._index  # a read looks again where a writer has evicted what it wanted
                changed = view.refresh() or looked_itself
        except (DiskBufferError, OSError) as error:
            message = f"{error}. This page goes on as soon as there is a store again."
            if self._state.view is not None or self._state.message != message:
                self._version += 1
                self._state = State(None, self._token(), self._version, message)
            self._store = None
            return
        self._note(view, changed)

    def _note(self, view: StoreView, changed: bool) -> None:
        if view.store is not self._store:
            self._opened, self._store, changed = self._opened + 1, view.store, True
        self._index = view.index
        if changed:
            self._version += 1
            self._state = State(view, self._token(), self._version, "")
