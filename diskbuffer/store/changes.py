"""Changes that users ask for, of one store or of what a learner writes beside several: none comes once closing has begun."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from diskbuffer.errors import ClosedError


class Changeable:
    """Hold a lock while something is changed, and refuse that from `begin_closing` on.

    Attributes
    ----------
    root : Path
    lock : threading.RLock
    """

    root: Path
    _closing = False

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def refuse_to_write_elsewhere(self) -> None:
        """Raise a NotAStoreError where another store may be at the path."""
        raise NotImplementedError

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock for a change that a user asks for. All of them pass here, or by `derived`; what closing writes does not.

        Raises
        ------
        ClosedError
            It is being closed, or was: another process may write to it by now.
        NotAStoreError
            Another store may be in its place.
        """
        with self.lock:
            self.refuse_closed()
            self.refuse_to_write_elsewhere()
            yield

    def begin_closing(self) -> None:
        """Refuse changes from now on; the lock must be held."""
        self._closing = True

    def refuse_closed(self) -> None:
        """Raise a ClosedError where it is being closed, or was; the lock must be held, and as long as it is, that stays so."""
        if self._closing:
            raise ClosedError(f"{self.root} was closed; open it again, and go on")

    def holds_lock(self) -> bool:
        """Return whether this thread has the lock."""
        return self.lock._is_owned()  # type: ignore[attr-defined,no-any-return]
