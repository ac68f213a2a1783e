"""Who is alive in a role, as actor or learner: everybody holds a shared lock on the role's file, which ends with the process."""

from __future__ import annotations

import time

from diskbuffer.errors import LockedError
from diskbuffer.runtime import forks
from diskbuffer.runtime.uncopied import Uncopied
from diskbuffer.store.system.files import Files

_PATIENCE = 5.0  # seconds; who asks has the lock for some microseconds


class Presence(Uncopied):
    """A role: be in it, and ask whether others are.

    Parameters
    ----------
    files : Files
    name : str
        The role's file.
    """

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._name = files, name
        self._fd, self._lock = -1, forks.new_lock()

    def join(self) -> None:
        """Be in the role, until `leave`; twice is fine."""
        if self._fd >= 0:
            return
        with self._lock:
            if self._fd < 0:
                fd = self._files.open_lock(self._name, write=True)
                try:
                    self._share(fd)
                except BaseException:
                    self._files.close(fd)
                    raise
                self._fd = fd

    def _share(self, fd: int) -> None:
        until = time.monotonic() + _PATIENCE
        while not self._files.lock(fd, exclusive=False):
            if time.monotonic() > until:
                raise LockedError(f"{self._files.root / self._name} is locked by another program; which one is it?")
            time.sleep(0.0005)

    def others(self) -> bool:
        """Tell whether anybody else is in the role, in this process or another one.

        Whoever asks at the same time, and is in the role, may be missed; so ask more than once.
        """
        with self._lock:
            fd = self._fd if self._fd >= 0 else self._files.open_lock(self._name, write=True)
            try:
                return not self._files.lock(fd, exclusive=True)
            finally:
                if fd == self._fd:
                    self._share(fd)
                else:
                    self._files.close(fd)

    def leave(self) -> None:
        """Be in the role no longer; twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._files.close(fd)

    def after_fork(self) -> None:
        """In the child: leave it to the parent."""
        self.leave()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.leave()
